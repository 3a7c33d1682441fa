"""Tables with columns that are no features: the same rule for every format."""

from __future__ import annotations

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


def opened(path: str, *apart: str, **options: tuple[str, ...]) -> Source:
    return open_source([path], SourceOptions(**options), apart)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_not_left_out_in_silence(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind)
    with pytest.raises(InputError) as caught:
        opened(path)
    message = str(caught.value)
    for words in (
        f"column 'file name' of {path} holds",
        "(and 1 more are no numbers)",
        "--exclude 'file name' --exclude class",
        "--ids or --labels",
        "--column",
    ):
        assert words in message
    with pytest.raises(InputError, match=r"column 'class' of .*--exclude class, keep it"):
        opened(path, "file name")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["exclude", "labels and ids", "column"])
def test_the_ways_out(tmp_path: Path, kind: str, way: str) -> None:
    path = write(tmp_path, kind)
    source = {
        "exclude": lambda: opened(path, exclude=("class", "file name")),
        "labels and ids": lambda: opened(path, "class", "file name"),
        "column": lambda: opened(path, columns=("f0", "f1")),
    }[way]()
    assert source.columns == ("f0", "f1")
    assert source.read(0, 2).tolist() == [[1, 3], [2, 4]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_is_not_there(tmp_path: Path, kind: str) -> None:
    many = {f"col{i}": [1.0, 2.0] for i in range(200)}
    path = write(tmp_path, kind, pandas.DataFrame({**many, "Embedding": [1.0, 2.0]}))
    for options in ({"columns": ("embeding",)}, {"exclude": ("embeding",)}):
        with pytest.raises(InputError) as caught:
            opened(path, **options)
        assert "has no column 'embeding' (it has Embedding, col" in str(caught.value)
        assert "... (201 in all)" in str(caught.value)
    with pytest.raises(InputError, match=r"no column 'COL199' \(it has col199, "):
        opened(path).column("COL199")


def test_lists_need_nobody_else(tmp_path: Path) -> None:
    """Columns beside the only one of lists are no part of a table of features."""
    vectors = pa.array([[1.0, 2.0], [3.0, 4.0]])
    pq.write_table(pa.table({"url": ["a", "b"], "emb": vectors}), tmp_path / "x.parquet")
    assert opened(str(tmp_path / "x.parquet")).columns == ("emb",)
    pq.write_table(pa.table({"one": vectors, "emb": vectors}), tmp_path / "x.parquet")
    assert opened(str(tmp_path / "x.parquet"), exclude=("one",)).columns == ("emb",)


def test_either_named_or_left_out(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--column or --exclude"):
        opened(write(tmp_path, "csv"), columns=("f0",), exclude=("class",))
    np.save(tmp_path / "x.npy", np.ones((2, 2)))
    with pytest.raises(InputError, match=r"--exclude says nothing about .*x\.npy"):
        opened(str(tmp_path / "x.npy"), exclude=("a",))


def test_an_index_without_a_name_is_left_out_when_told(tmp_path: Path) -> None:
    FRAME[["f0", "f1"]].to_csv(tmp_path / "x.csv")
    with pytest.raises(InputError, match=r"has no name.*--exclude ''"):
        opened(str(tmp_path / "x.csv"))
    assert opened(str(tmp_path / "x.csv"), exclude=("",)).columns == ("f0", "f1")
