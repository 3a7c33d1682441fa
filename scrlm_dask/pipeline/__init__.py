"""The algorithm and what surrounds it, each verb in a file: fit, predict, evaluate, synth, ..."""

from __future__ import annotations

from scrlm_dask.pipeline.clustering import check_kmeans, kmeans, read_centers
from scrlm_dask.pipeline.cutting import Cut, cut_run
from scrlm_dask.pipeline.drawing import check_synth, synth
from scrlm_dask.pipeline.embedding import EmbedConfig, embed
from scrlm_dask.pipeline.evaluation import Evaluation, check_evaluate, evaluate_run
from scrlm_dask.pipeline.exchange import open_features, write_features
from scrlm_dask.pipeline.exporting import Export, export
from scrlm_dask.pipeline.fitting import check_fit, fit
from scrlm_dask.pipeline.ingest_jobs import IngestConfig
from scrlm_dask.pipeline.ingestion import Ingest, check_ingest, ingest
from scrlm_dask.pipeline.inspection import inspect_rows, inspect_store, verify_store
from scrlm_dask.pipeline.planning import PhasePlan, Plan, check_features, plan_fit
from scrlm_dask.pipeline.prediction import (
    Prediction,
    center_points,
    check_predict,
    check_width,
    predict,
)
from scrlm_dask.pipeline.results import Fit
from scrlm_dask.pipeline.scan import RhoScan, scan_rho
from scrlm_dask.pipeline.verification import Verification, check_verify, verify_run

__all__ = [
    "Cut",
    "EmbedConfig",
    "Evaluation",
    "Export",
    "Fit",
    "Ingest",
    "IngestConfig",
    "PhasePlan",
    "Plan",
    "Prediction",
    "RhoScan",
    "Verification",
    "center_points",
    "check_evaluate",
    "check_features",
    "check_fit",
    "check_ingest",
    "check_kmeans",
    "check_predict",
    "check_synth",
    "check_verify",
    "check_width",
    "cut_run",
    "embed",
    "evaluate_run",
    "export",
    "fit",
    "ingest",
    "inspect_rows",
    "inspect_store",
    "kmeans",
    "open_features",
    "plan_fit",
    "predict",
    "read_centers",
    "scan_rho",
    "synth",
    "verify_run",
    "verify_store",
    "write_features",
]
