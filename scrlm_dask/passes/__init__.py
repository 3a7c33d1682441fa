"""What maps over blocks of features and how it is reduced: the only place that builds Dask work."""
