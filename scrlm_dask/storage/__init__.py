"""What stores, models and runs look like on disk: the only place that knows Zarr's files."""
