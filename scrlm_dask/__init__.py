"""Large-scale clustering with outliers: SCRLM on Dask and Zarr.

Names are imported when they are first used, so that importing the package is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
    from scrlm_dask.errors import ClusterError, InputError, ScrlmError, ScrlmWarning, StoreError
    from scrlm_dask.estimators.kmeans import KMeans
    from scrlm_dask.estimators.scrlm import SCRLM
    from scrlm_dask.model import Model
    from scrlm_dask.pipeline import (
        IngestConfig,
        evaluate_run,
        fit,
        ingest,
        inspect_rows,
        inspect_store,
        kmeans,
        open_features,
        predict,
        synth,
        verify_store,
        write_features,
    )
    from scrlm_dask.storage.models import load_model

_HOMES = {
    "SCRLM": "estimators.scrlm",
    "KMeans": "estimators.kmeans",
    "FitConfig": "config",
    "KMeansConfig": "config",
    "LloydConfig": "config",
    "Model": "model",
    "fit": "pipeline",
    "kmeans": "pipeline",
    "ingest": "pipeline",
    "IngestConfig": "pipeline",
    "predict": "pipeline",
    "evaluate_run": "pipeline",
    "synth": "pipeline",
    "inspect_rows": "pipeline",
    "inspect_store": "pipeline",
    "verify_store": "pipeline",
    "open_features": "pipeline",
    "write_features": "pipeline",
    "load_model": "storage.models",
    "ScrlmError": "errors",
    "InputError": "errors",
    "StoreError": "errors",
    "ScrlmWarning": "errors",
    "ClusterError": "errors",
}

__all__ = [
    "SCRLM",
    "ClusterError",
    "FitConfig",
    "IngestConfig",
    "InputError",
    "KMeans",
    "KMeansConfig",
    "LloydConfig",
    "Model",
    "ScrlmError",
    "ScrlmWarning",
    "StoreError",
    "evaluate_run",
    "fit",
    "ingest",
    "inspect_rows",
    "inspect_store",
    "kmeans",
    "load_model",
    "open_features",
    "predict",
    "synth",
    "verify_store",
    "write_features",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("scrlm-dask")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
