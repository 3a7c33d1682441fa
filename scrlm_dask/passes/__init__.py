"""Passes over blocks of features: the work per block, and the reduction of its results."""
