"""Other clustering methods under one small interface, each run in a process with limits."""

from __future__ import annotations

from scrlm_dask.rivals.limited import Outcome, Task, run_limited
from scrlm_dask.rivals.methods import METHODS, Method, available

__all__ = ["METHODS", "Method", "Outcome", "Task", "available", "run_limited"]
