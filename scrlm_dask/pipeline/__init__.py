"""The algorithm and what surrounds it, each verb in a file: fit, predict, evaluate, synth."""

from __future__ import annotations

from scrlm_dask.pipeline.clustering import check_kmeans, kmeans
from scrlm_dask.pipeline.drawing import check_synth, synth
from scrlm_dask.pipeline.evaluation import Evaluation, evaluate_run
from scrlm_dask.pipeline.fitting import check_fit, fit
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
    "Prediction",
    "center_points",
    "check_fit",
    "check_kmeans",
    "check_predict",
    "check_synth",
    "check_width",
    "evaluate_run",
    "fit",
    "kmeans",
    "predict",
    "synth",
]
