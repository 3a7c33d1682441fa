"""Base classes of sources: suggestions of names, and sources that map other sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.base import MappedSource, choices, only_table, reading
from scrlm_dask.sources.vector_files import open_npy


@pytest.mark.parametrize(
    ("name", "names", "expected"),
    [
        ("x", ["b", "a"], "b, a"),
        ("LABEL", ["id", "label"], "label, id"),
        ("emb7", [f"emb{i}" for i in range(12)], "emb7, "),
    ],
)
def test_most_similar_names_come_first(name: str, names: list[str], expected: str) -> None:
    assert choices(name, names).startswith(expected)


def test_empty_list_of_names_is_described() -> None:
    assert choices("a", [])


@dataclass(frozen=True)
class Numbered(MappedSource):
    """Adds to each value the number of its row."""

    def _map(self, values: NDArray[np.int64], first: int) -> NDArray[np.int64]:
        return values + np.arange(first, first + len(values))


def test_mapped_source_passes_row_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([10, 20, 30, 40, 50]))
    given = open_npy(str(tmp_path / "x.npy"))
    source = Numbered(given.files, given.shape, given.dtype, given)
    assert source.read(1, 4).tolist() == [21, 32, 43]
    assert [batch.tolist() for batch in source.batches(1, 5, 3)] == [[21, 32, 43], [54]]
    assert source.locate(3) == f"row 3 of {tmp_path}/x.npy"


@pytest.mark.parametrize(
    ("tables", "number"),
    [([], 0), (["b", "a"], 2)],
)
def test_single_table_is_chosen(tables: list[str], number: int) -> None:
    assert only_table("x.h5", ["b"], ["a", "b"]) == "b"
    facts = rf"(?=.*x\.h5)(?=.*\b{number}\b)(?=.*\ba, b\b)(?=.*--dataset)"
    with pytest.raises(InputError, match=facts):
        only_table("x.h5", tables, ["b", "a"])


def test_errors_of_libraries_name_the_file() -> None:
    with pytest.raises(StoreError, match=r"(?=.*x\.h5)(?=.*KeyError: 'a')"), reading("x.h5"):
        raise KeyError("a")
    with pytest.raises(InputError, match=r"^unchanged$"), reading("x.h5"):
        raise InputError("unchanged")
