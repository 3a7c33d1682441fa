"""Check that all rows of an HDF5 dataset are stored; HDF5 reads rows without storage as zeros."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from scrlm_dask.errors import StoreError
from scrlm_dask.optional import import_optional

_SAME_FILE = "."  # name of a virtual dataset's own file in its mappings


def check_written(
    dataset: Any, path: str, seen: frozenset[tuple[str, str]] = frozenset()
) -> list[str]:
    """Raise if rows of an open dataset of the file `path` have no storage.

    Return the other files that the dataset is read from. `seen` are the virtual datasets that are
    read from this one.
    """
    what = f"{path}[{dataset.name.strip('/')}]"
    if dataset.size == 0:
        return []
    if dataset.is_virtual:
        return _check_virtual(dataset, path, what, seen)
    if dataset.external:
        return _check_external(dataset, what)
    if dataset.chunks is not None:
        _check_chunks(dataset, what)
    elif dataset.id.get_storage_size() == 0:
        raise StoreError(
            f"{what} was never written: it has no storage, and would be read as zeros; "
            "write its rows"
        )
    return []


def _check_chunks(dataset: Any, what: str) -> None:
    expected = prod(-(-n // step) for n, step in zip(dataset.shape, dataset.chunks, strict=True))
    stored = dataset.id.get_num_chunks()
    if stored < expected:
        raise StoreError(
            f"{what} is incomplete: {expected - stored} of {expected} chunks were never written, "
            "and would be read as zeros; write all rows"
        )


def _check_external(dataset: Any, what: str) -> list[str]:
    """Check the sizes of the raw files; HDF5 resolves their names in the current directory."""
    left = dataset.size * dataset.dtype.itemsize
    files = []
    for name, offset, size in dataset.external:
        path = Path(name).absolute()
        if not path.is_file():
            raise StoreError(f"{what} is stored in {path}, which does not exist; restore it")
        needed = min(left, size)
        n_bytes = path.stat().st_size
        if n_bytes < offset + needed:
            raise StoreError(
                f"{what} is truncated: it requires {offset + needed} bytes of {path}, which has "
                f"{n_bytes}; restore it"
            )
        left -= needed
        files.append(str(path))
    if left > 0:
        raise StoreError(
            f"{what} is truncated: its external files have no place for the last {left} bytes; "
            "write it again"
        )
    return files


def _check_virtual(
    dataset: Any, path: str, what: str, seen: frozenset[tuple[str, str]]
) -> list[str]:
    key = (path, dataset.name)
    if key in seen:
        raise StoreError(f"{what} is a virtual dataset that is mapped to itself; write it again")
    mappings = dataset.virtual_sources()
    mapped = sum(mapping.vspace.get_select_npoints() for mapping in mappings)
    if mapped < dataset.size:
        raise StoreError(
            f"{what} is a virtual dataset whose mappings cover only {mapped} of {dataset.size} "
            "values; the others would be read as zeros; map all rows"
        )
    files = []
    for mapping in mappings:
        files += _check_mapping(mapping, path, what, seen | {key})
    return files


def _check_mapping(
    mapping: Any, path: str, what: str, seen: frozenset[tuple[str, str]]
) -> list[str]:
    h5py = import_optional("h5py", f"the HDF5 file {path}")
    source = path if mapping.file_name == _SAME_FILE else _source_path(mapping.file_name, path)
    if not Path(source).is_file():
        raise StoreError(
            f"{what} is a virtual dataset of {source}, which does not exist, so its rows would be "
            "read as zeros; restore it"
        )
    with h5py.File(source, "r") as file:
        dataset = file.get(mapping.dset_name)
        if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
            raise StoreError(
                f"{what} is a virtual dataset of {source}[{mapping.dset_name}], which does not "
                "exist, so its rows would be read as zeros; restore it"
            )
        last = mapping.src_space.get_select_bounds()[1]
        if len(last) != len(dataset.shape) or any(
            a >= n for a, n in zip(last, dataset.shape, strict=True)
        ):
            raise StoreError(
                f"{what} is a virtual dataset that reads {source}[{mapping.dset_name}] up to "
                f"position {tuple(last)}, but its shape is {dataset.shape}, so rows "
                "would be read as zeros; restore it"
            )
        return [source, *check_written(dataset, source, seen)]


def _source_path(name: str, path: str) -> str:
    """Return the path of a mapping's file; HDF5 looks next to the virtual dataset first."""
    beside = Path(path).absolute().parent / name
    return str(beside if beside.is_file() or not Path(name).is_file() else Path(name).absolute())
