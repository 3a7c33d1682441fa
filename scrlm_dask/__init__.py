"""Large-scale clustering with outliers: SCRLM on Dask and Zarr.

Names are imported when they are first used, so that importing the package is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrlm_dask.cluster import ClusterOptions, connect
    from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
    from scrlm_dask.errors import ClusterError, InputError, ScrlmError, ScrlmWarning, StoreError
    from scrlm_dask.estimators.kmeans import KMeans
    from scrlm_dask.estimators.scrlm import SCRLM
    from scrlm_dask.kernels.synthesis import MixtureSpec
    from scrlm_dask.model import Model
    from scrlm_dask.pipeline import (
        EmbedConfig,
        IngestConfig,
        cut_run,
        embed,
        evaluate_run,
        export,
        fit,
        ingest,
        inspect_rows,
        inspect_store,
        kmeans,
        open_features,
        plan_fit,
        predict,
        scan_rho,
        synth,
        verify_run,
        verify_store,
        write_features,
    )
    from scrlm_dask.reporting.report import write_report
    from scrlm_dask.rivals.comparing import compare
    from scrlm_dask.sources.registry import SourceOptions
    from scrlm_dask.storage.models import load_model

_HOMES = {
    "SCRLM": "estimators.scrlm",
    "KMeans": "estimators.kmeans",
    "FitConfig": "config",
    "KMeansConfig": "config",
    "LloydConfig": "config",
    "Model": "model",
    "MixtureSpec": "kernels.synthesis",
    "SourceOptions": "sources.registry",
    "fit": "pipeline",
    "kmeans": "pipeline",
    "ingest": "pipeline",
    "embed": "pipeline",
    "EmbedConfig": "pipeline",
    "IngestConfig": "pipeline",
    "predict": "pipeline",
    "scan_rho": "pipeline",
    "cut_run": "pipeline",
    "evaluate_run": "pipeline",
    "export": "pipeline",
    "synth": "pipeline",
    "inspect_rows": "pipeline",
    "inspect_store": "pipeline",
    "verify_run": "pipeline",
    "verify_store": "pipeline",
    "open_features": "pipeline",
    "plan_fit": "pipeline",
    "write_features": "pipeline",
    "compare": "rivals.comparing",
    "load_model": "storage.models",
    "write_report": "reporting.report",
    "ScrlmError": "errors",
    "InputError": "errors",
    "StoreError": "errors",
    "ScrlmWarning": "errors",
    "ClusterError": "errors",
    "ClusterOptions": "cluster",
    "connect": "cluster",
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
