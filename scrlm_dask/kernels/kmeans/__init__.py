"""k-means: Lloyd iterations and initialization."""
