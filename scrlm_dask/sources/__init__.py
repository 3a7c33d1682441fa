"""Files as encoders write them, one format per module: NumPy arrays out, no Dask.

A source is small and frozen: it has the shape and dtype of its rows, and reads them by path.
"""
