"""Order of numbered files, and gaps in their numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import expecting

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.base import Source
from scrlm_dask.sources.sharded import (
    check_no_gap,
    concatenate,
    describe_order,
    files_in,
    first_moved,
    matching,
    natural_order,
    numeric_order,
)


def test_files_are_ordered_by_number() -> None:
    given = ["a/x10.npy", "a/x2.npy", "a/x1.npy", "a/x02_b.npy"]
    assert numeric_order(given) == ["a/x1.npy", "a/x2.npy", "a/x02_b.npy", "a/x10.npy"]


@pytest.mark.parametrize(
    "names",
    [
        ["x_0", "x_1", "x_2"],
        ["x_1", "x_2"],
        ["x_009", "x_010"],
        ["train", "validation", "test"],  # not numbered
        ["a1_b1", "a2_b3"],  # numbered twice
        ["x_5"],
        ["x-00000-of-00002", "x-00001-of-00002"],
        ["x-1-of-2", "x-2-of-2"],
    ],
)
def test_sequences_without_gap(names: list[str]) -> None:
    check_no_gap([f"f/{name}.npy" for name in names], from_first=False)


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["x_0", "x_2"], "f/x_1.npy"),
        (["x_008", "x_009", "x_012"], "f/x_010.npy"),
        (["x-00000-of-00003", "x-00002-of-00003"], "f/x-00001-of-00003.npy"),
        (["x-00000-of-00003"], "f/x-00001-of-00003.npy"),
        (["x-1-of-3", "x-2-of-3"], "f/x-0-of-3.npy"),
        # a list of all claimed numbers would not fit in memory
        (["x-0-of-99999999999"], "f/x-1-of-99999999999.npy"),
        ([f"x-1-of-{10**30}", f"x-{10**30}-of-{10**30}"], f"f/x-0-of-{10**30}.npy"),
    ],
)
def test_missing_file_is_named(names: list[str], missing: str) -> None:
    with pytest.raises(StoreError, match=missing):
        check_no_gap([f"f/{name}.npy" for name in names], from_first=False)


def test_only_a_folder_must_start_at_the_first_number(tmp_path: Path) -> None:
    for i in (4, 5, 10, 6, 7, 8, 9):
        (tmp_path / f"x{i}.npy").touch()
    (tmp_path / ".hidden0.npy").touch()
    (tmp_path / "notes.md").touch()
    with pytest.raises(StoreError, match=rf"{tmp_path}/x0\.npy"):
        files_in(str(tmp_path), (".npy",))
    found = [Path(path).name for path in matching(f"{tmp_path}/x*.npy")]
    assert found == [f"x{i}.npy" for i in range(4, 11)]


def test_files_of_several_formats(tmp_path: Path) -> None:
    (tmp_path / "x.npy").touch()
    (tmp_path / "x.csv").touch()
    with pytest.raises(InputError, match=rf"(?=.*{tmp_path})(?=.*\.csv, \.npy)"):
        files_in(str(tmp_path), (".npy", ".csv"))


def test_order_of_the_shell_is_replaced_by_numeric_order(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"part_{i}.npy") for i in range(12)]
    for path in paths:
        Path(path).touch()
    assert natural_order(sorted(paths)) == paths
    assert natural_order(paths[::-1]) == paths[::-1]  # any other order is the user's choice


def test_given_order_is_described(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"part_{i}.npy") for i in range(12)]
    assert first_moved(sorted(paths), paths) == paths[10]
    assert first_moved(paths, paths) is None
    assert describe_order(sorted(paths)) == ()  # not files
    for path in paths:
        Path(path).touch()
    (note,) = describe_order(sorted(paths))
    assert re.search(expecting(12, paths[10], 3), note)
    assert describe_order(paths) == ()
    assert describe_order(paths[::-1]) == ()  # the choice of the caller
    assert describe_order([str(tmp_path), paths[0]]) == ()


@dataclass(frozen=True)
class CountingSource(Source):
    """Rows with the number of the source, which counts the requests for its number of rows."""

    number: int = 0
    counts: list[int] = field(default_factory=list)

    @property
    def n_rows(self) -> int:
        self.counts.append(self.number)
        return super().n_rows

    def read(self, start: int, stop: int) -> Any:
        return np.full((stop - start, *self.shape[1:]), self.number)


def test_reading_a_block_does_not_count_the_rows_of_all_files() -> None:
    """Files times blocks grow quadratically: 5000 files of 64 blocks have 320 000 blocks."""
    counts: list[int] = []
    parts = [CountingSource((), (2, 1), np.dtype(np.int64), i, counts) for i in range(100)]
    whole = concatenate(parts)
    for number in range(100):
        assert whole.read(2 * number, 2 * number + 2).tolist() == [[number], [number]]
    assert len(counts) < 10 * len(parts)
