"""Console output, progress and signals."""
