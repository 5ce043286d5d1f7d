"""The blocking skin: enter, drive, return. One file for each kind of thing that a client makes."""
