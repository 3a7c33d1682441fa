"""Rows of HDF5 datasets that have no storage, which HDF5 reads as zeros."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from scrlm_dask.errors import StoreError
from scrlm_dask.sources.hdf5 import open_hdf5

X = np.arange(40, dtype=np.float32).reshape(10, 4)


@pytest.mark.parametrize("chunks", [(3, 4), (3, 2), None])
def test_rows_that_were_never_written(tmp_path: Path, chunks: tuple[int, int] | None) -> None:
    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", X.shape, X.dtype, chunks=chunks)
        if chunks is not None:
            data[:6] = X[:6]
    with pytest.raises(StoreError, match=r"x\.h5\[x\]"):
        open_hdf5(path)
    with h5py.File(path, "a") as file:
        file["x"][:] = X
    np.testing.assert_array_equal(open_hdf5(path).read(0, 10), X)


@pytest.mark.parametrize("chunks", [(3, 4), None])
def test_fill_value_of_rows_that_were_never_written(
    tmp_path: Path, chunks: tuple[int, int] | None
) -> None:
    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", X.shape, X.dtype, chunks=chunks, fillvalue=np.nan)
    with pytest.raises(StoreError, match=r"read as nan"):
        open_hdf5(path)


def write_parts(folder: Path) -> list[h5py.VirtualSource]:
    """Write two files of 5 rows each; return them as sources of a virtual dataset."""
    for number in range(2):
        with h5py.File(folder / f"part{number}.h5", "w") as file:
            file["x"] = X[5 * number : 5 * number + 5]
    return [h5py.VirtualSource(f"part{number}.h5", "x", (5, 4)) for number in range(2)]


def write_mappings(folder: Path, *mappings: tuple[Any, Any]) -> str:
    """Write a virtual dataset; each mapping is a selection of its rows, and the mapped source."""
    layout = h5py.VirtualLayout(X.shape, X.dtype, maxshape=(None, 4))
    for rows, source in mappings:
        layout[rows] = source
    with h5py.File(folder / "all.h5", "w") as file:
        file.create_virtual_dataset("x", layout, fillvalue=0)
    return str(folder / "all.h5")


def write_virtual(folder: Path, rows: int = 10) -> str:
    """Write a virtual dataset of two files, 5 rows each; `rows` of its rows are mapped."""
    a, b = write_parts(folder)
    return write_mappings(folder, (slice(5), a[:5]), (slice(5, rows), b[: rows - 5]))


def test_virtual_dataset_names_its_files(tmp_path: Path) -> None:
    source = open_hdf5(write_virtual(tmp_path))
    np.testing.assert_array_equal(source.read(0, 10), X)
    names = [Path(file.path).name for file in source.files]
    assert names == ["all.h5", "part0.h5", "part1.h5"]
    assert "part1.h5" in source.notes()[0]


def test_virtual_dataset_whose_rows_are_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="32 of 40"):
        open_hdf5(write_virtual(tmp_path, rows=8))
    path = write_virtual(tmp_path)
    with h5py.File(tmp_path / "part1.h5", "w") as file:
        file["x"] = X[:3]
    with pytest.raises(StoreError, match=r"part1\.h5"):
        open_hdf5(path)
    with h5py.File(tmp_path / "part1.h5", "w") as file:
        file.create_dataset("x", (5, 4), X.dtype, chunks=(1, 4))[:3] = X[:3]
    with pytest.raises(StoreError, match=r"part1\.h5"):
        open_hdf5(path)
    with h5py.File(tmp_path / "part1.h5", "w") as file:
        file["y"] = X
    with pytest.raises(StoreError, match=r"part1\.h5"):
        open_hdf5(path)
    (tmp_path / "part1.h5").unlink()
    with pytest.raises(StoreError, match=r"part1\.h5"):
        open_hdf5(path)


@pytest.mark.parametrize("rows", ["halves", "interleaved", "listed", "overlapping"])
def test_virtual_dataset_of_whole_sources(tmp_path: Path, rows: str) -> None:
    """The sources are mapped without a selection, as in the documentation of h5py."""
    selections: dict[str, list[Any]] = {
        "halves": [slice(0, 5), slice(5, 10)],
        "interleaved": [slice(0, 10, 2), slice(1, 10, 2)],
        "listed": [[0, 1, 4, 8, 9], [2, 3, 5, 6, 7]],
        "overlapping": [slice(0, 5), slice(5, 10)],
    }
    parts = write_parts(tmp_path)
    mappings = list(zip(selections[rows], parts, strict=True))
    if rows == "overlapping":
        mappings.append((slice(3, 8), parts[0]))
    path = write_mappings(tmp_path, *mappings)
    expected = np.zeros_like(X)
    for (selection, _), part in zip(mappings, [X[:5], X[5:], X[:5]], strict=False):
        expected[selection] = part
    np.testing.assert_array_equal(open_hdf5(path).read(0, 10), expected)
    with h5py.File(tmp_path / "part1.h5", "w") as file:
        file["x"] = X[:3]
    with pytest.raises(StoreError, match=r"(?=.*\b20\b)(?=.*part1\.h5.*\b12\b)"):
        open_hdf5(path)


def test_virtual_dataset_that_is_one_whole_source(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["x"] = X
    path = write_mappings(tmp_path, (slice(None), h5py.VirtualSource("part.h5", "x", X.shape)))
    np.testing.assert_array_equal(open_hdf5(path).read(3, 10), X[3:])


def test_overlapping_mappings_do_not_cover_other_rows(tmp_path: Path) -> None:
    a, b = write_parts(tmp_path)
    for mappings in ([(slice(5), a), (slice(5), b)], [(slice(5), a[:5]), (slice(5), b[:5])]):
        with pytest.raises(StoreError, match="20 of 40"):
            open_hdf5(write_mappings(tmp_path, *mappings))


def test_unlimited_mapping(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file.create_dataset("x", data=X, maxshape=(None, 4))
    rows = slice(0, h5py.h5s.UNLIMITED)
    source = h5py.VirtualSource("part.h5", "x", X.shape, maxshape=(None, 4))
    path = write_mappings(tmp_path, (rows, source[rows]))
    with pytest.raises(StoreError, match="UNLIMITED"):
        open_hdf5(path)


@pytest.mark.parametrize("whole", [False, True])
def test_mapped_file_that_disappears(tmp_path: Path, whole: bool) -> None:
    """HDF5 would read zeros. Rows of other files can still be read."""
    a, b = write_parts(tmp_path)
    mapped = (
        [(slice(5), a), (slice(5, 10), b)] if whole else [(slice(5), a[:]), (slice(5, 10), b[:])]
    )
    source = open_hdf5(write_mappings(tmp_path, *mapped))
    (tmp_path / "part1.h5").rename(tmp_path / "gone.h5")
    np.testing.assert_array_equal(source.read(0, 5), X[:5])
    with pytest.raises(StoreError, match=r"part1\.h5"):
        source.read(4, 6)


def test_mapped_files_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 finds them there, but a worker may have another working directory."""
    work, other, data = (tmp_path / name for name in ("work", "other", "data"))
    for folder in (work, other, data):
        folder.mkdir()
    parts = write_parts(work)
    monkeypatch.chdir(work)
    path = write_mappings(data, (slice(5), parts[0]), (slice(5, 10), parts[1]))
    source = open_hdf5(path)
    np.testing.assert_array_equal(source.read(0, 10), X)
    monkeypatch.chdir(other)
    with pytest.raises(StoreError, match=r"part0\.h5"):
        source.read(0, 10)
    write_parts(other)
    with pytest.raises(StoreError, match=f"{other}/part0"):
        source.read(0, 10)


def test_mapped_files_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link.h5").symlink_to(write_virtual(tmp_path / "data"))
    source = open_hdf5(str(tmp_path / "link.h5"))
    np.testing.assert_array_equal(source.read(0, 10), X)
    assert str(tmp_path / "data/part0.h5") in [file.path for file in source.files]


def test_external_file_that_another_process_does_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "x.h5")
    for name in ("work", "other"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=X, external=[("rows.raw", 0, h5py.h5f.UNLIMITED)])
    source = open_hdf5(path)
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(StoreError, match=str(tmp_path / "work/rows.raw")):
        source.read(0, 10)


def test_external_file(tmp_path: Path) -> None:
    path, raw = str(tmp_path / "x.h5"), tmp_path / "rows.raw"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=X, external=[(str(raw), 0, h5py.h5f.UNLIMITED)])
    source = open_hdf5(path)
    np.testing.assert_array_equal(source.read(0, 10), X)
    assert [file.path for file in source.files] == [path, str(raw)]
    raw.write_bytes(raw.read_bytes()[:-16])
    with pytest.raises(StoreError, match=r"160.*rows\.raw.*144"):
        open_hdf5(path)
    raw.unlink()
    with pytest.raises(StoreError, match=r"rows\.raw"):
        open_hdf5(path)


@pytest.mark.parametrize("variable", ["HDF5_VDS_PREFIX", "HDF5_EXTFILE_PREFIX"])
def test_variable_that_redirects_to_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """The files next to the dataset are complete, but HDF5 would read those of the variable."""
    monkeypatch.chdir(tmp_path)

    def write(folder: str) -> str:
        if variable == "HDF5_EXTFILE_PREFIX":
            with h5py.File("x.h5", "w") as file:
                raw = [(f"{folder}rows.raw", 0, h5py.h5f.UNLIMITED)]
                file.create_dataset("x", data=X, external=raw)
            return "x.h5"
        with h5py.File("part.h5", "w") as file:
            file["x"] = X
        source = h5py.VirtualSource(f"{folder}part.h5", "x", X.shape)
        return write_mappings(tmp_path, (slice(None), source))

    path = write("")
    source = open_hdf5(path)
    monkeypatch.setenv(variable, str(tmp_path / "other"))
    for use in (lambda: open_hdf5(path), lambda: source.read(0, 10)):
        with pytest.raises(StoreError, match=variable):
            use()
    np.testing.assert_array_equal(open_hdf5(write(f"{tmp_path}/")).read(0, 10), X)


def test_virtual_dataset_of_its_own_file_with_a_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HDF5_VDS_PREFIX", str(tmp_path / "other"))
    path = str(tmp_path / "x.h5")
    layout = h5py.VirtualLayout(X.shape, X.dtype)
    layout[:] = h5py.VirtualSource(path, "x", X.shape)
    with h5py.File(path, "w") as file:
        file["x"] = X
        file.create_virtual_dataset("y", layout)
        assert file["y"].virtual_sources()[0].file_name == "."
    np.testing.assert_array_equal(open_hdf5(path, "y").read(0, 10), X)


def test_mapped_names_with_percent_signs(tmp_path: Path) -> None:
    """HDF5 writes `%%` for a percent sign in the names of mapped files and datasets."""
    with h5py.File(tmp_path / "50%.h5", "w") as file:
        file["x%b"] = X
    mapped = h5py.VirtualSource("50%%.h5", "x%%b", X.shape)
    source = open_hdf5(write_mappings(tmp_path, (slice(None), mapped)))
    np.testing.assert_array_equal(source.read(0, 10), X)
    assert source.files[1].path == str(tmp_path / "50%.h5")


@pytest.mark.parametrize("link", ["x", "group"])
def test_mapped_dataset_that_is_a_link_to_another_file(tmp_path: Path, link: str) -> None:
    """The other file would not be traced, so a change of it would not be detected."""
    with h5py.File(tmp_path / "real.h5", "w") as file:
        file["group/x"] = X
    with h5py.File(tmp_path / "link.h5", "w") as file:
        target = "group/x" if link == "x" else "group"
        file[link] = h5py.ExternalLink("real.h5", target)
    name = "x" if link == "x" else "group/x"
    path = write_mappings(tmp_path, (slice(None), h5py.VirtualSource("link.h5", name, X.shape)))
    with pytest.raises(StoreError, match=r"(?=.*link\.h5)(?=.*real\.h5\[group/x\])"):
        open_hdf5(path)
    with h5py.File(tmp_path / "link.h5", "w") as file:
        file["a/x"] = X
        file[name] = h5py.SoftLink("/a/x")
    np.testing.assert_array_equal(open_hdf5(path).read(0, 10), X)
