"""Tables with columns that are not features: all formats follow the same rules."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scrlm_dask.errors import InputError
from scrlm_dask.sources.base import Source
from scrlm_dask.sources.registry import SourceOptions, open_source

FRAME = pandas.DataFrame(
    {"file name": ["x.jpg", "y.jpg"], "f0": [1.0, 2.0], "class": ["a", "b"], "f1": [3.0, 4.0]}
)
KINDS = ("csv", "parquet", "arrow")


def write(folder: Path, kind: str, frame: pandas.DataFrame = FRAME) -> str:
    path = folder / f"x.{kind}"
    table = pa.Table.from_pandas(frame, preserve_index=False)
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    return str(path)


def open_one(path: str, *apart: str, **options: tuple[str, ...]) -> Source:
    return open_source([path], SourceOptions(**options), apart)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_text_columns_are_not_dropped_silently(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind)
    with pytest.raises(InputError) as caught:
        open_one(path)
    message = str(caught.value)
    for fact in (
        "column 'file name'",
        path,
        "--exclude 'file name' --exclude class",
        "--ids",
        "--labels",
        "--column",
    ):
        assert fact in message
    assert re.search(r"\b1\b", message.replace(path, ""))  # the number of other such columns
    with pytest.raises(InputError, match=r"(?=.*column 'class')(?=.*--exclude class)") as caught:
        open_one(path, "file name")
    assert "--exclude 'file name'" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["exclude", "labels-ids", "column"])
def test_text_columns_are_excluded_on_request(tmp_path: Path, kind: str, way: str) -> None:
    path = write(tmp_path, kind)
    source = {
        "exclude": lambda: open_one(path, exclude=("class", "file name")),
        "labels-ids": lambda: open_one(path, "class", "file name"),
        "column": lambda: open_one(path, columns=("f0", "f1")),
    }[way]()
    assert source.columns == ("f0", "f1")
    assert source.read(0, 2).tolist() == [[1, 3], [2, 4]]


@pytest.mark.parametrize("kind", KINDS)
def test_missing_column(tmp_path: Path, kind: str) -> None:
    many = {f"col{i}": [1.0, 2.0] for i in range(200)}
    path = write(tmp_path, kind, pandas.DataFrame({**many, "Embedding": [1.0, 2.0]}))
    for options in ({"columns": ("embeding",)}, {"exclude": ("embeding",)}):
        with pytest.raises(InputError) as caught:
            open_one(path, **options)
        for fact in (path, "column 'embeding'", "Embedding, col", "201"):
            assert fact in str(caught.value)
    with pytest.raises(InputError, match=r"(?=.*column 'COL199')(?=.*\bcol199, )"):
        open_one(path).column("COL199")


def test_single_column_of_lists_is_enough(tmp_path: Path) -> None:
    """If exactly one column contains lists, other columns are ignored."""
    vectors = pa.array([[1.0, 2.0], [3.0, 4.0]])
    pq.write_table(pa.table({"url": ["a", "b"], "emb": vectors}), tmp_path / "x.parquet")
    assert open_one(str(tmp_path / "x.parquet")).columns == ("emb",)
    pq.write_table(pa.table({"one": vectors, "emb": vectors}), tmp_path / "x.parquet")
    assert open_one(str(tmp_path / "x.parquet"), exclude=("one",)).columns == ("emb",)


def test_columns_are_either_named_or_excluded(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"(?=.*--column)(?=.*--exclude)(?=.*f0)(?=.*class)"):
        open_one(write(tmp_path, "csv"), columns=("f0",), exclude=("class",))
    np.save(tmp_path / "x.npy", np.ones((2, 2)))
    with pytest.raises(InputError, match=rf"(?=.*--exclude)(?=.*{tmp_path}/x\.npy)"):
        open_one(str(tmp_path / "x.npy"), exclude=("a",))


def test_unnamed_index_is_excluded_on_request(tmp_path: Path) -> None:
    FRAME[["f0", "f1"]].to_csv(tmp_path / "x.csv")
    with pytest.raises(InputError, match="--exclude ''"):
        open_one(str(tmp_path / "x.csv"))
    assert open_one(str(tmp_path / "x.csv"), exclude=("",)).columns == ("f0", "f1")
