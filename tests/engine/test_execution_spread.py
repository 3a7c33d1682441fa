"""What all blocks need is with every worker that will have one, where blocks are few."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask
import pytest
from dask.delayed import Delayed
from distributed import Client, LocalCluster, futures_of

from scrlm_dask.engine.execution import _spread, persist, task, wait

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    # else copies that nobody needs any more are removed every now and then
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
@pytest.mark.parametrize(("n_blocks", "wanted"), [(2, 2), (3, 3), (6, 3), (1, 1), (7, 1)])
def test_as_many_copies_as_there_are_blocks_for(
    client: Client, shared: dict[str, Any], n_blocks: int, wanted: int
) -> None:
    _spread(shared, n_blocks)
    # the worker that prepared it need not be among those that are chosen
    assert wanted <= holders(client, shared["points"]) <= wanted + (1 < n_blocks < 3)


def test_what_is_not_computed_yet_is_not_spread(client: Client) -> None:
    _spread({"points": task("points", bytes, 10)}, 2)
    assert not client.who_has()


def test_points_that_cannot_be_prepared_are_left_to_the_blocks(client: Client) -> None:
    broken = persist(task("points", int, "no number"))
    _spread({"points": broken}, 2)
    with pytest.raises(ValueError, match="no number"):
        broken.compute()
