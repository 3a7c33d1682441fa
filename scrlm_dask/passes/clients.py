"""Which scheduler the work goes to: the current Dask client's, or the threads of this process."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import dask

from scrlm_dask.resources import process_report


@dataclass(frozen=True)
class WorkerMemory:
    limit: int | None  # bytes; None if there is no limit
    n_threads: int


def current_client() -> Any | None:
    """The distributed client that Dask would use, if there is one."""
    scheduler = dask.config.get("scheduler", None)
    if "distributed" not in sys.modules or scheduler not in (None, "dask.distributed"):
        return None  # a scheduler set by hand goes before a client
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


def process_reports() -> dict[str, dict[str, Any]]:
    """Peak memory and effective threads of every process that works, by its name."""
    client = current_client()
    if client is None:
        return {"threads": process_report()}
    # what a worker that was just lost has to say must not fail the run
    reports = client.run(process_report, on_error="ignore")
    return {name: report for name, report in reports.items() if isinstance(report, dict)}


def worker_memories() -> list[WorkerMemory]:
    """Memory and threads of every worker; for threads of this process, what the machine has."""
    client = current_client()
    if client is None:
        from distributed.system import MEMORY_LIMIT

        threads = dask.config.get("num_workers", None) or os.cpu_count() or 1
        return [WorkerMemory(int(MEMORY_LIMIT), int(threads))]
    workers = client.scheduler_info(-1)["workers"].values()
    return [WorkerMemory(w["memory_limit"] or None, w["nthreads"]) for w in workers]
