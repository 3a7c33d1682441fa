"""The algorithm and what surrounds it, one verb a file: fit, predict, evaluate, synth, ingest."""

from __future__ import annotations

from scrlm_dask.pipeline.drawing import check_synth, synth
from scrlm_dask.pipeline.evaluation import Evaluation, evaluate_run
from scrlm_dask.pipeline.fitting import Fit, check_fit, fit
from scrlm_dask.pipeline.ingest_jobs import IngestConfig
from scrlm_dask.pipeline.ingestion import Ingest, check_ingest, ingest
from scrlm_dask.pipeline.prediction import (
    Prediction,
    center_points,
    check_predict,
    check_width,
    predict,
)

__all__ = [
    "Evaluation",
    "Fit",
    "Ingest",
    "IngestConfig",
    "Prediction",
    "center_points",
    "check_fit",
    "check_ingest",
    "check_predict",
    "check_synth",
    "check_width",
    "evaluate_run",
    "fit",
    "ingest",
    "predict",
    "synth",
]
