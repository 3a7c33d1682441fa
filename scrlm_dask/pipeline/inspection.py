"""Looking at a features store: what it is, what its rows are like, whether they are whole."""

from __future__ import annotations

from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.kernels.points import radius
from scrlm_dask.kernels.preprocessing import PREPROCESS_KINDS, Preprocess
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.features import as_features
from scrlm_dask.passes.inspect import Damage, Seen, statistics_pass, verify_pass
from scrlm_dask.sources.registry import check_ingested
from scrlm_dask.storage.arrays import StoredArray
from scrlm_dask.storage.description import Description, describe_store
from scrlm_dask.storage.features import block_rows_for, has_truth
from scrlm_dask.storage.labels import open_labels
from scrlm_dask.storage.locations import Location, Options, Place, locate


def inspect_store(path: Place, *, storage_options: Options | None = None) -> Description:
    """What can be said without reading rows; unfinished stores are described as well."""
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
) -> Seen:
    """Statistics of all rows, in one read. Rows that are not finite are counted and left out.

    Spectrum and distances are those of the model's space, into which `preprocess` leads; with a
    `rho` they are compared with the radius of its clusters.
    """
    if preprocess not in PREPROCESS_KINDS:
        kinds = ", ".join(PREPROCESS_KINDS)
        raise InputError(f"preprocess is {preprocess!r}; it must be one of {kinds}")
    if rho is not None and not (rho > 0 and F > 0):
        raise InputError(f"rho is {rho} and F is {F}; both must be positive")
    path = locate(path, storage_options)
    features = as_features(path, block_rows)
    reach = None if rho is None else radius(rho, F, features.n_features)
    with Execution(listener) as execution:
        labels = _labels(execution, path, features.n_rows)
        return statistics_pass(execution, features, labels, preprocess, reach)


def _labels(execution: Execution, path: Location, n_rows: int) -> StoredArray | None:
    """The truth, if the store has it; others may call something else `labels`."""
    if not has_truth(path):
        return None
    try:
        labels = open_labels(path, "the array")
        if labels.shape[0] == n_rows:
            return labels
        reason = f"there are {labels.shape[0]} for {n_rows} rows"
    except InputError as error:
        reason = str(error)
    execution.tell(Note(f"labels are left out: {reason}"))
    return None


def verify_store(
    path: Place, *, storage_options: Options | None = None, listener: Listener = warn
) -> tuple[Damage, ...]:
    """Read everything again and compare it with checksums and digests: all damaged blocks."""
    store = inspect_store(path, storage_options=storage_options)
    if store.manifest is not None:
        block_rows = store.manifest.block_rows
    else:
        stored = store.features
        block_rows = block_rows_for(stored.shape, stored.dtype, stored.chunks[0])
    with Execution(listener) as execution:
        return verify_pass(
            execution, store.location, store.features, block_rows, store.manifest is not None
        )
