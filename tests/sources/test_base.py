"""What sources share: names of columns, and sources that map others."""

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
    ("name", "names", "said"),
    [
        ("a", [], "nothing"),
        ("x", ["b", "a"], "b, a"),
        ("LABEL", ["id", "label"], "label, id"),
        ("emb7", [f"emb{i}" for i in range(12)], "emb7, "),
    ],
)
def test_names_most_alike_come_first(name: str, names: list[str], said: str) -> None:
    assert choices(name, names).startswith(said)


@dataclass(frozen=True)
class Numbered(MappedSource):
    """The given values plus the numbers of their rows."""

    def _map(self, values: NDArray[np.int64], first: int) -> NDArray[np.int64]:
        return values + np.arange(first, first + len(values))


def test_a_source_that_maps_another_knows_its_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([10, 20, 30, 40, 50]))
    given = open_npy(str(tmp_path / "x.npy"))
    source = Numbered(given.files, given.shape, given.dtype, given)
    assert source.read(1, 4).tolist() == [21, 32, 43]
    assert [batch.tolist() for batch in source.batches(1, 5, 3)] == [[21, 32, 43], [54]]
    assert source.locate(3) == f"row 3 of {tmp_path}/x.npy"


@pytest.mark.parametrize(
    ("tables", "words"),
    [([], r"it holds 0 tables \(a, b\); say which"), (["b", "a"], r"holds 2 tables \(a, b\)")],
)
def test_one_table_is_chosen_and_others_are_listed(tables: list[str], words: str) -> None:
    assert only_table("it", ["b"], ["a", "b"]) == "b"
    with pytest.raises(InputError, match=words):
        only_table("it", tables, ["b", "a"])


def test_errors_of_libraries_name_the_file() -> None:
    words = r"x\.h5 cannot be read \(KeyError: 'a'\); restore"
    with pytest.raises(StoreError, match=words), reading("x.h5"):
        raise KeyError("a")
    with pytest.raises(InputError, match="ours"), reading("x.h5"):
        raise InputError("ours")
