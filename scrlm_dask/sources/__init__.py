"""Readers for files of features, labels and ids, one format per module; they do not use Dask.

A source is a small frozen object. It contains paths, shape and dtype of the rows, and reads rows as
NumPy arrays.
"""
