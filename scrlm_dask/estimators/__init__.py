"""Estimators for SCRLM and k-means, with the conventions of scikit-learn."""
