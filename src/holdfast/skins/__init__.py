"""What users touch, twice: `thread` blocks, `task` awaits. `sync.py` and `aio.py` open them."""
