"""The asyncio skin: one file for each kind of thing that a client makes."""
