"""k-means gives the same bits whatever does the work, and holds what it should while it does."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from backends import BACKENDS, backend

import scrlm_dask
from scrlm_dask.choices import Init
from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
from scrlm_dask.events import BlockDone, IterationDone, Note, PhaseFinished, PhaseStarted
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.kmeans import kmeans
from scrlm_dask.pipeline.synth import synth
from scrlm_dask.runs.lifecycle import Fit

pytestmark = pytest.mark.slow

ROWS, FEATURES, BLOCK, CLUSTERS = 3000, 24, 256, 12
LLOYD = LloydConfig(max_iter=2, tol=0.0, inertia_tol=0.0)
WAYS: tuple[Init, ...] = ("scrlm", "k-means++", "k-means||", "random")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("features") / "x.zarr"
    with backend("one thread"):
        spec = MixtureSpec(FEATURES, 10, 0.3, seed=1)
        synth(path, ROWS, spec, chunk_bytes=BLOCK * FEATURES * 4)
    return path


def ignore(event: Any) -> None:
    """Notes about odd results are no matter here."""


def every_fit(store: Path) -> dict[str, Fit]:
    """k-means from every start, weighted, sampled and spherical; SCRLM polished and refined."""
    weights = np.random.default_rng(0).random(ROWS)
    common: Any = {"block_rows": BLOCK, "collect_labels": True, "listener": ignore}
    found = {
        init: kmeans(store, KMeansConfig(CLUSTERS, init, LLOYD, seed=3), **common) for init in WAYS
    }
    sampled = LloydConfig(max_iter=2, sample=0.3, persist="no")
    config = KMeansConfig(CLUSTERS, "k-means||", sampled, "l2", seed=3)
    found["sampled"] = kmeans(store, config, sample_weight=weights, **common)
    refined = FitConfig(rho=0.5, n_clusters=20, polish=True, refine=LLOYD)
    found["refined"] = fit(store, refined, **common)
    return found


def same_bits(a: Fit, b: Fit) -> None:
    for name in ("centers", "means", "counts", "weights", "sigmas"):
        assert getattr(a.model, name).tobytes() == getattr(b.model, name).tobytes(), name
    np.testing.assert_array_equal(a.labels, b.labels)
    for one, other in zip(
        a.record["kmeans"]["iterations"], b.record["kmeans"]["iterations"], strict=True
    ):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


@pytest.fixture(scope="module")
def alone(store: Path) -> dict[str, Fit]:
    with backend("one thread"):
        return every_fit(store)


@pytest.mark.cluster
@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "one thread"])
def test_every_backend_gives_the_bits_of_one_thread(
    store: Path, alone: dict[str, Fit], name: str
) -> None:
    with backend(name):
        found = every_fit(store)
    assert found.keys() == alone.keys()
    for way, fitted in found.items():
        same_bits(fitted, alone[way])
    assert len(alone["refined"].model.centers) >= 8


@pytest.mark.cluster
def test_a_killed_worker_changes_nothing_and_old_iterations_are_forgotten(store: Path) -> None:
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
                # while blocks are done the client's own thread speaks: it cannot wait for workers
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
    # the blocks that are held, and what this iteration and the last one left: no chain of all
    assert max(tasks[-2:]) < 12 * n_blocks


def count_tasks(dask_scheduler: Any) -> int:
    return len(dask_scheduler.tasks)


def notes_of(heard: list[Any]) -> list[str]:
    return [event.text for event in heard if isinstance(event, Note)]


class TestHeldFeatures:
    def run(self, source: Any, listener: Any = ignore, **lloyd: Any) -> Fit:
        config = KMeansConfig(5, "k-means||", LloydConfig(max_iter=3, **lloyd))
        with backend("three threads"):
            return kmeans(source, config, block_rows=BLOCK, collect_labels=True, listener=listener)

    def test_which_and_why_is_said(self, store: Path) -> None:
        for persist, words, held in (
            (
                "yes",
                "features are held in the workers' memory: as asked (0.00 GB of features",
                True,
            ),
            ("auto", "features are held in the workers' memory: they fit (0.00 GB", True),
            ("no", "features are read from their store in every pass: as asked", False),
        ):
            heard: list[Any] = []
            found = self.run(store, heard.append, persist=persist)
            notes = notes_of(heard)
            assert any(note.startswith(words) for note in notes), notes
            assert ("hold" in [phase["name"] for phase in found.record["phases"]]) == held

    @pytest.mark.parametrize("persist", ["yes", "auto"])
    def test_the_store_is_not_read_again(self, store: Path, tmp_path: Path, persist: Any) -> None:
        mine = Path(shutil.copytree(store, tmp_path / "mine.zarr"))

        def remove(event: Any) -> None:
            if isinstance(event, PhaseFinished) and event.name == "hold":
                shutil.rmtree(mine)

        found = self.run(mine, remove, persist=persist)
        assert not mine.exists()
        same_bits(found, self.run(store, persist="no"))

    def test_refinement_holds_them_as_well(self, store: Path, tmp_path: Path) -> None:
        mine = Path(shutil.copytree(store, tmp_path / "mine.zarr"))

        def remove(event: Any) -> None:
            if isinstance(event, PhaseFinished) and event.name == "hold":
                shutil.rmtree(mine)

        with backend("three threads"):
            config = FitConfig(rho=0.5, refine=LloydConfig(max_iter=2, persist="yes"))
            fit(mine, config, block_rows=BLOCK, listener=remove)
        assert not mine.exists()

    def test_without_being_held_they_are_needed_in_every_pass(
        self, store: Path, tmp_path: Path
    ) -> None:
        mine = Path(shutil.copytree(store, tmp_path / "mine.zarr"))

        def remove(event: Any) -> None:
            if isinstance(event, PhaseFinished) and event.name == "survey" and mine.exists():
                shutil.rmtree(mine)

        with pytest.raises(scrlm_dask.StoreError, match="mine"):
            self.run(mine, remove, persist="no")

    def test_arrays_in_memory_are_not_held_twice(self) -> None:
        heard: list[Any] = []
        self.run(np.random.default_rng(0).normal(size=(500, 4)), heard.append, persist="yes")
        assert not [event for event in heard if isinstance(event, Note)]


def test_what_cannot_fit_is_refused_before_a_row_is_read() -> None:
    large = da.zeros((10**6, 10**6), chunks=(1000, 10**6), dtype=np.float32)
    config = KMeansConfig(10**6, "random")
    # 3 blocks and 3 sums of 4 and 8 TB for the one thread, centers in 20 TB, their shadows in 4
    words = r"k-means with 1000000 clusters needs 6000\d\.\d\d GB of a worker with 1 thread\(s\), "
    with (
        backend("one thread"),
        pytest.raises(
            scrlm_dask.InputError, match=words + "which may plan with 80% of its .* GB; give"
        ),
    ):
        kmeans(large, config)
