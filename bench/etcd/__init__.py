"""etcd and its peers, measured on members that the run starts itself: `python -m bench.etcd`."""
