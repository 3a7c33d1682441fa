"""Large-scale clustering with outliers: SCRLM on Dask and Zarr.

Names are imported when they are first used, so that importing the package is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrlm_dask.clusters.connect import connect
    from scrlm_dask.clusters.options import ClusterOptions
    from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
    from scrlm_dask.errors import ClusterError, InputError, ScrlmError, ScrlmWarning, StoreError
    from scrlm_dask.estimators.kmeans import KMeans
    from scrlm_dask.estimators.scrlm import SCRLM
    from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
    from scrlm_dask.model import Model
    from scrlm_dask.paper.compare import compare
    from scrlm_dask.pipeline.cut import cut_run
    from scrlm_dask.pipeline.embed import EmbedConfig, embed
    from scrlm_dask.pipeline.evaluate import evaluate_run
    from scrlm_dask.pipeline.export import export
    from scrlm_dask.pipeline.fit import fit
    from scrlm_dask.pipeline.ingest import ingest
    from scrlm_dask.pipeline.ingest_job import IngestConfig
    from scrlm_dask.pipeline.inspect import inspect_rows, inspect_store, verify_store
    from scrlm_dask.pipeline.kmeans import kmeans
    from scrlm_dask.pipeline.plan import plan_fit
    from scrlm_dask.pipeline.predict import predict
    from scrlm_dask.pipeline.rho import scan_rho
    from scrlm_dask.pipeline.stores import open_features, write_features
    from scrlm_dask.pipeline.synth import synth
    from scrlm_dask.pipeline.verify import verify_run
    from scrlm_dask.reporting.report import write_report
    from scrlm_dask.sources.registry import SourceOptions
    from scrlm_dask.storage.model_store import load_model

_HOMES = {
    "SCRLM": "estimators.scrlm",
    "KMeans": "estimators.kmeans",
    "FitConfig": "config",
    "KMeansConfig": "config",
    "LloydConfig": "config",
    "Model": "model",
    "MixtureSpec": "kernels.randomness.synthesis",
    "SourceOptions": "sources.registry",
    "fit": "pipeline.fit",
    "kmeans": "pipeline.kmeans",
    "ingest": "pipeline.ingest",
    "embed": "pipeline.embed",
    "EmbedConfig": "pipeline.embed",
    "IngestConfig": "pipeline.ingest_job",
    "predict": "pipeline.predict",
    "scan_rho": "pipeline.rho",
    "cut_run": "pipeline.cut",
    "evaluate_run": "pipeline.evaluate",
    "export": "pipeline.export",
    "synth": "pipeline.synth",
    "inspect_rows": "pipeline.inspect",
    "inspect_store": "pipeline.inspect",
    "verify_run": "pipeline.verify",
    "verify_store": "pipeline.inspect",
    "open_features": "pipeline.stores",
    "plan_fit": "pipeline.plan",
    "write_features": "pipeline.stores",
    "compare": "paper.compare",
    "load_model": "storage.model_store",
    "write_report": "reporting.report",
    "ScrlmError": "errors",
    "InputError": "errors",
    "StoreError": "errors",
    "ScrlmWarning": "errors",
    "ClusterError": "errors",
    "ClusterOptions": "clusters.options",
    "connect": "clusters.connect",
}

__all__ = [
    "SCRLM",
    "ClusterError",
    "ClusterOptions",
    "EmbedConfig",
    "FitConfig",
    "IngestConfig",
    "InputError",
    "KMeans",
    "KMeansConfig",
    "LloydConfig",
    "MixtureSpec",
    "Model",
    "ScrlmError",
    "ScrlmWarning",
    "SourceOptions",
    "StoreError",
    "compare",
    "connect",
    "cut_run",
    "embed",
    "evaluate_run",
    "export",
    "fit",
    "ingest",
    "inspect_rows",
    "inspect_store",
    "kmeans",
    "load_model",
    "open_features",
    "plan_fit",
    "predict",
    "scan_rho",
    "synth",
    "verify_run",
    "verify_store",
    "write_features",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("scrlm-dask")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
