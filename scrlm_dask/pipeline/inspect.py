"""Describe a features store: its metadata, statistics of its rows, or damaged blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.choices import PREPROCESS_KINDS, Preprocess
from scrlm_dask.engine.execution import Execution, Pass, task
from scrlm_dask.engine.features import Features, as_features
from scrlm_dask.engine.tree_reduce import fan_in_for
from scrlm_dask.engine.workers import compute
from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.kernels.distances.points import radius
from scrlm_dask.kernels.randomness.sampling import Purpose, sample_rows
from scrlm_dask.kernels.statistics import histograms, row_statistics
from scrlm_dask.passes.digests import DamagedBlock, check_digests_pass
from scrlm_dask.sources.registry import check_ingested
from scrlm_dask.storage.arrays import StoredArray, read_rows, trace_node
from scrlm_dask.storage.feature_store import block_rows_for, has_truth
from scrlm_dask.storage.label_store import open_labels
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.store_info import (
    StoreInfo,
    describe_store,
    digests_are_current,
    files_of_features,
    record_files,
)
from scrlm_dask.storage.traces import InputTrace

_SAMPLE_ROWS = 1024
_SAMPLE_BYTES = 64 * 2**20  # fewer rows are sampled if they have very many features
_SEED = 0


@dataclass(frozen=True)
class RowsReport:
    """Statistics of all rows of a features store.

    Attributes
    ----------
    statistics : Statistics
        Ranges, NaN, rows of zeros, duplicates, norms, spectrum and distances of the rows.
    classes : Classes or None
        Sizes of the classes, if the store has labels.
    """

    statistics: row_statistics.Statistics
    classes: histograms.Classes | None


def inspect_store(path: Place, *, storage_options: Options | None = None) -> StoreInfo:
    """Describe a store, finished or not, without reading its rows."""
    location = locate(path, storage_options)
    check_ingested(location)
    return describe_store(location)


def inspect_rows(
    path: Place,
    *,
    rho: float | None = None,
    F: float = 2.5,
    preprocess: Preprocess = "standardize",
    block_rows: int | None = None,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> RowsReport:
    """Compute statistics of all rows in one read; rows that are not finite are only counted.

    Spectrum and distances are computed after the preprocessing, as in a fit. If `rho` is given,
    the distances are compared with the radius of its clusters. A note reports rows of zeros; it is
    not a warning, because such rows may be correct, for example counts.
    """
    if preprocess not in PREPROCESS_KINDS:
        kinds = ", ".join(PREPROCESS_KINDS)
        raise InputError(f"preprocess must be one of {kinds}, got {preprocess!r}")
    if rho is not None and not (rho > 0 and F > 0):
        raise InputError(f"rho and F must be positive, got rho={rho} and F={F}")
    location = locate(path, storage_options)
    features = as_features(location, block_rows)
    reach = None if rho is None else radius(rho, F, features.n_features)
    with Execution(listener) as execution:
        labels = _open_truth(execution, location, features.n_rows)
        inputs = trace_node("the labels", None if labels is None else labels.location)
        report = statistics_pass(execution, features, labels, preprocess, reach)
        InputTrace((*features.inputs, *inputs)).check()
        if report.statistics.zero_rows:
            execution.emit(
                Note(
                    f"{report.statistics.zero_rows} of {features.n_rows} rows contain only zeros; "
                    "if their encoding failed, remove them with scrlm ingest --zeros drop (zeros)"
                )
            )
        return report


def verify_store(
    path: Place, *, storage_options: Options | None = None, listener: Listener = warn
) -> tuple[DamagedBlock, ...]:
    """Read all blocks, compare them with checksums and digests, and return the damaged blocks."""
    store = inspect_store(path, storage_options=storage_options)
    manifest, stored = store.manifest, store.features
    if manifest is not None:
        rows = manifest.block_rows
    else:
        rows = block_rows_for(stored.shape, stored.dtype, stored.chunks[0])
    files = files_of_features(store.location)
    with Execution(listener) as execution:
        damage = check_digests_pass(execution, store.location, stored, rows, manifest is not None)
        if store.is_complete and not damage and not digests_are_current(store.location, files):
            _record_files(execution, store.location, files)
        return damage


def _record_files(execution: Execution, location: Location, files: str) -> None:
    """Record the files whose digests were verified, so that later runs do not verify them again."""
    if files_of_features(location) != files:  # changed while it was verified
        return
    try:
        record_files(location, files)
        text = "the digests of the files are verified, so later runs do not verify them again"
    except OSError as error:
        text = f"the verified files cannot be recorded, so every run verifies them: {error}"
    execution.emit(Note(text))


def _open_truth(execution: Execution, location: Location, n_rows: int) -> StoredArray | None:
    """Open the true labels, if any.

    In a store of another program, the array `labels` may be something else, and is then ignored.
    """
    if not has_truth(location):
        return None
    try:
        labels = open_labels(location, "the array")
        if labels.shape[0] == n_rows:
            return labels
        reason = f"{labels.shape[0]} labels for {n_rows} rows"
    except InputError as error:
        reason = str(error)
    execution.emit(Note(f"labels are ignored: {reason}"))
    return None


@dataclass(frozen=True)
class _Part:
    statistics: row_statistics.StatisticsPart
    labels: histograms.Counts | None


def statistics_pass(
    execution: Execution,
    features: Features,
    labels: StoredArray | None,
    preprocess: Preprocess,
    radius: float | None,
) -> RowsReport:
    """Compute statistics in one read; only the result, of size O(p), is sent to the client."""
    p = features.n_features
    size = min(_SAMPLE_ROWS, features.n_rows, max(2, _SAMPLE_BYTES // (8 * p)))
    sampled = sample_rows(_SEED, Purpose.INSPECTED_ROWS, features.n_rows, size)
    fan_in = fan_in_for(8 * p * p if p <= row_statistics.WIDEST_COVARIANCE else 0)
    part: Delayed = execution.run(
        Pass("inspect", _statistics_part, _merge, fan_in=fan_in),
        features,
        {
            "sampled": task("sampled-rows", np.array, sampled),
            "labels": labels,
            "unit_length": preprocess == "l2",
        },
        leave_on_workers=True,
    )
    report: RowsReport = compute(task("statistics", _finish, part, preprocess, radius))[0]
    return report


def _statistics_part(
    block: NDArray[Any],
    start: int,
    sampled: NDArray[np.int64],
    labels: StoredArray | None,
    unit_length: bool,
) -> _Part:
    counts = None
    if labels is not None:
        counts = histograms.count_values(read_rows(labels, start, start + len(block), "the labels"))
    return _Part(row_statistics.statistics_part(block, start, sampled, unit_length), counts)


def _merge(a: _Part, b: _Part) -> _Part:
    labels = None
    if a.labels is not None and b.labels is not None:
        labels = histograms.merge_counts(a.labels, b.labels)
    return _Part(row_statistics.merge_statistics(a.statistics, b.statistics), labels)


def _finish(part: _Part, preprocess: Preprocess, radius: float | None) -> RowsReport:
    classes = None if part.labels is None else histograms.classes_among(part.labels)
    return RowsReport(
        row_statistics.finish_statistics(part.statistics, preprocess, radius), classes
    )
