"""Mergeable statistics of rows: covariance, histograms, duplicates."""
