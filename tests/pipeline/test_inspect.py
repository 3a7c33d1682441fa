"""Inspection: all backends give the bits of a plain loop, and damaged blocks are reported."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from functools import reduce
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from backends import BACKENDS, backend
from messages import expecting
from numpy.typing import NDArray

from scrlm_dask.engine.block_layout import blocks_per_task
from scrlm_dask.engine.threads import pinned_threads
from scrlm_dask.engine.tree_reduce import FAN_IN
from scrlm_dask.errors import InputError, MissingError, UnusableRowsError
from scrlm_dask.events import BlockDone, Note, PhaseFinished
from scrlm_dask.kernels.distances.points import radius
from scrlm_dask.kernels.randomness.sampling import Purpose, sample_rows
from scrlm_dask.kernels.statistics.row_statistics import (
    Statistics,
    finish_statistics,
    merge_statistics,
    statistics_part,
)
from scrlm_dask.pipeline.inspect import inspect_rows, verify_store
from scrlm_dask.pipeline.stores import FeatureStore, write_features

N, P, BLOCK = 6000, 48, 512
TRUTH = np.arange(N) % 9 - 1


@pytest.fixture(scope="module")
def rows() -> NDArray[np.float32]:
    rng = np.random.default_rng(4)
    x = (3 + rng.normal(size=(40, P))[rng.integers(40, size=N)]).astype(np.float32)
    x += rng.normal(0, 0.1, size=x.shape).astype(np.float32)
    x[4000:4100] = x[17]
    x[5500, 3] = np.nan
    x[600, 7] = np.inf
    return x


@pytest.fixture(scope="module")
def store(rows: NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspected") / "x.zarr"
    with backend("three threads"):
        source = da.from_array(rows, chunks=(1000, 20))
        write_features(source, path, labels=TRUTH, chunk_bytes=BLOCK * P * 4)
    return path


def plain_loop(x: NDArray[np.float32], preprocess: Any, reach: float) -> Statistics:
    """Compute the statistics without Dask, merging parts of blocks in the order of the tree."""
    sampled = sample_rows(0, Purpose.INSPECTED_ROWS, N, 1024)
    with pinned_threads():
        parts = [
            statistics_part(x[start : start + BLOCK], start, sampled, preprocess == "l2")
            for start in range(0, N, BLOCK)
        ]
        while len(parts) > 1:
            parts = [
                reduce(merge_statistics, parts[i : i + FAN_IN])
                for i in range(0, len(parts), FAN_IN)
            ]
        return finish_statistics(parts[0], preprocess, reach)


def bits(value: Any) -> Any:
    """Return all fields of a result, arrays as bytes."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if hasattr(value, "__dataclass_fields__"):
        return {name: bits(getattr(value, name)) for name in value.__dataclass_fields__}
    return repr(value)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_gives_the_bits_of_the_plain_loop(
    store: Path, rows: NDArray[np.float32], name: str
) -> None:
    preprocess: Any = "l2" if name == "three threads" else "standardize"
    events: list[Any] = []
    with backend(name):
        result = inspect_rows(
            store, rho=0.4, preprocess=preprocess, block_rows=BLOCK, listener=events.append
        )
        assert verify_store(store) == ()
    expected = plain_loop(rows, preprocess, radius(0.4, 2.5, P))
    assert bits(result.statistics) == bits(expected)
    assert result.statistics.unusable.first == (600, 5500)
    assert result.statistics.duplicates.groups[0] == (17, 101)
    assert result.classes is not None
    assert (result.classes.n_classes, result.classes.outlier_share) == (8, np.mean(TRUTH == -1))
    if "thread" in name and "worker" not in name:  # events of workers may arrive late
        done = Counter(event.name for event in events if isinstance(event, BlockDone))
        assert done == {"inspect": -(-N // BLOCK)}  # one read


@pytest.mark.parametrize("zeros", [0, 2])
def test_rows_of_zeros_are_reported_with_a_remedy(tmp_path: Path, zeros: int) -> None:
    rows = np.ones((6, 2), np.float32)
    rows[:zeros] = 0.0
    write_features(rows, tmp_path / "x.zarr")
    events: list[Any] = []
    report = FeatureStore(tmp_path / "x.zarr").statistics(listener=events.append)
    notes = [event for event in events if isinstance(event, Note)]
    assert (report.statistics.zero_rows, len(notes)) == (zeros, zeros > 0)
    for note in notes:
        assert re.search(expecting("2 of 6 rows", "scrlm ingest --zeros drop"), note.text)
        assert not note.warning  # such rows may be correct


def test_chunking_changes_only_rounding(store: Path) -> None:
    with backend("three threads"):
        one = inspect_rows(store, rho=0.4, block_rows=700).statistics
        other = inspect_rows(store, rho=0.4, block_rows=N).statistics
    assert one.duplicates == other.duplicates
    assert one.unusable == other.unusable
    assert one.norms is not None
    assert other.norms is not None
    assert one.norms.quantiles == other.norms.quantiles
    assert one.spectrum is not None
    assert other.spectrum is not None
    np.testing.assert_allclose(one.spectrum.variances, other.spectrum.variances, rtol=1e-8)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"preprocess": "whiten"}, ("preprocess", "'whiten'", "standardize", "l2")),
        ({"rho": -1.0}, ("rho", "-1.0")),
        ({"rho": float("nan")}, ("rho", "nan")),
        ({"rho": 1.0, "F": 0.0}, ("F", "0.0")),
    ],
)
def test_invalid_options(store: Path, options: dict[str, Any], facts: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=expecting(*facts)):
        inspect_rows(store, **options)


@pytest.mark.parametrize(
    ("labels", "facts"),
    [(np.zeros(7, np.int32), (7, 20)), (np.zeros((20, 2), np.int32), ("(20, 2)",))],
)
def test_arrays_named_labels_that_are_not_labels(
    tmp_path: Path, labels: Any, facts: tuple[Any, ...]
) -> None:
    zarr.create_group(str(tmp_path / "g"))
    for name, values in (("features", np.ones((20, 3), np.float32)), ("labels", labels)):
        zarr.create_array(
            str(tmp_path / "g" / name), data=values, config={"write_empty_chunks": True}
        )
    events: list[Any] = []
    with backend("one thread"):
        result = inspect_rows(tmp_path / "g", listener=events.append)
    assert result.classes is None
    (note,) = [event.text for event in events if isinstance(event, Note)]
    assert re.search(expecting(*facts), note)


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.cluster
def test_every_damaged_block_is_named(store: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(store, tmp_path / "x.zarr"))
    flip(path / "features/c/2/0", 1000)  # detected by the checksum
    (path / "features/c/5/0").unlink()
    flip(path / "labels/c/7", 3)
    flip(path / "digests/c/9/0", 5)
    # A rewritten chunk has a valid checksum; only the digest detects the change.
    features = zarr.open_array(path / "features", mode="r+")
    features[11 * BLOCK] = 0.0
    with backend("two workers of two threads"):
        found = verify_store(path)
    assert [damage.block for damage in found] == [2, 5, 7, 9, 11]
    assert [(d.first_row, d.last_row) for d in found[::4]] == [(1024, 1535), (5632, 5999)]
    facts = [
        (1024, 1535, path / "features", "checksum"),
        ("c/5/0", path / "features"),
        ("checksum", path / "labels"),
        ("checksum", path / "digests"),
        ("block 11", path, "digest"),
    ]
    for damage, expected in zip(found, facts, strict=True):
        assert re.search(expecting(*expected), damage.reason)


def test_damaged_blocks_are_named_among_blocks_that_are_read_together(tmp_path: Path) -> None:
    path, rows = tmp_path / "x.zarr", np.arange(4 * 541, dtype=np.float32).reshape(541, 4)
    write_features(rows, path, chunk_bytes=32, labels=np.arange(541) % 3)  # two rows per block
    assert blocks_per_task(271, 32) == 8
    with backend("three threads"):
        assert verify_store(path) == ()
        (path / "features/c/5/0").unlink()
        features = zarr.open_array(path / "features", mode="r+")
        features[[260, 262, 540]] = -1.0  # of the blocks 130, 131 and 270
        found = verify_store(path)
    expected = [(5, 10, 11), (130, 260, 261), (131, 262, 263), (270, 540, 540)]
    assert [(d.block, d.first_row, d.last_row) for d in found] == expected
    for damage in found[1:]:
        assert re.search(expecting(f"block {damage.block}", "digest"), damage.reason)


@pytest.mark.parametrize("name", ["features", "labels"])
def test_input_that_changes_during_the_statistics(store: Path, tmp_path: Path, name: str) -> None:
    path = Path(shutil.copytree(store, tmp_path / "x.zarr"))

    def change(event: object) -> None:
        if isinstance(event, PhaseFinished):
            zarr.open_array(path / name, mode="r+")[0] = 5

    with (
        backend("three threads"),
        pytest.raises(UnusableRowsError, match=rf"the {name} .*{path}"),
    ):
        inspect_rows(path, listener=change)


@pytest.mark.parametrize("chunk_rows", [100, 64])
def test_stores_of_other_writers_are_verified_by_chunk(tmp_path: Path, chunk_rows: int) -> None:
    array = zarr.create_array(
        str(tmp_path / "a"), shape=(1000, 8), chunks=(chunk_rows, 8), dtype="float32"
    )
    array[:] = np.random.default_rng(0).normal(size=(1000, 8))
    with backend("three threads"):
        assert verify_store(tmp_path / "a") == ()
        (tmp_path / "a/c/3/0").unlink()
        (tmp_path / "a/c/8/0").write_bytes(b"")
        found = verify_store(tmp_path / "a")
    expected = [(n, n * chunk_rows, (n + 1) * chunk_rows - 1) for n in (3, 8)]
    assert [(d.block, d.first_row, d.last_row) for d in found] == expected


@pytest.mark.slow
@pytest.mark.cluster
def test_missing_mount_on_a_worker_is_not_reported_as_damage(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backend("one worker of one thread"):
        monkeypatch.chdir(store.parent)
        with pytest.raises(MissingError, match=expecting("/proc/self/cwd/x.zarr")):
            verify_store("/proc/self/cwd/x.zarr")
