"""Experiments of the paper and the baselines for comparisons."""
