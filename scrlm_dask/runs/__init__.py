"""The life of a run directory: open, resume, record, finish."""
