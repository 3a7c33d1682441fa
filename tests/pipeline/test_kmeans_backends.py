"""k-means gives the same bits on every backend and keeps features in memory as requested."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from backends import EVERY_BACKEND, backend
from messages import expecting

import scrlm_dask
from scrlm_dask.choices import Init
from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
from scrlm_dask.events import BlockDone, IterationDone, Note, PhaseFinished, PhaseStarted
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.kmeans import kmeans
from scrlm_dask.pipeline.synth import synth
from scrlm_dask.runs.lifecycle import FitResult

pytestmark = pytest.mark.slow

ROWS, FEATURES, BLOCK, CLUSTERS = 3000, 24, 256, 12
LLOYD = LloydConfig(max_iter=2, tol=0.0, inertia_tol=0.0)
INITS: tuple[Init, ...] = ("scrlm", "k-means++", "k-means||", "random")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("features") / "x.zarr"
    with backend("one thread"):
        spec = MixtureSpec(FEATURES, 10, 0.3, seed=1)
        synth(path, ROWS, spec, chunk_bytes=BLOCK * FEATURES * 4)
    return path


def ignore(event: Any) -> None:
    """Ignore events; tests of notes pass their own listener."""


def every_fit(store: Path) -> dict[str, FitResult]:
    """Run k-means with every init, weighted, sampled and spherical; and SCRLM with refinement."""
    weights = np.random.default_rng(0).random(ROWS)
    common: Any = {"block_rows": BLOCK, "collect_labels": True, "listener": ignore}
    found = {
        init: kmeans(store, KMeansConfig(CLUSTERS, init, LLOYD, seed=3), **common) for init in INITS
    }
    sampled = LloydConfig(max_iter=2, sample=0.3, persist="no")
    config = KMeansConfig(CLUSTERS, "k-means||", sampled, "l2", seed=3)
    found["sampled"] = kmeans(store, config, sample_weight=weights, **common)
    refined = FitConfig(rho=0.5, n_clusters=20, polish=True, refine=LLOYD)
    found["refined"] = fit(store, refined, **common)
    return found


def same_bits(a: FitResult, b: FitResult) -> None:
    for name in ("centers", "means", "counts", "weights", "sigmas"):
        assert getattr(a.model, name).tobytes() == getattr(b.model, name).tobytes(), name
    np.testing.assert_array_equal(a.labels, b.labels)
    for one, other in zip(
        a.record["kmeans"]["iterations"], b.record["kmeans"]["iterations"], strict=True
    ):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


@pytest.fixture(scope="module")
def one_thread(store: Path) -> dict[str, FitResult]:
    with backend("one thread"):
        return every_fit(store)


@pytest.mark.cluster
@pytest.mark.parametrize("name", EVERY_BACKEND[1:])
def test_every_backend_gives_the_bits_of_one_thread(
    store: Path, one_thread: dict[str, FitResult], name: str
) -> None:
    with backend(name):
        found = every_fit(store)
    assert found.keys() == one_thread.keys()
    for case, fitted in found.items():
        same_bits(fitted, one_thread[case])
    assert len(one_thread["refined"].model.centers) >= 8


@pytest.mark.cluster
def test_killed_worker_does_not_change_the_result(store: Path) -> None:
    from distributed import get_client

    lloyd = LloydConfig(max_iter=12, tol=0.0, inertia_tol=0.0)
    config, block_rows = KMeansConfig(40, "random", lloyd, seed=5), 160
    with backend("one thread"):
        expected = kmeans(store, config, block_rows=block_rows, collect_labels=True)
    n_blocks = -(-ROWS // block_rows)
    steps, victims, killed, tasks = 0, [], [], []

    def watch(event: Any) -> None:
        nonlocal steps
        if isinstance(event, IterationDone):
            tasks.append(get_client().run_on_scheduler(count_tasks))
        if isinstance(event, PhaseStarted) and event.name == "kmeans-step":
            steps += 1
            if steps == 6:
                # BlockDone events come from the client's event loop, which must not wait.
                victims.extend(get_client().run(os.getpid).values())
        in_step = isinstance(event, BlockDone) and event.name == "kmeans-step"
        if in_step and steps == 6 and not killed:
            killed.append(victims[0])
            os.kill(victims[0], signal.SIGKILL)

    with backend("two workers of two threads"):
        found = kmeans(store, config, block_rows=block_rows, collect_labels=True, listener=watch)
    assert killed
    assert len(tasks) == 12
    same_bits(found, expected)
    # Persisted blocks and tasks of the last two iterations; older iterations are released.
    assert max(tasks[-2:]) < 12 * n_blocks


def count_tasks(dask_scheduler: Any) -> int:
    return len(dask_scheduler.tasks)


def notes_of(events: list[Any]) -> list[str]:
    return [event.text for event in events if isinstance(event, Note)]


class MovedAway:
    """Move a store away once its features are persisted, and back after the last phase.

    The end of a run compares the files of the store with those at the start, so the store must be
    there again, with the same modification times.
    """

    def __init__(self, store: Path) -> None:
        self.store = store
        self.phases: list[str] = []  # phases that ended without the store

    def __call__(self, event: Any) -> None:
        if not isinstance(event, PhaseFinished):
            return
        hidden = self.store.with_name("hidden.zarr")
        if event.name == "hold":
            self.store.rename(hidden)
        elif hidden.exists():
            self.phases.append(event.name)
            if event.name == "assign":
                hidden.rename(self.store)


class TestPersistedFeatures:
    def run(self, source: Any, listener: Any = ignore, **lloyd: Any) -> FitResult:
        config = KMeansConfig(5, "k-means||", LloydConfig(max_iter=3, **lloyd))
        with backend("three threads"):
            return kmeans(source, config, block_rows=BLOCK, collect_labels=True, listener=listener)

    def test_note_gives_the_choice_and_the_reason(self, store: Path) -> None:
        notes = set()
        for persist, persisted in (("yes", True), ("auto", True), ("no", False)):
            events: list[Any] = []
            found = self.run(store, events.append, persist=persist)
            (note,) = notes_of(events)
            assert ("0.00 GB" in note) == persisted
            assert ("hold" in [phase["name"] for phase in found.record["phases"]]) == persisted
            notes.add(note)
        assert len(notes) == 3

    @pytest.mark.parametrize("persist", ["yes", "auto"])
    def test_store_is_not_read_again(self, store: Path, tmp_path: Path, persist: Any) -> None:
        away = MovedAway(Path(shutil.copytree(store, tmp_path / "copy.zarr")))
        found = self.run(away.store, away, persist=persist)
        assert away.phases[-1] == "assign"
        same_bits(found, self.run(store, persist="no"))

    def test_refinement_persists_features(self, store: Path, tmp_path: Path) -> None:
        away = MovedAway(Path(shutil.copytree(store, tmp_path / "copy.zarr")))
        with backend("three threads"):
            config = FitConfig(rho=0.5, refine=LloydConfig(max_iter=2, persist="yes"))
            fit(away.store, config, block_rows=BLOCK, listener=away)
        assert away.phases[-1] == "assign"

    def test_store_removed_during_the_run_is_rejected(self, store: Path, tmp_path: Path) -> None:
        copy = Path(shutil.copytree(store, tmp_path / "copy.zarr"))

        def remove(event: Any) -> None:
            if isinstance(event, PhaseFinished) and event.name == "hold":
                shutil.rmtree(copy)

        with pytest.raises(scrlm_dask.errors.MissingError, match=expecting("copy.zarr")):
            self.run(copy, remove, persist="yes")

    def test_features_that_are_not_persisted_are_read_in_every_pass(
        self, store: Path, tmp_path: Path
    ) -> None:
        copy = Path(shutil.copytree(store, tmp_path / "copy.zarr"))

        def remove(event: Any) -> None:
            if isinstance(event, PhaseFinished) and event.name == "survey" and copy.exists():
                shutil.rmtree(copy)

        with pytest.raises(scrlm_dask.errors.StoreError, match=expecting("copy.zarr")):
            self.run(copy, remove, persist="no")

    def test_arrays_in_memory_are_not_copied(self) -> None:
        events: list[Any] = []
        self.run(np.random.default_rng(0).normal(size=(500, 4)), events.append, persist="yes")
        assert not [event for event in events if isinstance(event, Note)]


def test_shortage_of_memory_is_reported_before_reading() -> None:
    large = da.zeros((10**6, 10**6), chunks=(1000, 10**6), dtype=np.float32)
    config = KMeansConfig(10**6, "random")
    # For one thread: 3 blocks of 4 TB, 3 sums of 8 TB, centers of 20 TB, their projections of 4 TB.
    need = r"(?=.*\b6000\d\.\d\d GB)"
    with (
        backend("one thread"),
        pytest.raises(
            scrlm_dask.errors.InputError, match=expecting(1000000, "1 thread", "80%") + need
        ),
    ):
        kmeans(large, config)
