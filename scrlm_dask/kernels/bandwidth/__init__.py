"""Choosing the bandwidth rho on a sample: trial bandwidths, the rule, the search."""
