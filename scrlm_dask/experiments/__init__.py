"""Deprecated alias of `scrlm_dask.paper`; it will be removed in the next release."""

from __future__ import annotations

import warnings

from scrlm_dask.paper.framework import SIZES, Size, Table
from scrlm_dask.paper.runner import NAMES
from scrlm_dask.paper.runner import ExperimentRun as Ran
from scrlm_dask.paper.runner import run_experiment as run

__all__ = ["NAMES", "SIZES", "Ran", "Size", "Table", "run"]

warnings.warn(
    "scrlm_dask.experiments is deprecated; use scrlm_dask.paper.runner.run_experiment",
    FutureWarning,
    stacklevel=2,
)
