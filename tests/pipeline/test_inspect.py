"""Inspection on every backend: the bits of the plain loop, one read, and all that is damaged."""

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
from numpy.typing import NDArray

from scrlm_dask.engine.threads import pinned_threads
from scrlm_dask.engine.tree_reduce import FAN_IN
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import BlockDone
from scrlm_dask.kernels.distances.points import radius
from scrlm_dask.kernels.randomness.sampling import Purpose, sample_rows
from scrlm_dask.kernels.statistics.row_statistics import (
    Statistics,
    finish_statistics,
    merge_statistics,
    statistics_part,
)
from scrlm_dask.pipeline.inspect import inspect_rows, verify_store
from scrlm_dask.pipeline.stores import write_features

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
    """The specification: parts of blocks, merged as the tree does, with no Dask."""
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
    """Everything in a result, arrays as bytes."""
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
        seen = inspect_rows(
            store, rho=0.4, preprocess=preprocess, block_rows=BLOCK, listener=events.append
        )
        assert verify_store(store) == ()
    expected = plain_loop(rows, preprocess, radius(0.4, 2.5, P))
    assert bits(seen.statistics) == bits(expected)
    assert seen.statistics.unusable.first == (600, 5500)
    assert seen.statistics.duplicates.groups[0] == (17, 101)
    assert seen.classes is not None
    assert (seen.classes.n_classes, seen.classes.outlier_share) == (8, np.mean(TRUTH == -1))
    if "thread" in name and "worker" not in name:  # on workers the last events may come late
        done = Counter(event.name for event in events if isinstance(event, BlockDone))
        assert done == {"inspect": -(-N // BLOCK)}  # one read


def test_chunking_changes_rounding_alone(store: Path) -> None:
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
    ("options", "words"),
    [
        ({"preprocess": "whiten"}, "preprocess is 'whiten'"),
        ({"rho": -1.0}, "rho is -1.0"),
        ({"rho": float("nan")}, "rho is nan"),
        ({"rho": 1.0, "F": 0.0}, "F is 0.0"),
    ],
)
def test_misuse(store: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        inspect_rows(store, **options)


@pytest.mark.parametrize("labels", [np.zeros(7, np.int32), np.zeros((20, 2), np.int32)])
def test_what_others_call_labels_may_be_something_else(tmp_path: Path, labels: Any) -> None:
    zarr.create_group(str(tmp_path / "g"))
    for name, values in (("features", np.eye(20, 3, dtype=np.float32)), ("labels", labels)):
        zarr.create_array(
            str(tmp_path / "g" / name), data=values, config={"write_empty_chunks": True}
        )
    heard: list[Any] = []
    with backend("one thread"):
        seen = inspect_rows(tmp_path / "g", listener=heard.append)
    assert seen.classes is None
    assert any("labels are left out" in getattr(event, "text", "") for event in heard)


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.cluster
def test_every_damaged_block_is_named(store: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(store, tmp_path / "x.zarr"))
    flip(path / "features/c/2/0", 1000)  # the checksum notices
    (path / "features/c/5/0").unlink()
    flip(path / "labels/c/7", 3)
    flip(path / "digests/c/9/0", 5)
    # a chunk with a checksum of its own that is not what was written: only the digest notices
    features = zarr.open_array(path / "features", mode="r+")
    features[11 * BLOCK] = 0.0
    with backend("two workers of two threads"):
        found = verify_store(path)
    assert [damage.block for damage in found] == [2, 5, 7, 9, 11]
    assert [(d.first_row, d.last_row) for d in found[::4]] == [(1024, 1535), (5632, 5999)]
    words = ["damaged", "c/5/0 .* is missing", "labels", "digests", "digest differs"]
    for damage, word in zip(found, words, strict=True):
        assert re.search(word, damage.reason)


@pytest.mark.parametrize("chunk_rows", [100, 64])
def test_stores_of_others_are_read_chunk_by_chunk(tmp_path: Path, chunk_rows: int) -> None:
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
def test_a_worker_without_the_mount_is_no_damage(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backend("one worker"):
        monkeypatch.chdir(store.parent)
        with pytest.raises(StoreError, match=r"cwd/x\.zarr does not exist"):
            verify_store("/proc/self/cwd/x.zarr")
