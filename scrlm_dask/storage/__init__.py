"""On-disk formats of stores, models and runs; no other layer accesses Zarr's files directly."""
