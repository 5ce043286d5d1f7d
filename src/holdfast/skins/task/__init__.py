"""The asyncio skin: enter, await, return. One file for each kind of thing that a client makes."""
