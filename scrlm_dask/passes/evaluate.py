"""Labels against the truth, block by block."""

from __future__ import annotations

from typing import Any, TypeAlias
from uuid import uuid4

import dask
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError
from scrlm_dask.kernels.metrics import Contingency, contingency, merge_contingency
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.trees import tree_reduce
from scrlm_dask.storage.arrays import StoredArray, read_rows
from scrlm_dask.storage.npy import NpyColumn

_BLOCK_ROWS = 2**20

Labels: TypeAlias = StoredArray | NpyColumn | NDArray[Any]


def contingency_pass(execution: Execution, truth: Labels, labels: Labels) -> Contingency:
    """How often each true class met each label."""
    n_rows = labels.shape[0]
    if truth.shape[0] != n_rows:
        raise InputError(
            f"the truth has {truth.shape[0]} rows and the labels have {n_rows}; "
            "they must describe the same rows"
        )
    starts = range(0, n_rows, _BLOCK_ROWS)
    token = uuid4().hex
    parts = [
        dask.delayed(_part, pure=False)(
            _slice(truth, start, min(start + _BLOCK_ROWS, n_rows)),
            _slice(labels, start, min(start + _BLOCK_ROWS, n_rows)),
            start,
            min(start + _BLOCK_ROWS, n_rows),
            dask_key_name=(f"evaluate-{token}", i),
        )
        for i, start in enumerate(starts)
    ]
    with execution.phase("evaluate", len(parts), n_rows, 8 * n_rows):
        table: Contingency = dask.compute(tree_reduce(parts, merge_contingency, "evaluate"))[0]
    return table


def _slice(labels: Labels, start: int, stop: int) -> Labels:
    """Arrays travel in pieces; stored ones are read where they are compared."""
    return labels[start:stop] if isinstance(labels, np.ndarray) else labels


def _part(truth: Labels, labels: Labels, start: int, stop: int) -> Contingency:
    return contingency(read_labels(truth, start, stop), read_labels(labels, start, stop))


def read_labels(labels: Labels, start: int, stop: int) -> NDArray[np.int64]:
    """Rows start..stop-1 of stored labels; of an array, all of it: it came as that piece."""
    if isinstance(labels, StoredArray):
        labels = read_rows(labels, start, stop, "the labels")
    elif isinstance(labels, NpyColumn):
        labels = labels.read(start, stop)
    return labels.astype(np.int64)
