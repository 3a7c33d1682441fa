"""Import optional dependencies (the extras in pyproject.toml)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from scrlm_dask.errors import InputError


def import_optional(module: str, what: str, extra: str = "formats") -> Any:
    """Import an optional module; raise an `InputError` that names the extra if it is missing.

    `what` names the feature that requires the module, such as "the Arrow file x.arrow".
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise InputError(
            f"{package} is required for {what} but is not installed; "
            f"install it with pip install 'scrlm-dask[{extra}]'"
        ) from error
