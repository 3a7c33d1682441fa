"""Several small blocks per task: the same bits with fewer tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

from scrlm_dask import FitConfig, KMeansConfig, fit, kmeans
from scrlm_dask.config import LloydConfig
from scrlm_dask.engine import block_layout
from scrlm_dask.engine.block_layout import Layout, blocks_per_task
from scrlm_dask.engine.checkpointing import MAX_GROUPS, SavedGroups
from scrlm_dask.engine.execution import Execution, Pass
from scrlm_dask.engine.features import as_features, as_weights, persist_features
from scrlm_dask.engine.tree_reduce import combine_parts, tree_reduce
from scrlm_dask.errors import UnusableRowsError
from scrlm_dask.events import BlockDone, Note, warn
from scrlm_dask.passes.survey import survey_pass
from scrlm_dask.pipeline.predict import predict
from scrlm_dask.storage.checkpoints import Checkpoint
from scrlm_dask.storage.locations import locate

ROWS, BLOCK = 1003, 10  # 101 blocks, so that the last batch is incomplete
CONFIG = FitConfig(rho=0.4, n_candidates=64, refine=LloydConfig(max_iter=3, persist="no"))


@dataclass(frozen=True)
class Total:
    value: float
    last: int


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_layout, "_MIN_BATCHES", 2)
    monkeypatch.setattr(block_layout, "_BATCH_SIZES", (8,))


def rows() -> np.ndarray[Any, np.dtype[np.float32]]:
    rng = np.random.default_rng(5)
    centers = rng.normal(size=(6, 4)) * 5
    drawn = centers[rng.integers(6, size=ROWS)] + rng.normal(size=(ROWS, 4))
    return drawn.astype(np.float32)


def pair(a: Any, b: Any) -> Any:
    return (a, b)


def test_only_many_small_blocks_are_batched() -> None:
    assert blocks_per_task(263, 3200) == 1
    assert blocks_per_task(264, 3200) == 8
    assert blocks_per_task(5000, 3200) == 64
    assert blocks_per_task(20_000, 3200) == 512
    assert blocks_per_task(10**6, 2**20) == 8
    assert blocks_per_task(10**6, 2**20 + 1) == 1
    # so that a group of a checkpoint has the same blocks with and without batches
    assert block_layout._MIN_BATCHES > MAX_GROUPS


@pytest.mark.parametrize("block_bytes", [300_000, 1_000_000])
def test_memory_of_a_batch_is_planned(block_bytes: int) -> None:
    layout = Layout(10**6, block_bytes // 400, 4, 100, 100)
    assert layout.blocks_per_task == 8
    # the rows, their concatenation, and encoded and decoded chunks; a batch may start in a chunk
    assert 8 * block_bytes * 4 <= layout.reading_bytes <= 9 * block_bytes * 4


@pytest.mark.parametrize("fan_in", [2, 8])
@pytest.mark.parametrize("size", [8, 64])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 64, 65, 513, 1003])
def test_batches_are_subtrees_of_the_reduction(n: int, size: int, fan_in: int) -> None:
    from dask import delayed

    numbers = list(range(n))
    whole = combine_parts(numbers, pair, fan_in)
    parts = [combine_parts(numbers[i : i + size], pair, fan_in) for i in range(0, n, size)]
    assert combine_parts(parts, pair, fan_in) == whole
    tree = tree_reduce([delayed(number) for number in numbers], pair, "pairs", fan_in)
    assert tree.compute(scheduler="sync") == whole


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numpy", "dask", "zarr"])
def test_batches_do_not_change_a_bit(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    x = source(kind, tmp_path)
    expected = fit(x, CONFIG, block_rows=BLOCK, collect_labels=True)
    request.getfixturevalue("batches")
    assert as_features(x, BLOCK).blocks_per_chunk == 8
    found = fit(x, CONFIG, block_rows=BLOCK, collect_labels=True)
    np.testing.assert_array_equal(found.labels, expected.labels)
    for name in ("centers", "losses", "weights", "sigmas"):
        one, other = getattr(found.model, name), getattr(expected.model, name)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes(), name


@pytest.mark.slow
def test_batches_do_not_change_weighted_sampled_kmeans(request: pytest.FixtureRequest) -> None:
    weights = np.linspace(1, 2, ROWS)
    config = KMeansConfig(n_clusters=5, lloyd=LloydConfig(max_iter=6, sample=0.2))
    expected = kmeans(rows(), config, sample_weight=weights, block_rows=BLOCK, collect_labels=True)
    request.getfixturevalue("batches")
    found = kmeans(rows(), config, sample_weight=weights, block_rows=BLOCK, collect_labels=True)
    np.testing.assert_array_equal(found.labels, expected.labels)
    assert found.model.centers.tobytes() == expected.model.centers.tobytes()


# with 30 clusters, the blocks of k-means have 60 rows: as many bytes as the sums of the clusters
@pytest.mark.parametrize(("n_clusters", "chunk_rows"), [(2, 80), (30, 480)])
@pytest.mark.usefixtures("batches")
def test_a_task_writes_one_chunk_of_labels(
    n_clusters: int, chunk_rows: int, tmp_path: Path
) -> None:
    config = KMeansConfig(n_clusters, "random", LloydConfig(max_iter=1), margins=True)
    model = kmeans(rows(), config, out=tmp_path / "run", block_rows=BLOCK).model
    predict(model, rows(), out=tmp_path / "labels.zarr", block_rows=BLOCK)
    nearest = np.square(rows()[:, None] - model.centers).sum(2).argmin(1)
    for path, per_chunk in (("run/labels.zarr", chunk_rows), ("labels.zarr", 80)):
        for name in ("labels", "distances", "margins"):
            array = zarr.open_array(tmp_path / path / name, mode="r")
            assert array.chunks == (per_chunk,)
            assert array.nchunks_initialized == -(-ROWS // per_chunk)
            assert not np.isnan(array[:]).any()
        labels = zarr.open_array(tmp_path / path / "labels", mode="r")
        np.testing.assert_array_equal(labels[:], nearest)


def source(kind: str, folder: Path) -> Any:
    """Return the rows as an array or a store with chunks of other sizes than the blocks."""
    if kind == "numpy":
        return rows()
    if kind == "dask":
        return da.from_array(rows(), chunks=(7, 4))
    path: Any = {} if kind == "zarr in memory" else folder / "features.zarr"
    array = zarr.create_array(path, shape=(ROWS, 4), chunks=(7, 4), dtype="float32")
    array[:] = rows()
    return array if kind == "zarr in memory" else path


def sum_part(block: Any, start: int) -> tuple[float, int]:
    return float(block.sum()), start


@pytest.mark.usefixtures("batches")
def test_a_batch_is_one_task_with_one_event() -> None:
    seen: list[Any] = []
    features = persist_features(as_features(rows(), BLOCK))
    with Execution(seen.append) as execution:
        execution.run(Pass("sums", sum_part, pair), features, {})
        execution.run(Pass("sums", sum_part, pair), features, {}, blocks=[3, 100])
    done = [event.rows for event in seen if isinstance(event, BlockDone)]
    assert sorted(done) == [3, 10, ROWS - 12 * 80, *[80] * 12]


CHOSEN = [0, 1, 2, *range(5, 101, 2), 100]  # with the last block, which is smaller


def weighted_part(block: Any, start: int, weights: Any) -> tuple[float, float, int]:
    return float(block.sum()), float(weights @ block[:, 0]), start


@pytest.mark.parametrize("persisted", [False, True])
@pytest.mark.parametrize("kind", ["numpy", "dask", "zarr", "zarr in memory"])
@pytest.mark.usefixtures("batches")
def test_chosen_blocks_are_batched(kind: str, persisted: bool, tmp_path: Path) -> None:
    x, weights, seen = rows(), np.linspace(1, 2, ROWS), list[Any]()
    features = as_features(source(kind, tmp_path), BLOCK)
    features = persist_features(features) if persisted else features
    column = as_weights(weights, features)
    assert column is not None
    pass_ = Pass("sums", weighted_part, pair, fan_in=2)
    with Execution(seen.append) as execution:
        found = execution.run(
            pass_,
            features,
            {},
            blocks=CHOSEN,
            columns={"weights": features.choose(column, CHOSEN)},
        )
    starts = [number * BLOCK for number in CHOSEN]
    parts = [weighted_part(x[i : i + BLOCK], i, weights[i : i + BLOCK].copy()) for i in starts]
    assert found == combine_parts(parts, pair, 2)
    done = [event.rows for event in seen if isinstance(event, BlockDone)]
    assert sorted(done) == sorted(
        [*[8 * BLOCK] * (len(CHOSEN) // 8), 10 * (len(CHOSEN) % 8 - 1) + 3]
    )


@pytest.mark.parametrize("kind", ["numpy", "dask", "npy", "zarr"])
@pytest.mark.usefixtures("batches")
def test_weights_have_the_batches_of_the_rows(kind: str, tmp_path: Path) -> None:
    features, values = as_features(rows(), BLOCK), np.linspace(1, 2, ROWS)
    given: Any = values
    if kind == "dask":
        given = da.from_array(values, chunks=7)
    elif kind == "npy":
        given = tmp_path / "w.npy"
        np.save(given, values)
    elif kind == "zarr":
        given = tmp_path / "w.zarr"
        zarr.create_array(given, shape=(ROWS,), chunks=(7,), dtype="float64")[:] = values
    found = as_weights(given, features)
    assert found is not None
    assert found.chunks == ((*[80] * 12, 43), (1,))
    np.testing.assert_array_equal(found.compute()[:, 0], values)


def test_error_in_a_chosen_batch_names_its_row_and_block(
    request: pytest.FixtureRequest,
) -> None:
    x = rows()
    x[752, 1] = np.nan
    request.getfixturevalue("batches")
    with (
        Execution(warn) as execution,
        pytest.raises(UnusableRowsError, match=r"row 752 \(block 75\)"),
    ):
        survey_pass(execution, as_features(x, BLOCK), np.array([752]), True, CHOSEN)


def stop_part(block: Any, start: int) -> Total:
    if start == 890:
        raise OSError("stop")
    return Total(float(block.sum()), start)


def whole_part(block: Any, start: int) -> Total:
    return Total(float(block.sum()), start)


def add_totals(a: Total, b: Total) -> Total:
    return Total(a.value + b.value, b.last)


@pytest.mark.parametrize("batched_first", [True, False])
def test_resume_of_chosen_blocks_with_other_batches(
    batched_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, chosen = Checkpoint(locate(tmp_path / "saved")), [*range(0, 90), 95, 100]

    def attempt(part: Any, batched: bool) -> tuple[Any, dict[str, int]]:
        with monkeypatch.context() as patch:
            if batched:
                patch.setattr(block_layout, "_MIN_BATCHES", 5)
                patch.setattr(block_layout, "_BATCH_SIZES", (8,))
            features = as_features(rows(), BLOCK)
            assert features.blocks_per_task(len(chosen)) == (8 if batched else 1)
            pass_ = Pass("sums", part, add_totals, checkpoint_types=(Total,))
            with dask.config.set(scheduler="sync"), Execution(warn, saved) as execution:
                return execution.run(pass_, features, {}, blocks=chosen), (
                    execution.checkpoints.reused
                )

    with pytest.raises(OSError, match="stop"):
        attempt(stop_part, batched_first)
    assert (tmp_path / "saved" / "sums-1").exists()
    found, reused = attempt(whole_part, not batched_first)
    expected = [whole_part(rows()[i * BLOCK : i * BLOCK + BLOCK], i * BLOCK) for i in chosen]
    assert found == combine_parts(expected, add_totals)
    assert reused["sums"] > 0


@pytest.mark.usefixtures("batches")
def test_the_blocks_of_a_loaded_group_are_those_of_its_batches(tmp_path: Path) -> None:
    saved = SavedGroups(Checkpoint(locate(tmp_path)), (), None, 8, 101)
    assert saved.blocks_of(range(0, 2)) == range(0, 16)
    assert saved.blocks_of(range(12, 13)) == range(96, 101)
    assert saved.output_file(0) != SavedGroups(saved.folder, ()).output_file(0)


def test_many_small_blocks_are_reported_once_with_a_better_number_of_rows() -> None:
    seen: list[Any] = []
    features = as_features(np.zeros((2001, 2), np.float32), 1)
    with Execution(seen.append) as execution:
        for _ in range(2):
            execution.run(Pass("sums", sum_part, pair), features, {}, blocks=[0])
    (note,) = [event for event in seen if isinstance(event, Note) and event.warning]
    assert "2001 blocks" in note.text
    assert "--block-rows" in note.text
