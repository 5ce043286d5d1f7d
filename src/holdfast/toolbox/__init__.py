"""Tools made of claims and cells, written once for both ports and for every store."""
