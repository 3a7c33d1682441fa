"""Measurements that any reader can run: `python -m benchmarks.NAME --help`."""
