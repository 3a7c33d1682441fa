"""Benchmarks and stress tests of scrlm_dask: `python -m benchmarks.NAME --help`."""
