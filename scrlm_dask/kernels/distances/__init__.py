"""Distances: preprocessing maps, points, projections, pruning, nearest centers, cluster sums."""
