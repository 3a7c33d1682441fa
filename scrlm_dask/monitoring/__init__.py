"""Listeners for events of a run: dashboard page, Prometheus metrics, JSON log, notebook cell."""
