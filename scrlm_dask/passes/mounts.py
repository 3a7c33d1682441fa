"""Whether the workers see the same files as this process."""

from __future__ import annotations

import os.path

from scrlm_dask.errors import ClusterError
from scrlm_dask.passes.clients import current_client
from scrlm_dask.storage.locations import Location

_NAMED = 3  # workers in a message


def check_seen_by_workers(place: Location) -> None:
    """Refuse workers that lack a path which is here: a disk of one host, or a mount that failed."""
    client = current_client()
    if client is None or place.is_remote:
        return
    # a worker that is lost this moment is no reason to stop
    answers = client.run(os.path.exists, place.url, on_error="ignore")
    blind = [name for name, seen in answers.items() if seen is False]
    if not blind:
        return
    names = ", ".join(blind[:_NAMED]) + (", ..." if len(blind) > _NAMED else "")
    raise ClusterError(
        f"{len(blind)} of {len(answers)} worker(s) ({names}) do not see {place}, which is here; "
        "put it on a file system that all of them mount at this path, or stop these workers"
    )
