"""Tables with dropped rows, and tables in shuffled order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.kernels.randomness.sampling import Permutation
from scrlm_dask.sources.tables import KeptTable, Origins, PlainTable, Rows, ShuffledTable
from scrlm_dask.sources.vector_files import open_npy
from scrlm_dask.storage.arrays import describe
from scrlm_dask.storage.feature_store import StoredOrigins
from scrlm_dask.storage.locations import locate
from scrlm_dask.storage.manifest import Manifest, SourceFile

X = np.arange(10, dtype=np.float32).reshape(5, 2)


def open_table(folder: Path, ids: np.ndarray) -> PlainTable:
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", np.array([3, -1, 4, 1, 5]))
    np.save(folder / "ids.npy", ids)
    features, labels, names = (open_npy(str(folder / f"{n}.npy")) for n in ("x", "y", "ids"))
    return PlainTable(features, labels, names, "float32", 5)


def test_kept_rows_have_their_labels_and_ids(tmp_path: Path) -> None:
    table = KeptTable(open_table(tmp_path, np.array(list("abcde"))), np.array([0, 2]))
    assert table.n_rows == 3
    assert table.locate(1) == f"row 3 of {tmp_path}/x.npy"
    batches = list(table.batches(0, 3, 2))
    assert [len(rows) for rows in batches] == [2, 1]
    assert batches[0].features.tolist() == [[2, 3], [6, 7]]
    assert [rows.labels.tolist() for rows in batches if rows.labels is not None] == [[-1, 1], [5]]
    assert [rows.ids.tolist() for rows in batches if rows.ids is not None] == [["b", "d"], ["e"]]
    assert list(table.batches(2, 2, 2)) == []


def test_rows_of_a_features_store_have_its_source_rows(tmp_path: Path) -> None:
    """The second of three files is a features store with rows of two other files."""
    arrays = {"source_row": np.array([7, 0, 5]), "source_file": np.array([1, 0, 1], np.int32)}
    rows, numbers = (
        describe(zarr.create_array(tmp_path / name, data=values), locate(tmp_path / name))
        for name, values in arrays.items()
    )
    stored = StoredOrigins((SourceFile("a", 1), SourceFile("b", 1)), rows, numbers)
    origins = Origins(
        np.array([2, 5, 6]),
        np.array([0, 1, 2], np.int32),
        {1: (stored, np.array([3, 4], np.int32))},
    )
    found = list(zip(*(values.tolist() for values in origins.of(0, 6)), strict=True))
    assert found == [(0, 0), (1, 0), (7, 4), (0, 3), (5, 4), (0, 2)]
    for start, stop in ((0, 2), (1, 4), (3, 4), (4, 6)):
        part = list(zip(*(values.tolist() for values in origins.of(start, stop)), strict=True))
        assert part == found[start:stop]


def test_ids_are_integers_or_texts(tmp_path: Path) -> None:
    assert open_table(tmp_path, np.arange(5, dtype=np.uint8)).ids_dtype == "int64"
    assert open_table(tmp_path, np.array(list("abcde"))).ids_dtype == "str"
    with pytest.raises(InputError, match=r"(?=.*ids\.npy)(?=.*\bfloat64\b)"):
        print(open_table(tmp_path, np.zeros(5)).ids_dtype)


def test_rows_are_shuffled_by_the_permutation(tmp_path: Path) -> None:
    manifest = Manifest(5, 2, "float32", 2, (), {})
    table = ShuffledTable(str(tmp_path / "parts"), manifest, 7, labels=True, ids="str")
    ids = np.array(["a", "bb", "", "dddd", "é"], np.dtypes.StringDType())
    origins = Origins(np.array([3, 5]), np.array([2, 0], np.int32))
    whole = Rows(X, np.arange(5, dtype=np.int32), ids, *origins.of(0, 5))
    for part, rows in enumerate((slice(0, 2), slice(2, 4), slice(4, 5))):
        table.write_part(part, whole[rows])
    places = Permutation(5, 7).places(np.arange(5))
    for block, rows in enumerate(table.batches(0, 5, 2)):
        origin = np.argsort(places)[2 * block : 2 * block + 2]
        np.testing.assert_array_equal(rows.features, X[origin])
        assert rows.labels is not None
        assert rows.labels.tolist() == origin.tolist()
        assert rows.ids is not None
        assert rows.ids.tolist() == ids[origin].tolist()
        assert rows.source_row is not None
        assert rows.source_row.tolist() == np.array([0, 1, 2, 0, 1])[origin].tolist()
        assert rows.source_file is not None
        assert rows.source_file.tolist() == np.array([2, 2, 2, 0, 0])[origin].tolist()
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["0", "1", "2"]


def shuffle_ids(folder: Path, ids: list[str]) -> ShuffledTable:
    """Write rows with ids as the parts of a shuffle, 2 rows per part."""
    x = np.arange(len(ids), dtype=np.float32)[:, None]
    manifest = Manifest(len(ids), 1, "float32", 2, (), {})
    table = ShuffledTable(str(folder), manifest, 7, labels=False, ids="str")
    origins = Origins(np.array([len(ids)]), np.zeros(1, np.int32))
    whole = Rows(x, None, np.array(ids, np.dtypes.StringDType()), *origins.of(0, len(ids)))
    for part in range(manifest.n_blocks):
        table.write_part(part, whole[2 * part : 2 * part + 2])
    return table


def test_shuffled_texts_are_stored_with_their_lengths(tmp_path: Path) -> None:
    ids = ["a\0", "\0", "", "a\0b\0\0", "é" * 10_000, "b", "x\n", "c"]
    table = shuffle_ids(tmp_path, ids)
    for rows in table.batches(0, len(ids), 2):
        assert rows.ids is not None
        assert rows.ids.tolist() == [ids[int(row)] for row in rows.features[:, 0]]
    # a long text has no effect on the size of other rows
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 21_000


DAMAGES = {
    "empty": lambda data: b"",
    "cut by a byte": lambda data: data[:-1],
    "cut to its index": lambda data: data[: 4 * 16],
    "zeros": lambda data: bytes(len(data)),
    "zeros at the end": lambda data: data[:-8] + bytes(8),
    "zeros at the start": lambda data: bytes(16) + data[16:],
    "flipped": lambda data: data[:70] + bytes([data[70] ^ 1]) + data[71:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_part_is_detected(tmp_path: Path, damage: str) -> None:
    table = shuffle_ids(tmp_path, list("abcdef"))
    assert all(table.has_part(part) for part in range(3))
    path = table.part_path(1)
    data = path.read_bytes()
    path.write_bytes(DAMAGES[damage](data))
    assert [table.has_part(part) for part in range(3)] == [True, False, True]
    with pytest.raises(StoreError, match=rf"(?=.*{path}\b)(?=.*\bblock \d)"):
        list(table.batches(0, 6, 2))
    path.unlink()
    assert not table.has_part(1)


def test_places_without_a_row_are_detected(tmp_path: Path) -> None:
    table = shuffle_ids(tmp_path, list("abcdef"))
    table.write_part(1, Rows(X[:0, :1], None, np.empty(0, np.dtypes.StringDType())))
    assert table.has_part(1)
    with pytest.raises(StoreError, match=rf"(?=.*{tmp_path})(?=.*\bblock \d)"):
        list(table.batches(0, 6, 2))
