"""What a scheduler knows of a cluster that makes no progress.

Dask's own dump asks every worker, and waits for ever for one that hangs.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

_MOST_KEYS = 20


def cluster_state(client: Any) -> dict[str, Any]:
    """Workers with their tasks, and how many tasks are in which state, by name: plain JSON."""
    state: dict[str, Any] = client.run_on_scheduler(_state)
    return state


def _state(dask_scheduler: Any) -> dict[str, Any]:
    now = time.time()
    tasks = Counter((task.prefix.name, task.state) for task in dask_scheduler.tasks.values())
    workers = {
        address: {
            "name": str(worker.name),
            "status": worker.status.name,
            "seconds_silent": now - worker.last_seen,
            "threads": worker.nthreads,
            "memory_bytes": worker.metrics.get("memory"),
            "memory_limit": worker.memory_limit,
            "processing": [str(task.key) for task in list(worker.processing)[:_MOST_KEYS]],
        }
        for address, worker in dask_scheduler.workers.items()
    }
    counted = [{"name": name, "state": kind, "tasks": n} for (name, kind), n in tasks.items()]
    return {"workers": workers, "tasks": counted, "events": _last_events(dask_scheduler)}


def _last_events(dask_scheduler: Any) -> list[str]:
    """What the scheduler noted last, such as workers that came and went."""
    return [str(event) for event in list(dask_scheduler.get_events("all"))[-_MOST_KEYS:]]
