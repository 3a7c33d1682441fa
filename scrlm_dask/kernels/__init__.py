"""The paper's formulas on NumPy arrays. Nothing here knows of Dask, Zarr or files."""

OUTLIER = -1  # label of a row that belongs to no cluster
