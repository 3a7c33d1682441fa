"""Shared values are copied to the workers before the blocks start, if blocks are few."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import pytest
from backends import backend
from dask.delayed import Delayed
from distributed import Client, LocalCluster, futures_of

from scrlm_dask.engine import execution
from scrlm_dask.engine.execution import _spread, as_task, persist, task, wait
from scrlm_dask.storage.locations import Location

pytestmark = pytest.mark.cluster


def test_shared_values_are_not_searched_for_tasks() -> None:
    """Dask would search all parts of a table: for 5000 files, this took most of an ingest."""
    inner = dask.delayed(1)
    with backend("one thread"):
        given = as_task(Location("x", inner)).compute()  # type: ignore[arg-type]
    assert given.options is inner


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    # the active memory manager would remove copies during the test
    kept = {"distributed.scheduler.active-memory-manager.start": False}
    with (
        dask.config.set(kept),
        LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def shared(client: Client) -> dict[str, Any]:
    return {"points": wait(persist(task("points", bytes, 1000))), "radius": 2.0}


def holders(client: Client, value: Delayed) -> int:
    (future,) = futures_of(value)
    return len(client.who_has([future])[future.key])


@pytest.mark.slow
@pytest.mark.parametrize(("n_blocks", "expected"), [(2, 2), (3, 3), (6, 3), (1, 1), (7, 1)])
def test_number_of_copies(
    client: Client,
    shared: dict[str, Any],
    n_blocks: int,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execution, "_SPREAD_SECONDS", 300)  # a busy machine needs more time
    _spread(shared, n_blocks)
    # the worker that prepared the value may be one more
    assert expected <= holders(client, shared["points"]) <= expected + (1 < n_blocks < 3)


def test_pending_values_are_not_copied(client: Client) -> None:
    pending = task("points", bytes, 10)
    _spread({"points": pending}, 2)
    assert pending.key not in client.who_has()


def test_failed_preparation_is_left_to_the_blocks(client: Client) -> None:
    broken = persist(task("points", int, "abc"))
    _spread({"points": broken}, 2)
    with pytest.raises(ValueError, match="abc"):
        broken.compute()
