"""Deprecated alias of `scrlm_dask.preload`; it will be removed in the next release."""

from __future__ import annotations

import warnings

from scrlm_dask.preload import dask_setup

__all__ = ["dask_setup"]

warnings.warn(
    "--preload scrlm_dask.watching.preload is deprecated; use --preload scrlm_dask.preload",
    FutureWarning,
    stacklevel=2,
)
