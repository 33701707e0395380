"""POP consumption: the broker hands out messages under leases and takes them back when a lease runs out."""
