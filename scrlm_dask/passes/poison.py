"""Blocks that end every worker that touches them: Dask gives up on them, and they get a name."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from scrlm_dask.errors import ClusterError
from scrlm_dask.passes.clients import current_client
from scrlm_dask.passes.features import Features

_NAMED = 4  # blocks in a message


@contextmanager
def naming_poison(
    name: str, features: Features, blocks: Sequence[int], tasks: str | None = None
) -> Iterator[None]:
    """Say which block of a pass it was that too many workers died with.

    `tasks` is what the tasks of its blocks are called, if it has some beside the reads. Dask blames
    all that a lost worker had before it, so a block that waited its turn each time is as much
    suspected as the one that was at work.
    """
    try:
        yield
    except Exception as error:
        key = _key_of_the_killed(error)
        if key is None:
            raise
        found = {_block_of(suspect, features, blocks, tasks) for suspect in (key, *_suspects())}
        suspected = sorted(block for block in found if block is not None)
        if not suspected:
            raise ClusterError(
                f"workers were lost again and again in the pass {name}, at last with the task "
                f"{key}; see their logs, give them more memory, or smaller blocks"
            ) from error
        raise ClusterError(
            f"{_named(suspected, features)} of {features.what} was in the hands of "
            f"every worker that was lost in the pass {name}: it needs more memory than they have, "
            "or its data is poison; look at it with `scrlm inspect --verify`, or give workers "
            "more memory, or smaller blocks"
        ) from error


def _named(blocks: list[int], features: Features) -> str:
    some = ", ".join(_rows_of(block, features) for block in blocks[:_NAMED])
    if len(blocks) == 1:
        return f"block {some}"
    return f"one of the blocks {some}" + (", ..." if len(blocks) > _NAMED else "")


def _rows_of(block: int, features: Features) -> str:
    start = block * features.block_rows
    return f"{block} (rows {start} to {min(start + features.block_rows, features.n_rows) - 1})"


def _key_of_the_killed(error: Exception) -> Any | None:
    """The task that Dask gave up on, if it did."""
    if "distributed" not in sys.modules:
        return None
    from distributed import KilledWorker

    return error.task if isinstance(error, KilledWorker) else None


def _suspects() -> list[Any]:
    """Keys of all tasks that Dask gave up on for lost workers; none if the scheduler is lost."""
    client = current_client()
    try:
        return [] if client is None else list(client.run_on_scheduler(_given_up))
    except Exception:  # whatever it is: there is an error to tell already
        return []


def _given_up(dask_scheduler: Any) -> list[Any]:
    allowed = dask_scheduler.allowed_failures
    return [key for key, state in dask_scheduler.tasks.items() if state.suspicious > allowed]


def _block_of(key: Any, features: Features, blocks: Sequence[int], tasks: str | None) -> int | None:
    """The block that a task of this run works on or reads; None for others, of other runs, too."""
    # they are called (name, position among the blocks, 0)
    if not (isinstance(key, tuple) and len(key) == 3 and isinstance(key[1], int)):
        return None
    if key[0] == tasks:
        return blocks[key[1]]
    read: Features | None = features
    while read is not None:
        if key[0] == read.array.name:
            return key[1] * read.block_rows // features.block_rows
        read = read.made_of
    return None
