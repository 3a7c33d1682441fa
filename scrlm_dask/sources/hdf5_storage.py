"""Check that all rows of an HDF5 dataset are stored; HDF5 reads rows without storage as zeros."""

from __future__ import annotations

import os
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
    what = _describe(dataset, path)
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
            f"{what} was never written: it has no storage, and would be read as "
            f"{dataset.fillvalue}; write its rows"
        )
    return []


def check_rows(dataset: Any, path: str, start: int, stop: int) -> list[str]:
    """Raise if this process cannot read the other files that contain rows start..stop-1.

    HDF5 reads rows of a mapped file as zeros if it cannot open the file, for example on a worker
    without the mount, or with another working directory. Return the files.
    """
    what = _describe(dataset, path)
    if dataset.external:
        return _check_external(dataset, what)
    files = []
    for mapping in dataset.virtual_sources() if dataset.is_virtual else ():
        first, last = mapping.vspace.get_select_bounds()
        if first[0] < stop and last[0] >= start:
            files += _check_mapping(mapping, path, what, frozenset({(path, dataset.name)}))
    return files


def _describe(dataset: Any, path: str) -> str:
    return f"{path}[{dataset.name.strip('/')}]"


def _check_chunks(dataset: Any, what: str) -> None:
    expected = prod(-(-n // step) for n, step in zip(dataset.shape, dataset.chunks, strict=True))
    stored = dataset.id.get_num_chunks()
    if stored < expected:
        raise StoreError(
            f"{what} is incomplete: {expected - stored} of {expected} chunks were never written, "
            f"and would be read as {dataset.fillvalue}; write all rows"
        )


def _check_external(dataset: Any, what: str) -> list[str]:
    """Check the sizes of the raw files; HDF5 resolves their names in the current directory."""
    left = dataset.size * dataset.dtype.itemsize
    files = []
    for name, offset, size in dataset.external:
        _check_prefix("HDF5_EXTFILE_PREFIX", name, what)
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
    mapped = _count_mapped(dataset.shape, mappings, what)
    if mapped < dataset.size:
        raise StoreError(
            f"{what} is a virtual dataset whose mappings cover only {mapped} of {dataset.size} "
            "values; the others would be read as zeros; map all rows"
        )
    files = []
    for mapping in mappings:
        files += _check_mapping(mapping, path, what, seen | {key})
    return files


def _count_mapped(shape: tuple[int, ...], mappings: list[Any], what: str) -> int:
    """Return the number of values in the union of the mappings, which may overlap."""
    h5s = import_optional("h5py", what).h5s
    union, one = h5s.create_simple(shape), (1,) * len(shape)
    union.select_none()
    for space in (mapping.vspace for mapping in mappings):
        if space.get_select_type() != h5s.SEL_HYPERSLABS:  # the whole dataset
            blocks = [space.get_select_bounds()]
        elif space.is_regular_hyperslab():
            start, stride, count, block = space.get_regular_hyperslab()
            if h5s.UNLIMITED in (*count, *block):
                raise StoreError(
                    f"{what} is a virtual dataset with an unlimited mapping (h5py.h5s.UNLIMITED), "
                    "whose rows cannot be checked; map a fixed number of rows"
                )
            union.select_hyperslab(start, count, stride, block, h5s.SELECT_OR)
            continue
        else:
            blocks = space.get_select_hyper_blocklist()
        for first, last in blocks:
            size = tuple(b - a + 1 for a, b in zip(first, last, strict=True))
            union.select_hyperslab(tuple(first), one, None, size, h5s.SELECT_OR)
    return int(union.get_select_npoints())


def _check_mapping(
    mapping: Any, path: str, what: str, seen: frozenset[tuple[str, str]]
) -> list[str]:
    h5py = import_optional("h5py", f"the HDF5 file {path}")
    source, name = path, _unescape(mapping.dset_name)
    if mapping.file_name != _SAME_FILE:
        file_name = _unescape(mapping.file_name)
        _check_prefix("HDF5_VDS_PREFIX", file_name, what)
        source = _source_path(file_name, path)
    if not Path(source).is_file():
        raise StoreError(
            f"{what} is a virtual dataset of {source}, which does not exist, so its rows would be "
            "read as zeros; restore it"
        )
    with h5py.File(source, "r") as file:
        dataset = file.get(name)
        if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
            raise StoreError(
                f"{what} is a virtual dataset of {source}[{name}], which does not "
                "exist, so its rows would be read as zeros; restore it"
            )
        _check_same_file(dataset, source, f"{what} is a virtual dataset of {source}[{name}]")
        if mapping.src_space.get_select_type() == h5py.h5s.SEL_ALL:
            mapped = mapping.vspace.get_select_npoints()
            if mapped != dataset.size:
                raise StoreError(
                    f"{what} is a virtual dataset that maps {mapped} values to all values of "
                    f"{source}[{name}], which has {dataset.size}; restore it"
                )
            return [source, *check_written(dataset, source, seen)]
        last = mapping.src_space.get_select_bounds()[1]
        if len(last) != len(dataset.shape) or any(
            a >= n for a, n in zip(last, dataset.shape, strict=True)
        ):
            raise StoreError(
                f"{what} is a virtual dataset that reads {source}[{name}] up to "
                f"position {tuple(last)}, but its shape is {dataset.shape}, so rows "
                "would be read as zeros; restore it"
            )
        return [source, *check_written(dataset, source, seen)]


def _check_same_file(dataset: Any, path: str, what: str) -> None:
    """Raise if a dataset that was opened in the file `path` is stored in another file.

    The files on the way to it, of which each link may name another, cannot be traced.
    """
    real = dataset.file.filename
    if not Path(real).samefile(path):
        raise StoreError(
            f"{what}, which is an external link to {real}[{dataset.name.strip('/')}]; links to "
            f"other files are not followed, so map the dataset of {real}"
        )


def _unescape(name: str) -> str:
    """Return the name of a mapped file or dataset, in which `%%` stands for one percent sign."""
    return name.replace("%%", "%")


def _check_prefix(variable: str, name: str, what: str) -> None:
    """Raise if an environment variable changes the folder in which HDF5 looks for the file `name`.

    HDF5 does not apply the variables to absolute names.
    """
    prefix = os.environ.get(variable)
    if prefix and not Path(name).is_absolute():
        raise StoreError(
            f"{what} is read from {name}, which HDF5 looks for in {prefix}, because the "
            f"environment variable {variable} is set; unset it, or write the dataset with absolute "
            "names"
        )


def _source_path(name: str, path: str) -> str:
    """Return the path of a mapping's file, which HDF5 looks for in several folders.

    They are the folder of the virtual dataset, the working directory of the process and, if `path`
    is a symbolic link, the folder that the link points to.
    """
    folders = (Path(path).absolute().parent, Path.cwd(), Path(path).resolve().parent)
    candidates = [str(folder / name) for folder in folders]
    return next((path for path in candidates if Path(path).is_file()), candidates[0])
