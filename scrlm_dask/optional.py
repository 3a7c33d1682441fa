"""Import optional dependencies (the extras in pyproject.toml)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from scrlm_dask.errors import InputError


def import_optional(module: str, what: str, extra: str = "formats") -> Any:
    """Import a library of an extra; raise with its name if it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise InputError(
            f"{what} needs {package}, which is not installed; install scrlm-dask[{extra}]"
        ) from error
