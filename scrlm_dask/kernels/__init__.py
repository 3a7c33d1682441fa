"""Numerical kernels on NumPy arrays: the paper's formulas, independent of Dask and Zarr."""

OUTLIER = -1  # label of a row that belongs to no cluster
