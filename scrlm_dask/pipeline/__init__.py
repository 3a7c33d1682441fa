"""The algorithm and what surrounds it, each verb in a file: fit, predict, evaluate, synth, ..."""

from __future__ import annotations

from scrlm_dask.pipeline.clustering import check_kmeans, kmeans, read_centers
from scrlm_dask.pipeline.drawing import check_synth, synth
from scrlm_dask.pipeline.evaluation import Evaluation, evaluate_run
from scrlm_dask.pipeline.exchange import open_features, write_features
from scrlm_dask.pipeline.fitting import check_fit, fit
from scrlm_dask.pipeline.ingest_jobs import IngestConfig
from scrlm_dask.pipeline.ingestion import Ingest, check_ingest, ingest
from scrlm_dask.pipeline.inspection import inspect_rows, inspect_store, verify_store
from scrlm_dask.pipeline.prediction import (
    Prediction,
    center_points,
    check_predict,
    check_width,
    predict,
)
from scrlm_dask.pipeline.results import Fit

__all__ = [
    "Evaluation",
    "Fit",
    "Ingest",
    "IngestConfig",
    "Prediction",
    "center_points",
    "check_fit",
    "check_ingest",
    "check_kmeans",
    "check_predict",
    "check_synth",
    "check_width",
    "evaluate_run",
    "fit",
    "ingest",
    "inspect_rows",
    "inspect_store",
    "kmeans",
    "open_features",
    "predict",
    "read_centers",
    "synth",
    "verify_store",
    "write_features",
]
