"""Large-scale clustering with outliers: SCRLM on Dask and Zarr.

Names are imported when they are first used, so that importing the package is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrlm_dask.config import FitConfig
    from scrlm_dask.errors import ClusterError, InputError, ScrlmError, ScrlmWarning, StoreError
    from scrlm_dask.estimator import SCRLM
    from scrlm_dask.model import Model
    from scrlm_dask.pipeline import IngestConfig, evaluate_run, fit, ingest, predict, synth
    from scrlm_dask.storage.models import load_model

_HOMES = {
    "SCRLM": "estimator",
    "FitConfig": "config",
    "Model": "model",
    "fit": "pipeline",
    "ingest": "pipeline",
    "IngestConfig": "pipeline",
    "predict": "pipeline",
    "evaluate_run": "pipeline",
    "synth": "pipeline",
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
    "Model",
    "ScrlmError",
    "ScrlmWarning",
    "StoreError",
    "evaluate_run",
    "fit",
    "ingest",
    "load_model",
    "predict",
    "synth",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("scrlm-dask")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
