"""All backends give the same bits and read each block equally often."""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from backends import EVERY_BACKEND, backend

from scrlm_dask.config import FitConfig
from scrlm_dask.engine.threads import pinned_threads
from scrlm_dask.engine.tree_reduce import FAN_IN
from scrlm_dask.events import BlockDone, PhaseFinished, PhaseStarted
from scrlm_dask.kernels.distances.assignment import assign_and_sum
from scrlm_dask.kernels.distances.cluster_sums import merge_sums
from scrlm_dask.kernels.distances.points import prepare_points, squared_radius
from scrlm_dask.kernels.distances.preprocessing import block_moments, fit_map, merge_moments
from scrlm_dask.kernels.distances.pruning import prepare_with_axes
from scrlm_dask.kernels.randomness.sampling import Purpose, sample_rows
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.kernels.scrlm.extraction import extract_centers
from scrlm_dask.kernels.scrlm.loss import loss_part, losses_of, merge_losses
from scrlm_dask.kernels.scrlm.mixture import mixture_parameters
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.synth import synth

ROWS, FEATURES, BLOCK = 6000, 48, 512
# Blocks are too small to choose the number of axes for pruning by measurement.
CONFIG = FitConfig(rho=0.5, n_clusters=30, seed=2, prune=20)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("features") / "x.zarr"
    with backend("one thread"):
        synth(path, ROWS, MixtureSpec(FEATURES, 15, 0.3, seed=1), chunk_bytes=BLOCK * FEATURES * 4)
    return path


def tree(combine: Any, parts: list[Any]) -> Any:
    while len(parts) > 1:
        parts = [reduce(combine, parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
    return parts[0]


def plain_loop(x: Any) -> dict[str, Any]:
    """Compute the expected result: the passes as plain loops over blocks, without Dask."""
    starts = range(0, ROWS, BLOCK)
    blocks = [x[start : start + BLOCK] for start in starts]
    need = CONFIG.resolve(ROWS)
    rows = sample_rows(CONFIG.seed, Purpose.CANDIDATES, ROWS, need.n_candidates)
    sq_radius = squared_radius(CONFIG.rho, CONFIG.F, FEATURES)
    with pinned_threads():
        affine = fit_map(
            "standardize", FEATURES, tree(merge_moments, [block_moments(b) for b in blocks])
        )
        candidates = prepare_with_axes(x[rows], affine)
        part = tree(
            merge_losses,
            [
                loss_part(b, np.arange(s, s + len(b)), candidates, rows, [sq_radius], CONFIG.prune)
                for s, b in zip(starts, blocks, strict=True)
            ],
        )
        (losses,) = losses_of(part, [sq_radius], CONFIG.F)
        found = extract_centers(candidates, rows, losses, CONFIG.rho, CONFIG.F, 30, 1)
        centers = prepare_points(x[rows[found.picks]], affine)
        assigned = [assign_and_sum(b, centers, sq_radius, margins=True) for b in blocks]
        sums = tree(merge_sums, [a.sums for a in assigned])
    mixture = mixture_parameters(sums, centers.raw.astype(float), affine.scale, sq_radius**0.5)
    return {
        "center_rows": rows[found.picks],
        "losses": found.losses,
        "means": mixture.means,
        "weights": mixture.weights,
        "sigmas": mixture.sigmas,
        "labels": np.concatenate([a.assignment.labels for a in assigned]),
        "distances": np.concatenate([a.assignment.distances for a in assigned]),
        "margins": np.concatenate([a.assignment.margins for a in assigned]),
    }


@pytest.mark.cluster
@pytest.mark.parametrize("name", EVERY_BACKEND)
def test_every_backend_equals_the_plain_loop(store: Path, tmp_path: Path, name: str) -> None:
    expected = plain_loop(zarr.open_group(store, mode="r")["features"][:])
    with backend(name):
        result = fit(store, CONFIG, out=tmp_path / "run", block_rows=BLOCK)
    labels = zarr.open_group(tmp_path / "run" / "labels.zarr", mode="r")
    for key, value in expected.items():
        found = labels[key][:] if key in labels else getattr(result.model, key)
        assert found.dtype == value.dtype, key
        assert found.tobytes() == value.tobytes(), key
    assert len(expected["center_rows"]) >= 15


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("name", ["three threads", "two workers of two threads"])
def test_arrays_in_memory_work_on_every_backend(store: Path, name: str) -> None:
    x = zarr.open_group(store, mode="r")["features"][:]
    expected = plain_loop(x)
    with backend(name):
        result = fit(x, CONFIG, block_rows=BLOCK, collect_labels=True)
    np.testing.assert_array_equal(result.labels, expected["labels"])
    assert result.model.losses.tobytes() == expected["losses"].tobytes()


N_BLOCKS = -(-ROWS // BLOCK)


def test_each_pass_reads_each_block_once_in_threads(store: Path) -> None:
    events: list[Any] = []
    with backend("three threads"):
        result = fit(store, CONFIG, block_rows=BLOCK, listener=events.append)
    done = Counter(e.name for e in events if isinstance(e, BlockDone))
    assert done == {"survey": N_BLOCKS, "loss": N_BLOCKS, "assign": N_BLOCKS}
    check_phases(events)
    check_workers(result.record["workers"], 1)


@pytest.mark.slow
@pytest.mark.cluster
def test_each_pass_reads_each_block_once_on_workers(store: Path) -> None:
    from distributed import get_task_stream

    events: list[Any] = []
    with backend("two workers of two threads"):
        with get_task_stream() as stream:
            result = fit(store, CONFIG, block_rows=BLOCK, listener=events.append)
        # blocks are read inside these tasks, not in separate ones
        names = Counter(str(record["key"]).split("-")[0].strip("('") for record in stream.data)
        merges = sum("-merge-" in str(record["key"]) for record in stream.data)
    assert names["survey"] + names["loss"] + names["assign"] - merges == 3 * N_BLOCKS
    assert names["read"] == 0
    assert any(isinstance(e, BlockDone) for e in events)
    check_phases(events)
    check_workers(result.record["workers"], 2)


def check_phases(events: list[Any]) -> None:
    started = [e.name for e in events if isinstance(e, PhaseStarted)]
    finished = {e.name: e for e in events if isinstance(e, PhaseFinished)}
    assert started == list(finished) == ["survey", "loss", "extract", "assign"]
    for phase in ("survey", "loss", "assign"):
        assert finished[phase].blocks == N_BLOCKS
        assert finished[phase].rows == ROWS
        assert finished[phase].bytes == ROWS * FEATURES * 4


def check_workers(workers: dict[str, Any], number: int) -> None:
    assert len(workers) == number
    for report in workers.values():
        assert set(report["threads"].values()) == {1}
        assert report["peak_memory_bytes"] > 10**7


def test_without_moments_only_blocks_with_candidates_are_surveyed(store: Path) -> None:
    config = FitConfig(rho=0.5, n_candidates=3, loss_rows=4, preprocess="none")
    events: list[Any] = []
    with backend("one thread"):
        fit(store, config, block_rows=BLOCK, listener=events.append)
    done = Counter(e.name for e in events if isinstance(e, BlockDone))
    candidates = sample_rows(0, Purpose.CANDIDATES, ROWS, 3)
    subset = sample_rows(0, Purpose.LOSS_ROWS, ROWS, 4)
    assert done["survey"] == len(np.unique(candidates // BLOCK))
    assert done["loss"] == len(np.unique(subset // BLOCK))
    assert done["assign"] == -(-ROWS // BLOCK)


@pytest.mark.slow
@pytest.mark.cluster
def test_killed_worker_does_not_change_the_result(store: Path) -> None:
    from distributed import get_client

    with backend("one thread"):
        expected = fit(store, CONFIG, block_rows=BLOCK, collect_labels=True)
    victims: list[int] = []
    killed: list[int] = []

    def kill_one(event: Any) -> None:
        if isinstance(event, PhaseStarted) and event.name == "loss":
            # BlockDone events come from the client's event loop, which cannot wait for workers
            victims.extend(get_client().run(os.getpid).values())
        if not killed and isinstance(event, BlockDone) and event.name == "loss":
            killed.append(victims[0])
            os.kill(victims[0], signal.SIGKILL)

    with backend("two workers of two threads"):
        found = fit(store, CONFIG, block_rows=64, collect_labels=True, listener=kill_one)
    assert killed
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.model.center_rows, expected.model.center_rows)
