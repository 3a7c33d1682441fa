"""SCRLM: robust loss, greedy extraction, polishing, mixture parameters, theory, Ward merging."""
