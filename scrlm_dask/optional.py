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
        raise missing_package(module.split(".")[0], what, extra) from error


def missing_package(package: str, what: str, extra: str) -> InputError:
    """Return the error for an optional package that is not installed."""
    return InputError(
        f"{package} is required for {what} but is not installed; "
        f"install it with pip install 'scrlm-dask[{extra}]'"
    )
