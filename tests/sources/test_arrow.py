"""Arrow columns as arrays: slices of lists, record batches and nulls."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from formats import columns_of

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.arrow import lists_to_rows, open_arrow, open_dataset


def test_slices_of_lists() -> None:
    """`values` of a slice returns the items of the whole array, so offsets must be applied."""
    x = np.arange(40.0).reshape(10, 4)
    for kind in ("list", "fixed"):
        column = columns_of(x, kind).column("emb").chunk(0).slice(3, 4)
        np.testing.assert_array_equal(lists_to_rows(column, 4, 0, "it"), x[3:7])


def write_stream(path: Path, *tables: pa.Table) -> str:
    with pa.ipc.new_stream(path, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    return str(path)


def test_record_batches_of_a_stream_are_concatenated(tmp_path: Path) -> None:
    tables = [pa.table({"a": [i, i + 1], "b": [0.5, 1.5]}) for i in (0, 2)]
    source = open_arrow(write_stream(tmp_path / "x.arrow", *tables))
    assert source.shape == (4, 2)
    assert source.read(1, 4).tolist() == [[1, 1.5], [2, 0.5], [3, 1.5]]
    assert [batch.tolist() for batch in source.column("a").batches(0, 4, 3)] == [[0, 1, 2], [3]]


def test_row_of_a_null_is_named(tmp_path: Path) -> None:
    table = pa.table({"a": [1.0, None], "name": ["x", None]})
    source = open_arrow(write_stream(tmp_path / "x.arrow", table), asked=["a"])
    for column, read in (("a", source.read), ("name", source.column("name").read)):
        facts = rf"(?=.*\brow 1\b)(?=.*column '{column}')(?=.*x\.arrow)(?=.*\bnull\b)"
        with pytest.raises(StoreError, match=facts):
            read(0, 2)
    with pytest.raises(StoreError, match=r"(?=.*\brow 7\b)(?=.*\bx\.arrow\b)(?=.*\bnull\b)"):
        lists_to_rows(pa.array([[1.0, 2.0], [3.0, None]]), 2, 6, "x.arrow")


@pytest.mark.parametrize("values", [["x", None], [5, None]])
def test_null_within_a_dictionary_is_a_null(tmp_path: Path, values: list[str | int | None]) -> None:
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 0, 1, 0], pa.int32()), pa.array(values))
    table = pa.table({"a": np.arange(4.0), "id": encoded})
    column = open_arrow(write_stream(tmp_path / "x.arrow", table), asked=["a"]).column("id")
    assert column.read(0, 2).tolist() == values[:1] * 2
    with pytest.raises(StoreError, match=r"(?=.*\brow 2\b)(?=.*column 'id')(?=.*\bnull\b)"):
        column.read(1, 4)


def test_column_of_dates_is_rejected(tmp_path: Path) -> None:
    table = pa.table({"a": [1.0], "day": pa.array([0], pa.date32())})
    source = open_arrow(write_stream(tmp_path / "x.arrow", table), asked=["a"])
    with pytest.raises(InputError, match=r"(?=.*column 'day')(?=.*x\.arrow)(?=.*date32)"):
        source.column("day")


def test_offsets_beyond_the_values_are_rejected(tmp_path: Path) -> None:
    """Without validation, Arrow aborts the process or reads past the end of the file."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    table, path = columns_of(x, "list"), tmp_path / "x.arrow"
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    offsets = np.arange(0, 16, 4, dtype="<i4")
    content = path.read_bytes()
    assert content.count(offsets.tobytes()) == 1
    path.write_bytes(content.replace(offsets.tobytes(), (offsets + 1000).tobytes()))
    with pytest.raises(StoreError, match=r"x\.arrow"):
        open_arrow(str(path), ("emb",)).read(0, 3)


def test_files_of_a_dataset_must_be_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "dataset"
    folder.mkdir()
    table = pa.table({"a": [1.0, 2.0]})
    outside = write_stream(tmp_path / "outside.arrow", table)
    write_stream(folder / "inside.arrow", table)
    for name in ("inside.arrow", "../outside.arrow", outside):
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
        if name == "inside.arrow":
            assert open_dataset(str(folder), ["a"], []).shape == (2, 1)
            continue
        with pytest.raises(StoreError, match=name):
            open_dataset(str(folder), ["a"], [])


@pytest.mark.parametrize(
    "content",
    [
        *("[" * 100_000, '{"_data_files": 1}', '{"_data_files": [1]}', '{"_data_files": [{}]}'),
        *('{"_data_files": {"filename": [1]}}', '{"_data_files": [{"filename": 2}]}', "{}"),
    ],
)
def test_damaged_state_of_a_dataset_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(StoreError, match=rf"{tmp_path}/state\.json"):
        open_dataset(str(tmp_path), (), ())


@pytest.mark.parametrize("content", ['{"splits": 1}', '{"splits": [1]}'])
def test_damaged_splits_of_a_dataset_are_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "dataset_dict.json").write_text(content)
    with pytest.raises(StoreError, match=rf"{tmp_path}/dataset_dict\.json"):
        open_dataset(str(tmp_path), (), ())
