"""Formats by content and name."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from formats import WRITERS
from scrlm_cli.commands.data import ingest

from scrlm_dask.errors import InputError
from scrlm_dask.sources.registry import FORMATS, SourceOptions, open_source

X = np.arange(40, dtype=np.float32).reshape(10, 4)


def test_the_command_knows_all_formats() -> None:
    option = next(p for p in ingest.params if p.name == "format")
    assert list(option.type.choices) == list(FORMATS)


@pytest.mark.parametrize("name", ["npy", "npz", "hdf5", "parquet, fixed-size lists", "arrow"])
def test_the_content_says_more_than_the_name(name: str, tmp_path: Path) -> None:
    paths, options = WRITERS[name][0](tmp_path, X)
    (tmp_path / "renamed").mkdir()
    for other in ("x.data", "x.npy", "x"):
        target = shutil.copy(paths[0], tmp_path / "renamed" / other)
        np.testing.assert_array_equal(open_source([target], options).read(0, 10), X)


def test_a_format_that_is_forced(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_text("1,2\n3,4\n")
    source = open_source([tmp_path / "x.npy"], SourceOptions(format="csv"))
    assert source.read(0, 2).tolist() == [[1, 2], [3, 4]]
    (tmp_path / "one").mkdir()
    shutil.copy(tmp_path / "x.npy", tmp_path / "one" / "x.csv")
    (tmp_path / "one" / "y.npy").touch()
    source = open_source([tmp_path / "one"], SourceOptions(format="csv"))
    assert source.shape == (2, 2)


def test_several_sources_of_several_formats_follow_each_other(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    X[:3].tofile(tmp_path / "x")
    np.savetxt(tmp_path / "b.csv", X[5:], delimiter=",")
    source = open_source([tmp_path / "b.csv", tmp_path / "a.npy"], SourceOptions())
    np.testing.assert_array_equal(source.read(3, 8), np.concatenate([X[5:], X])[3:8])
    assert source.locate(6) == f"row 1 of {tmp_path}/a.npy"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.ones(4), r"has the shape \(4,\)"),
        (np.ones((2, 3, 4)), r"has the shape \(2, 3, 4\)"),
        (np.ones((0, 4)), r"has the shape \(0, 4\)"),
        (np.ones((4, 4), bool), "holds bool"),
        (np.ones((4, 4), complex), "holds complex128"),
        (np.array([["a", "b"]]), "holds <U1"),
    ],
)
def test_what_is_no_table_of_numbers(tmp_path: Path, values: np.ndarray, words: str) -> None:
    np.save(tmp_path / "x.npy", values)
    with pytest.raises(InputError, match=words):
        open_source([tmp_path / "x.npy"], SourceOptions())
