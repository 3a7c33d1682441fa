"""One module per verb: fit, kmeans, rho, predict, ingest, evaluate, ..."""
