"""Large-scale clustering with outliers: SCRLM and k-means on Dask and Zarr.

Public names are imported on first use, so that importing the package is quick. Their list is in
`__init__.pyi`.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import lazy_loader

_load_name, _list_names, __all__ = lazy_loader.attach_stub(__name__, __file__)

# Deprecated names: module, name in that module, replacement.
_DEPRECATED = {
    "ClusterError": ("errors", "ClusterError", "scrlm_dask.errors.ClusterError"),
    "InputError": ("errors", "InputError", "scrlm_dask.errors.InputError"),
    "StoreError": ("errors", "StoreError", "scrlm_dask.errors.StoreError"),
    "ClusterOptions": ("clusters.options", "ClusterOptions", "connect(**options)"),
    "compare": ("paper.compare", "compare", "scrlm_dask.paper.compare.compare"),
    "cut_run": ("pipeline.cut", "cut_run", "Run(path).cut"),
    "evaluate_run": ("pipeline.evaluate", "evaluate", "evaluate or Run(path).evaluate"),
    "export": ("pipeline.export", "export", "Run(path).export"),
    "inspect_rows": ("pipeline.inspect", "inspect_rows", "FeatureStore(path).statistics"),
    "inspect_store": ("pipeline.inspect", "inspect_store", "FeatureStore(path).info"),
    "load_model": ("storage.model_store", "load_model", "Model.load"),
    "open_features": ("pipeline.stores", "open_features", "FeatureStore(path).array"),
    "predict": ("pipeline.predict", "predict", "Run(path).predict or Model.predict"),
    "verify_run": ("pipeline.verify", "verify_run", "Run(path).verify"),
    "verify_store": ("pipeline.inspect", "verify_store", "FeatureStore(path).verify"),
    "write_features": ("pipeline.stores", "write_features", "FeatureStore.write"),
    "write_report": ("reporting.report", "write_report", "Run(path).report"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("scrlm-dask")
    if name in _DEPRECATED:
        module, attribute, instead = _DEPRECATED[name]
        text = f"scrlm_dask.{name} is deprecated; use {instead}"
        warnings.warn(text, FutureWarning, stacklevel=2)
        return getattr(import_module(f"{__name__}.{module}"), attribute)
    return _load_name(name)


def __dir__() -> list[str]:
    return sorted([*_list_names(), "__version__"])
