"""Readers for files of features, labels and ids, one format per module; they do not use Dask.

A source is a small frozen object: it knows paths, shape and dtype, and reads rows as NumPy arrays.
"""
