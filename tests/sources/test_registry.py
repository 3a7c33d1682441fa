"""Detection of formats by content and by name."""

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


def test_command_offers_all_formats() -> None:
    option = next(p for p in ingest.params if p.name == "format")
    assert list(option.type.choices) == list(FORMATS)


@pytest.mark.parametrize("name", ["npy", "npz", "hdf5", "parquet, fixed-size lists", "arrow"])
def test_format_is_detected_by_content(name: str, tmp_path: Path) -> None:
    paths, options = WRITERS[name][0](tmp_path, X)
    (tmp_path / "renamed").mkdir()
    for other in ("x.data", "x.npy", "x"):
        target = shutil.copy(paths[0], tmp_path / "renamed" / other)
        np.testing.assert_array_equal(open_source([target], options).read(0, 10), X)


def test_given_format_is_used(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_text("1,2\n3,4\n")
    source = open_source([tmp_path / "x.npy"], SourceOptions(format="csv"))
    assert source.read(0, 2).tolist() == [[1, 2], [3, 4]]
    (tmp_path / "one").mkdir()
    shutil.copy(tmp_path / "x.npy", tmp_path / "one" / "x.csv")
    (tmp_path / "one" / "y.npy").touch()
    source = open_source([tmp_path / "one"], SourceOptions(format="csv"))
    assert source.shape == (2, 2)


def test_sources_of_different_formats_are_concatenated(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    X[:3].tofile(tmp_path / "x")
    np.savetxt(tmp_path / "b.csv", X[5:], delimiter=",")
    source = open_source([tmp_path / "b.csv", tmp_path / "a.npy"], SourceOptions())
    np.testing.assert_array_equal(source.read(3, 8), np.concatenate([X[5:], X])[3:8])
    assert source.locate(6) == f"row 1 of {tmp_path}/a.npy"


@pytest.mark.parametrize(
    ("values", "fact"),
    [
        (np.ones(4), r"\(4,\)"),
        (np.ones((2, 3, 4)), r"\(2, 3, 4\)"),
        (np.ones((0, 4)), r"\(0, 4\)"),
        (np.ones((4, 4), bool), r"\bbool\b"),
        (np.ones((4, 4), complex), r"\bcomplex128\b"),
        (np.array([["a", "b"]]), "<U1"),
    ],
)
def test_other_shapes_and_types_are_rejected(tmp_path: Path, values: np.ndarray, fact: str) -> None:
    np.save(tmp_path / "x.npy", values)
    with pytest.raises(InputError, match=rf"(?=.*{tmp_path}/x\.npy)(?=.*{fact})"):
        open_source([tmp_path / "x.npy"], SourceOptions())


@pytest.mark.parametrize("url", ["memory://bucket/x.npy", "memory://bucket/x.parquet"])
def test_only_zarr_sources_may_be_at_urls(url: str) -> None:
    with pytest.raises(InputError, match=rf"(?=.*{url})(?=.*Zarr)(?=.*local)"):
        open_source([url], SourceOptions())
