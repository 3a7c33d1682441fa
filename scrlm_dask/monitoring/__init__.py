"""Listeners for events: dashboard page, Prometheus metrics, JSON log, notebook cell."""
