"""Randomness keyed by purpose and row number: sampling, permutations, synthetic mixtures."""
