"""The paper's experiments and the baselines it compares with."""
