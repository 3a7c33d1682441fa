"""Choice of the bandwidth rho on a sample: trial bandwidths, selection rule and search."""
