"""Export labels and centers of a run in formats that other programs read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from scrlm_dask.choices import TABLE_FORMATS, TableFormat
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.model import Model
from scrlm_dask.optional import import_optional
from scrlm_dask.storage import outputs
from scrlm_dask.storage.arrays import trace_node
from scrlm_dask.storage.label_store import LabelledRows, LabelTable, open_label_table
from scrlm_dask.storage.locations import (
    Location,
    Options,
    Place,
    TrustedOrigins,
    locate,
    locate_recorded,
    trust,
)
from scrlm_dask.storage.model_store import load_model
from scrlm_dask.storage.run_directory import RunDirectory, write_json
from scrlm_dask.storage.store_info import RecordedFeatures, features_in
from scrlm_dask.storage.traces import InputTrace

# Starts of cells that spreadsheet programs may run, as patterns of RE2. Some programs ignore spaces
# and invisible characters, or accept full-width signs. If the list separator is a semicolon or a
# tab, a cell also starts after each of them, and after each line break.
_IGNORED = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\p{Z}\p{Cf}"
_SIGN = "[=+\\-@\uff1d\uff0b\uff0d\uff20]"
_AT_START = rf"(\A)('*(?:[\t\r\n]|[\t\r\n{_IGNORED}]*{_SIGN}))"
_AFTER_SEPARATOR = rf"""([;\t\r\n])(['"]*[{_IGNORED}]*['"]*{_SIGN})"""

_CENTER_FILES = ("centers.npy", "centers.fbin", "centers.faiss")


@dataclass(frozen=True)
class ExportResult:
    """Result of an export: the files that it wrote.

    Attributes
    ----------
    files : tuple of str
        Names of the files in the folder.
    n_rows, n_clusters : int
        Number of rows in the table, and number of centers.
    ids : bool
        Whether the table has the ids of the rows.
    """

    files: tuple[str, ...]
    n_rows: int
    n_clusters: int
    ids: bool


def export(
    run: Place,
    out: Place,
    *,
    table: TableFormat = "parquet",
    overwrite: bool = False,
    storage_options: Options | None = None,
    allow_origins: Sequence[str] = (),
    listener: Listener = warn,
) -> ExportResult:
    """Write a run's labels and centers to the folder `out`, in formats that other programs read.

    The table has one line per row: number of the row in the features store (`store_row`), row and
    path of the source file (`source_row`, `source_file`, if the store was ingested), id (if the
    features have ids), label, distance and margin (if stored). Centers are in the units of the
    features, in a .npy and a .fbin file. If FAISS is installed, an index of the
    centers is also written; it preprocesses the rows itself.
    """
    if table not in TABLE_FORMATS:
        raise InputError(f"--format (table) must be {' or '.join(TABLE_FORMATS)}, got {table!r}")
    import_optional("pyarrow", "an export")
    source, target = locate(run, storage_options), locate(out, storage_options)
    directory = RunDirectory(source)
    trusted = trust([source, target], allow_origins, storage_options)
    features = _locate_features(features_in(directory.check_complete()), trusted)
    outputs.check_not_inside(target, source, "the run")
    outputs.check_not_inside(target, features, "the features")
    outputs.check_output_free(target, overwrite, outputs.EXPORT_KIND)
    store = open_label_table(directory, trusted)
    traced = InputTrace((*store.inputs, *trace_node("the model", directory.model)))
    model = load_model(source)
    if store.ids_note is not None:
        listener(Note(store.ids_note, warning=True))
    with outputs.replacing(target, overwrite, outputs.EXPORT_KIND) as at:
        if not at.is_remote:
            Path(at.url).mkdir(parents=True, exist_ok=True)
        record: dict[str, Any] = {
            outputs.KIND: outputs.EXPORT_KIND,
            "run": source.url,
            "status": "running",
            outputs.FILES: [f"labels.{table}", *_CENTER_FILES],
        }
        write_json(at / outputs.EXPORT_RECORD, record | outputs.describe_owner(at))
        quoted = _write_table(store, at / f"labels.{table}", table)
        outputs.check_owner(at)
        files = [f"labels.{table}", *_write_centers(model, at)]
        traced.check()
        outputs.check_owner(at)
        record |= {"status": "complete", outputs.FILES: files}
        write_json(at / outputs.EXPORT_RECORD, record)
    if quoted:
        text = (
            f"{quoted} texts in labels.csv, such as ids, have an additional single quote, because "
            "spreadsheet programs would run them as formulas; use --format parquet "
            "(table='parquet') to export them unchanged"
        )
        listener(Note(text, warning=True))
    return ExportResult(tuple(files), store.n_rows, model.n_clusters, store.ids is not None)


def _locate_features(recorded: RecordedFeatures | None, trusted: TrustedOrigins) -> Location | None:
    """Return the location of the features; None if it is unknown or must not be opened."""
    with suppress(StoreError, InputError):
        return None if recorded is None else locate_recorded(recorded.path, trusted)
    return None


def _write_table(store: LabelTable, location: Location, table: TableFormat) -> int:
    """Write the table in pieces, because it may not fit in memory; return the number of quotes."""
    writer: Any = None
    quoted = 0
    paths = () if store.origins is None else store.origins.files
    # names of files may be invalid UTF-8, which neither format can contain
    files = tuple(path.encode(errors="backslashreplace").decode() for path in paths)
    with location.writing() as file:
        for piece in store.pieces():
            rows = _to_arrow(piece, files)
            if table == "csv":
                rows, n_changed = _without_formulas(rows)
                quoted += n_changed
            writer = writer or _open_writer(file, rows.schema, table)
            writer.write_table(rows)
        writer.close()
    return quoted


def _open_writer(file: Any, schema: Any, table: TableFormat) -> Any:
    if table == "csv":
        return import_optional("pyarrow.csv", "CSV").CSVWriter(file, schema)
    # with page checksums, a reader detects damaged bytes
    parquet = import_optional("pyarrow.parquet", "Parquet")
    return parquet.ParquetWriter(file, schema, write_page_checksum=True)


def _to_arrow(rows: LabelledRows, files: tuple[str, ...]) -> Any:
    pyarrow = import_optional("pyarrow", "a table")
    columns: dict[str, Any] = {"store_row": rows.numbers}
    if rows.source_rows is not None:
        columns["source_row"] = rows.source_rows
        columns["source_file"] = pyarrow.array(files, pyarrow.string()).take(
            pyarrow.array(rows.source_files)
        )
    if rows.ids is not None:
        ids = rows.ids
        columns["id"] = ids if ids.dtype.kind in "iu" else [str(name) for name in ids]
    columns |= {"label": rows.labels, "distance": rows.distances}
    if rows.margins is not None:
        columns["margin"] = rows.margins
    return pyarrow.table(columns)


def _without_formulas(rows: Any) -> tuple[Any, int]:
    """Put a single quote before texts that a spreadsheet program would read as a formula.

    Return the rows and the number of changed texts. Texts that already start with quotes and such a
    character get one more quote, so that the original text can be recovered. The same applies
    after separators.
    """
    n_changed = 0
    arrow, compute = (import_optional(name, "CSV") for name in ("pyarrow", "pyarrow.compute"))
    for i, field in enumerate(rows.schema):
        if arrow.types.is_string(field.type) or arrow.types.is_large_string(field.type):
            texts = rows[i]
            for pattern in (_AT_START, _AFTER_SEPARATOR):
                texts = compute.replace_substring_regex(texts, pattern, r"\1'\2")
            n_changed += compute.sum(compute.not_equal(rows[i], texts)).as_py() or 0
            rows = rows.set_column(i, field, texts)
    return rows, n_changed


def _write_centers(model: Model, target: Location) -> list[str]:
    """Write the centers (k, p) as .npy, .fbin and, if FAISS is installed, as an index."""
    written = list(_CENTER_FILES[:2])
    with (target / written[0]).writing() as file:
        np.save(file, model.centers, allow_pickle=False)
    with (target / written[1]).writing() as file:
        file.write(np.array(model.centers.shape, "<u4").tobytes())
        file.write(model.centers.astype("<f4").tobytes())
    index = _build_faiss_index(model)
    if index is not None:
        written.append(_CENTER_FILES[2])
        with (target / written[2]).writing() as file:
            file.write(index)
    return written


def _build_faiss_index(model: Model) -> bytes | None:
    """Return the content of the index file; None if FAISS or centers are missing.

    The index applies the preprocessing map of the model before the search. It accepts unprocessed
    rows, and returns the number of the nearest center and the squared distance to it.
    """
    try:
        faiss = import_module("faiss")
    except ImportError:
        return None
    if model.n_clusters == 0:
        return None
    n_features = model.n_features
    chain = faiss.IndexPreTransform(faiss.IndexFlatL2(n_features))
    chain.prepend_transform(_map_rows(faiss, model.affine))
    chain.add(model.centers.astype(np.float32))
    content: bytes = faiss.serialize_index(chain).tobytes()
    return content


def _map_rows(faiss: Any, affine: AffineMap) -> Any:
    n_features = affine.n_features
    if affine.unit_length:
        return faiss.NormalizationTransform(n_features, 2.0)
    linear = faiss.LinearTransform(n_features, n_features, True)
    faiss.copy_array_to_vector(np.diag(affine.scale).astype(np.float32).ravel(), linear.A)
    faiss.copy_array_to_vector((-affine.shift * affine.scale).astype(np.float32), linear.b)
    linear.is_trained = True
    return linear
