"""Deprecated: use `scrlm_dask.monitoring` and `scrlm_dask.preload`."""
