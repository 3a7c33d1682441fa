"""Datasets in HDF5 files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.optional import import_optional
from scrlm_dask.sources.base import Source, choices, native, only_table, reading, source_file
from scrlm_dask.sources.hdf5_storage import check_rows, check_written
from scrlm_dask.text import first_few

MAGIC = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class Hdf5Source(Source):
    """A dataset in an HDF5 file.

    A flipped byte is detected only if the dataset has the fletcher32 filter.
    """

    dataset: str
    chunk_rows: int

    @property
    def what(self) -> str:
        """Path of the file and name of the dataset."""
        return f"{self.files[0].path}[{self.dataset}]"

    @property
    def unit_rows(self) -> int:
        """Number of rows per chunk."""
        return self.chunk_rows

    def notes(self) -> list[str]:
        """Name the other files that the dataset is read from."""
        others = [file.path for file in self.files[1:]]
        return [f"the dataset is read from other files: {first_few(others)}"] if others else []

    def column(self, name: str) -> Source:
        """Open another dataset of the same file."""
        return open_hdf5(self.files[0].path, name)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1; the files are opened and checked for each read."""
        h5py = import_optional("h5py", f"the HDF5 file {self.files[0].path}")
        with (
            reading(f"{self.what} (rows {start} to {stop - 1})"),
            h5py.File(self.files[0].path, "r") as file,
        ):
            dataset = file[self.dataset]
            files = check_rows(dataset, self.files[0].path, start, stop)
            others = sorted({*files} - {file.path for file in self.files})
            if others:
                raise StoreError(
                    f"{self.what} is read from {others[0]} in this process, but from other files "
                    "when it was opened; start all processes in the same working directory"
                )
            if isinstance(self.dtype, np.dtypes.StringDType):
                return np.asarray(dataset.asstr()[start:stop], self.dtype)
            return np.asarray(dataset[start:stop]).astype(native(self.dtype), copy=False)


def open_hdf5(path: str, name: str | None = None) -> Hdf5Source:
    """Open the dataset called `name`, or the only table of numbers in the file."""
    h5py = import_optional("h5py", f"the HDF5 file {path}")
    with reading(path), h5py.File(path, "r") as file:
        nodes: dict[str, Any] = {}
        file.visititems(nodes.__setitem__)
        # a null dataset (h5py.Empty) has no shape and contains no rows
        nodes = {
            k: n for k, n in nodes.items() if isinstance(n, h5py.Dataset) and n.shape is not None
        }
        if name is None:
            tables = [k for k, n in nodes.items() if len(n.shape) == 2 and n.dtype.kind in "fiu"]
            if not tables:
                _reject_without_table(file, path)
            name = only_table(path, tables, list(nodes))
        dataset = nodes.get(name.strip("/"))
        if dataset is None:
            listed = choices(name, sorted(nodes))
            raise InputError(
                f"{path} contains no dataset {name!r} (it contains {listed}); give one of these"
            )
        text = h5py.check_string_dtype(dataset.dtype) is not None
        dtype = np.dtypes.StringDType() if text else dataset.dtype
        if dtype.hasobject and not text:
            raise InputError(f"{path}[{name}] must contain floats or integers, got {dtype}")
        others = check_written(dataset, path)
        files = tuple(source_file(other) for other in dict.fromkeys((path, *others)))
        chunk_rows = dataset.chunks[0] if dataset.chunks else 1
        return Hdf5Source(files, dataset.shape, dtype, name, chunk_rows)


def _reject_without_table(file: Any, path: str) -> None:
    """Raise with the links and datasets that cannot be tables; return if there are none."""
    h5py = import_optional("h5py", f"the HDF5 file {path}")
    skipped = []

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            kinds = {None: "has no values (h5py.Empty)", (): "is a single value"}
            if node.shape in kinds:
                skipped.append(f"{name} {kinds[node.shape]}")
            return
        for key in node:
            link = node.get(key, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                at = f"{name}/{key}".strip("/")
                skipped.append(f"{at} is a link to {link.path} of {link.filename}")

    visit("", file)
    file.visititems(visit)
    if skipped:
        raise InputError(
            f"{path} contains no table of numbers: {first_few(skipped)}; links to other files are "
            "not followed, so give the other file"
        )
