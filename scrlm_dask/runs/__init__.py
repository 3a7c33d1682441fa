"""Lifecycle of a run directory: prepare, open or resume, record, finish."""
