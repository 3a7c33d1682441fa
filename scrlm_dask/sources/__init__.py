"""Files as encoders write them, one format a file: NumPy arrays out, no Dask.

A source is small and frozen: it says what is there, and whoever holds it reads rows by path.
"""
