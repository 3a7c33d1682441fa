"""Features are kept in memory if they fit and are read more than once."""

from __future__ import annotations

import re
from typing import Any

import dask.array as da
import numpy as np
import pytest
from backends import backend
from messages import expecting

from scrlm_dask.engine.block_layout import Layout
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import as_features
from scrlm_dask.engine.workers import WorkerMemory, worker_memories
from scrlm_dask.events import Note, PhaseFinished
from scrlm_dask.planning.memory import EVEN_SHARE, kmeans_memory
from scrlm_dask.planning.persist import (
    PERSISTED_AXES,
    SPILL_SHARE,
    choose_persist,
    persist_or_stream,
)


def notes_of(events: list[Any]) -> list[str]:
    return [event.text for event in events if isinstance(event, Note)]


@pytest.mark.parametrize(
    ("free_bytes", "n_features", "axes"),
    [(1e12, 640, PERSISTED_AXES), (2.65e9, 640, 0), (1e12, 200, 0)],
)
def test_coordinates_are_persisted_if_they_fit_and_are_small(
    free_bytes: float, n_features: int, axes: int
) -> None:
    layout = Layout(1_000_000, n_features, 4, 10_000, 10_000)
    plan = kmeans_memory(layout, n_clusters=100, n_workers=1)
    need = plan.worker_bytes(1, 0)
    limit = int((free_bytes / EVEN_SHARE + need) / SPILL_SHARE)
    choice = choose_persist(layout, plan, [WorkerMemory(limit, 1)], "yes", 10)
    assert (choice.persisted, choice.axes) == (True, axes)


def test_features_that_do_not_fit_are_read_from_their_store() -> None:
    # A petabyte that is never read: only its shape is used.
    large = da.zeros((10**9, 250_000), chunks=(10**6, 250_000), dtype=np.float32)
    features = as_features(large)
    events: list[Any] = []
    with backend("three threads"), Execution(events.append) as execution:
        plan, workers = kmeans_memory(features.layout, 5, 1), worker_memories()
        assert persist_or_stream(execution, features, plan, workers, "auto", 10) is features
    assert re.search(expecting("1000000.00 GB"), notes_of(events)[-1])


def test_features_that_are_read_once_are_not_persisted() -> None:
    events: list[Any] = []
    features = as_features(da.zeros((100, 4), chunks=(50, 4)))
    with backend("three threads"), Execution(events.append) as execution:
        plan, workers = kmeans_memory(features.layout, 5, 1), worker_memories()
        assert choose_persist(features.layout, plan, workers, "auto", 2).persisted
        assert persist_or_stream(execution, features, plan, workers, "auto", 1) is features
    (note,) = notes_of(events)
    assert "GB" not in note  # memory is not the reason


@pytest.mark.parametrize(("spare", "persisted"), [(1.01, True), (0.99, False)])
def test_features_are_persisted_if_they_fit_into_the_free_memory(
    spare: float, persisted: bool
) -> None:
    layout = Layout(1_000_000, 10, 4, 10_000, 10_000)
    plan = kmeans_memory(layout, n_clusters=100, n_workers=2)
    half = spare * layout.total_bytes / EVEN_SHARE / 2
    workers = [WorkerMemory(int((half + plan.worker_bytes(n, 0)) / SPILL_SHARE), n) for n in (1, 3)]
    assert choose_persist(layout, plan, workers, "auto", 2).persisted == persisted
    assert choose_persist(layout, plan, workers, "yes", 2).persisted
    assert not choose_persist(layout, plan, workers, "no", 2).persisted
    assert not choose_persist(layout, plan, workers, "auto", 1).persisted
    unlimited = [workers[0], WorkerMemory(None, 1)]
    assert choose_persist(layout, plan, unlimited, "auto", 2).persisted


def test_persisted_features_are_read_once() -> None:
    reads: list[int] = []

    def read(block: np.ndarray) -> np.ndarray:
        reads.append(len(block))
        return block

    source = da.zeros((6, 2), chunks=(4, 2)).map_blocks(read, dtype=float, meta=np.empty((0, 0)))
    features = as_features(source)
    events: list[Any] = []
    with backend("one thread"), Execution(events.append) as execution:
        plan, workers = kmeans_memory(features.layout, 2, 1), worker_memories()
        persisted = persist_or_stream(execution, features, plan, workers, "yes", 1)
        assert sorted(reads) == [2, 4]
        np.testing.assert_array_equal(persisted.array.compute(), np.zeros((6, 2)))
        assert sorted(reads) == [2, 4]
        assert persist_or_stream(execution, persisted, plan, workers, "yes", 1) is persisted
    assert persisted.in_memory
    phases = [(e.name, e.rows, e.bytes) for e in events if isinstance(e, PhaseFinished)]
    assert phases == [("hold", 6, 6 * 2 * 8)]
    assert len(notes_of(events)) == 1
