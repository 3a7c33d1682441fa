"""SCRLM and k-means in scikit-learn's conventions: validate, delegate, store."""
