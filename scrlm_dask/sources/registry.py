"""Open files and folders as sources; detect their format from first bytes or name, if not given."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources import hdf5, parquet, vector_files
from scrlm_dask.sources.arrow import looks_like_dataset, open_arrow, open_dataset
from scrlm_dask.sources.base import Source
from scrlm_dask.sources.clip_retrieval import looks_like_clip, open_clip
from scrlm_dask.sources.delimited import TABLE_SUFFIXES, open_csv, open_value_lines
from scrlm_dask.sources.npz import open_npz
from scrlm_dask.sources.sharded import concatenate, files_in, matching
from scrlm_dask.sources.vector_files import MAGIC as NPY_MAGIC
from scrlm_dask.sources.zarr_store import looks_like_zarr, open_zarr, open_zarr_values
from scrlm_dask.storage.locations import Location, Options, locate


@dataclass(frozen=True)
class SourceOptions:
    """Properties of source files that cannot be detected from the files.

    Parameters
    ----------
    format : str or None
        Input format, such as "npy" or "parquet"; None: detected from content and name.
    dataset : str or None
        Dataset in an HDF5 file, array in an .npz file, or array in a Zarr group.
    columns : tuple of str
        Columns of a table that are features: one column of lists, or one column per feature. Empty:
        all columns except labels, ids and `exclude`.
    raw_dtype : str or None
        Type of the numbers in raw binary files.
    raw_features : int or None
        Numbers per row in raw binary files.
    exclude : tuple of str
        Columns that are not features.

    Examples
    --------
    >>> import scrlm_dask
    >>> options = scrlm_dask.SourceOptions(exclude=("comment",))
    >>> config = scrlm_dask.IngestConfig(labels="kind")
    >>> scrlm_dask.ingest("table.csv", "table.zarr", config, options=options).label_names
    ('cat', 'dog')
    """

    format: str | None = None
    dataset: str | None = None
    columns: tuple[str, ...] = ()
    raw_dtype: str | None = None
    raw_features: int | None = None
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.columns and self.exclude:
            raise InputError(
                f"columns ({', '.join(self.columns)}) and exclude ({', '.join(self.exclude)}) "
                "cannot be combined; use either --column or --exclude"
            )


@dataclass(frozen=True)
class Request:
    """Settings to open sources: options, and columns that are not features (`apart`).

    The columns in `apart` are labels, ids and excluded columns.
    """

    options: SourceOptions
    apart: tuple[str, ...]
    storage: Options | None  # storage options for URLs; never printed or saved
    nulls_as_nan: bool  # True: nulls of Parquet and Arrow are read as NaN


@dataclass(frozen=True)
class Format:
    """A file format: how to open and to detect it, and the options that it supports (`uses`)."""

    open: Callable[[str, Request], Source]
    suffixes: tuple[str, ...] = ()
    magic: bytes | None = None
    uses: tuple[str, ...] = ()


_COLUMNS = ("columns", "exclude")
FORMATS = {
    "npy": Format(lambda path, _: vector_files.open_npy(path), (".npy",), NPY_MAGIC),
    "npz": Format(
        lambda path, r: open_npz(path, r.options.dataset), (".npz",), b"PK\x03\x04", ("dataset",)
    ),
    "bin": Format(lambda path, _: vector_files.open_bin(path), tuple(vector_files.BIN_DTYPES)),
    "vecs": Format(lambda path, _: vector_files.open_vecs(path), tuple(vector_files.VECS_DTYPES)),
    "hdf5": Format(
        lambda path, r: hdf5.open_hdf5(path, r.options.dataset),
        (".h5", ".hdf5", ".hdf"),
        hdf5.MAGIC,
        ("dataset",),
    ),
    "parquet": Format(
        lambda path, r: parquet.open_parquet(path, r.options.columns, r.apart, r.nulls_as_nan),
        (".parquet", ".pq"),
        parquet.MAGIC,
        _COLUMNS,
    ),
    "arrow": Format(
        lambda path, r: open_arrow(path, r.options.columns, r.apart, r.nulls_as_nan),
        (".arrow",),
        b"\xff\xff\xff\xff",
        _COLUMNS,
    ),
    "csv": Format(
        lambda path, r: open_csv(path, r.options.columns, r.apart),
        TABLE_SUFFIXES,
        uses=_COLUMNS,
    ),
    "raw": Format(
        lambda path, r: vector_files.open_raw(path, r.options.raw_dtype, r.options.raw_features),
        uses=("raw_dtype", "raw_features"),
    ),
    "zarr": Format(
        lambda path, r: open_zarr(locate(path, r.storage), r.options.dataset), uses=("dataset",)
    ),
    "clip-retrieval": Format(lambda path, r: open_clip(path, r.options.columns), uses=("columns",)),
    "huggingface": Format(
        lambda path, r: open_dataset(path, r.options.columns, r.apart, r.nulls_as_nan),
        uses=_COLUMNS,
    ),
}
_FOLDERS = {
    "zarr": looks_like_zarr,
    "huggingface": looks_like_dataset,
    "clip-retrieval": looks_like_clip,
}
_OPTION_NAMES = {
    "dataset": "--dataset",
    "columns": "--column",
    "raw_dtype": "--raw-dtype",
    "raw_features": "--features",
    "exclude": "--exclude",
}
_VALUES = "a .npy file, a text file with one value per line, or a Zarr array"


def open_source(
    paths: Sequence[str | Path],
    options: SourceOptions,
    apart: Sequence[str] = (),
    storage_options: Options | None = None,
    nulls_as_nan: bool = False,
) -> Source:
    """Open the tables at the paths as one source, concatenated in the given order.

    With `nulls_as_nan`, nulls of Parquet and Arrow are read as NaN; otherwise they are rejected.
    """
    if not paths:
        raise InputError("no source given; give at least one file or folder")
    request = Request(options, (*apart, *options.exclude), storage_options, nulls_as_nan)
    parts = [part for path in paths for part in _open_path(str(path), request)]
    source = concatenate(parts)
    if len(source.shape) != 2 or 0 in source.shape:
        raise InputError(
            f"{source.what} must be a table (rows x features) with at least one row and one "
            f"feature, got shape {source.shape}"
        )
    if source.dtype.kind not in "fiu":
        raise InputError(f"{source.what} must contain floats or integers, got {source.dtype}")
    return source


def open_values(
    given: str, name: str, source: Source, storage_options: Options | None = None
) -> Source:
    """Open labels or ids, one value per row of the source.

    `given` is the path of a file, or the name of a column of the source. `name` is "labels" or
    "ids".
    """
    if _exists(given):
        values = _values_file(given, name, source, storage_options)
    else:
        values = source.column(given)
    if len(values.shape) != 1:
        raise InputError(
            f"the {name} {values.what} must be 1-D with one value per row, got shape {values.shape}"
        )
    if values.n_rows != source.n_rows:
        raise InputError(
            f"the {name} {values.what} have {values.n_rows} rows, but the features {source.what} "
            f"have {source.n_rows}; they must have the same rows"
        )
    return values


def is_column(given: str | None) -> bool:
    """Return whether `given` (labels or ids) names a column, because it is not an existing file."""
    return given is not None and not _exists(given)


def check_ingested(location: Location) -> None:
    """Raise if a file or folder is not a features store but can be converted to one."""
    name = None if location.is_remote else _other_format(location.url)
    if name is not None:
        kind = "folder" if Path(location.url).is_dir() else "file"
        raise StoreError(
            f"{location} is a {name} {kind}, not a features store; "
            f"use `scrlm ingest {shlex.quote(location.url)} OUT.zarr` to convert it"
        )


def _other_format(path: str) -> str | None:
    """Return the format of a file or folder that can be ingested; None if unknown or Zarr."""
    local = Path(path)
    if local.is_file():
        try:
            return _format_of(path)
        except (InputError, StoreError):
            return None
    if not local.is_dir() or looks_like_zarr(path):
        return None
    named = next((name for name, looks_like in _FOLDERS.items() if looks_like(path)), None)
    children = list(local.iterdir())
    if named is not None or any(child.is_dir() for child in children):
        return named  # a folder of shards contains only files
    suffixes = {child.suffix.lower() for child in children}
    return next((name for name, known in FORMATS.items() if suffixes & {*known.suffixes}), None)


def _values_file(given: str, name: str, source: Source, storage_options: Options | None) -> Source:
    location = locate(given, storage_options)
    path = location.url
    if location.is_remote or looks_like_zarr(path):
        return open_zarr_values(location, name)
    if Path(path).is_file():
        format_name = _format_of(path)
        if format_name == "npy":
            return vector_files.open_npy(path)
        if format_name == "csv":
            return open_value_lines(path, source.n_rows)
    raise InputError(f"the format of the {name} {path} is not supported; give {_VALUES}")


def _open_path(path: str, request: Request) -> list[Source]:
    options, location = request.options, locate(path)
    path = location.url
    if location.is_remote:
        files = [suffix for known in FORMATS.values() for suffix in known.suffixes]
        if options.format not in (None, "zarr") or Path(path).suffix.lower() in files:
            raise InputError(
                f"{path} is a URL, but only Zarr stores can be read from URLs; copy it to a local "
                "path"
            )
        return [_open_as("zarr", path, request)]
    if not Path(path).exists():
        if any(sign in path for sign in "*?["):
            return [_open_file(file, request) for file in matching(path)]
        raise StoreError(f"the source {path} does not exist; check the path")
    if not Path(path).is_dir():
        location.check_regular()
        return [_open_file(path, request)]
    for name, looks_like in _FOLDERS.items():
        if options.format == name or (options.format is None and looks_like(path)):
            return [_open_as(name, path, request)]
    chosen = [FORMATS[options.format]] if options.format else list(FORMATS.values())
    suffixes = [suffix for known in chosen for suffix in known.suffixes]
    return [_open_file(file, request) for file in files_in(path, suffixes)]


def _open_file(path: str, request: Request) -> Source:
    return _open_as(request.options.format or _format_of(path), path, request)


def _open_as(name: str, path: str, request: Request) -> Source:
    if name not in FORMATS:
        raise InputError(f"format must be one of {', '.join(FORMATS)}, got {name!r}")
    known = FORMATS[name]
    for field, option in _OPTION_NAMES.items():
        if getattr(request.options, field) and field not in known.uses:
            raise InputError(
                f"{option} cannot be used with {path}, which is read as {name}; omit it"
            )
    return known.open(path, request)


def _format_of(path: str) -> str:
    """Return the format of a file; its first bytes take precedence over its suffix."""
    longest = max(len(known.magic or b"") for known in FORMATS.values())
    with open(path, "rb") as file:  # noqa: PTH123
        begin = file.read(longest)
    suffix = Path(path).suffix.lower()
    named = next((name for name, known in FORMATS.items() if suffix in known.suffixes), None)
    if named is not None and FORMATS[named].magic is None:
        return named  # the format has no magic bytes to check
    for name, known in FORMATS.items():
        if known.magic is not None and begin.startswith(known.magic):
            return name
    if named is not None:
        raise StoreError(
            f"{path} does not start like a {suffix} file: it is damaged or has another format; "
            "restore it, or give its --format"
        )
    raise InputError(
        f"the format of {path} cannot be detected from its content or its name; give its "
        f"--format ({', '.join(FORMATS)})"
    )


def _exists(given: str) -> bool:
    return locate(given).is_remote or Path(given).exists()
