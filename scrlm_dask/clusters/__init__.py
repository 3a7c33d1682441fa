"""Connect to a Dask cluster, or start one."""
