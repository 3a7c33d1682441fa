"""The assignment pass: labels for the client or a store, and sums per cluster."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from backends import backend
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import expecting

from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import as_features
from scrlm_dask.errors import InputError
from scrlm_dask.kernels.distances.assignment import LeafPoints
from scrlm_dask.kernels.distances.points import prepare_points
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.distances.pruning import prepare_centers
from scrlm_dask.passes.assign import AssignedPart, assign_pass, label_pass, lazy_labels
from scrlm_dask.storage.arrays import read_rows
from scrlm_dask.storage.feature_store import mark_complete
from scrlm_dask.storage.label_store import (
    FINE,
    create_labels_store,
    open_labels,
    read_labels_block,
)
from scrlm_dask.storage.locations import locate

# centers at 0 and 10, R = 3
X = np.array([[1.0], [9.0], [5.0], [-2.0], [11.0], [13.0]])
LABELS = [0, 1, -1, 0, 1, -1]
AFFINE = AffineMap("none", np.zeros(1), np.ones(1))
CENTERS = dask.delayed(prepare_centers)(np.array([[0.0], [10.0]]), AFFINE)
USUAL: dict[str, Any] = {"labels_at": None, "margins": False, "collect": True}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with backend("one thread"):
        yield


def assigned(block_rows: int, sq_radius: float = 9.0, **options: Any) -> AssignedPart:
    usual = {**USUAL, "n_clusters": 2, "prune": 0, "input_digest": ""}
    with Execution(lambda event: None) as execution:
        features = as_features(X, block_rows)
        return assign_pass(execution, features, CENTERS, sq_radius, **usual | options)


@settings(max_examples=6)
@given(block_rows=st.integers(1, 6))
def test_labels_and_sums_do_not_depend_on_the_blocks(block_rows: int) -> None:
    found = assigned(block_rows)
    assert np.concatenate(found.labels).tolist() == LABELS
    assert found.sums.counts.tolist() == [2, 2]
    assert found.sums.offsets.tolist() == [[1.0 - 2.0], [-1.0 + 1.0]]
    assert found.sums.sq_distances.tolist() == [1.0 + 4.0, 1.0 + 1.0]
    assert (found.sums.n_rows, found.sums.total_mass) == (6, 6.0)


def leaves() -> LeafPoints:
    """Return the leaves -1 and 1 of the first cluster, 9, 11 and 50 of the second one."""
    points = [
        prepare_points(np.array(some), AFFINE) for some in ([[-1.0], [1]], [[9.0], [11], [50]])
    ]
    return LeafPoints(tuple(points), np.array([0, 2]))


FINE_LABELS = [1, 2, -1, 0, 3, -1]


@settings(max_examples=6)
@given(block_rows=st.integers(1, 6))
def test_leaves_do_not_depend_on_the_blocks(block_rows: int) -> None:
    found = assigned(block_rows, leaves=dask.delayed(leaves)())
    assert np.concatenate(found.labels).tolist() == LABELS
    assert np.concatenate(found.fine).tolist() == FINE_LABELS
    assert found.leaf_counts is not None
    assert found.leaf_counts.tolist() == [1, 1, 1, 1, 0]  # no row is near the last leaf


def test_no_leaves_without_a_fine_level() -> None:
    found = assigned(4)
    assert found.leaf_counts is None
    assert found.fine == ()


def test_labels_of_the_fine_level_are_written_to_a_store(tmp_path: Path) -> None:
    store = create_labels_store(locate(tmp_path / "l"), 6, 4, margins=False, fine=True)
    found = assigned(4, labels_at=store, collect=False, leaves=dask.delayed(leaves)())
    assert found.labels == found.fine == ()
    assert found.leaf_counts is not None
    assert found.leaf_counts.sum() == 4
    mark_complete(store)
    for name, labels in (("labels", LABELS), (FINE, FINE_LABELS)):
        assert read_rows(open_labels(store, "it", name), 0, 6, "it").tolist() == labels


def test_infinite_radius_gives_no_outliers() -> None:
    found = assigned(4, math.inf)
    assert np.concatenate(found.labels)[[0, 1, 3, 4, 5]].tolist() == [0, 1, 0, 1, 1]
    assert found.sums.counts.sum() == 6


def test_sums_are_weighted() -> None:
    weights = da.from_array(np.array([[1.0], [2.0], [8.0], [3.0], [0.0], [1.0]]), chunks=(4, 1))
    sums = assigned(4, weights=weights).sums
    assert sums.masses.tolist() == [4.0, 2.0]
    assert sums.offsets.tolist() == [[1.0 - 6.0], [-2.0]]
    assert sums.total_mass == 15.0


@pytest.mark.parametrize("only_labels", [False, True])
def test_labels_are_written_to_a_store(tmp_path: Path, only_labels: bool) -> None:
    store = create_labels_store(locate(tmp_path / "labels.zarr"), 6, 4, margins=True)
    if only_labels:
        with Execution(lambda event: None) as execution:
            options = {"labels_at": store, "margins": True, "collect": False}
            found: Any = label_pass(execution, as_features(X, 4), CENTERS, 9.0, **options)
    else:
        found = assigned(4, labels_at=store, margins=True, collect=False)
    assert found.labels == ()
    labels, distances = read_labels_block(store, 0, 6)
    assert labels.tolist() == LABELS
    assert distances.tolist() == [1.0, 1.0, 5.0, 2.0, 1.0, 3.0]


@pytest.mark.parametrize("block_rows", [1, 4, 6])
def test_sizes_of_clusters_for_a_given_model(block_rows: int) -> None:
    with Execution(lambda event: None) as execution:
        found = label_pass(execution, as_features(X, block_rows), CENTERS, 9.0, **USUAL)
    assert found.counts.tolist() == [2, 2]
    assert found.n_rows == 6
    assert np.concatenate(found.labels).tolist() == LABELS


def test_lazy_labels() -> None:
    wide = np.concatenate([X, np.zeros((6, 1))], axis=1)
    affine = AffineMap("none", np.zeros(2), np.ones(2))
    centers = dask.delayed(prepare_centers)(np.array([[0.0, 0.0], [10.0, 0.0]]), affine)
    found = lazy_labels(da.from_array(wide, chunks=(4, 1)), centers, 9.0)
    assert (found.chunks, found.dtype) == (((4, 2),), np.int32)
    assert found.compute().tolist() == LABELS


def test_error_names_the_row_that_is_not_finite() -> None:
    x = X.copy()
    x[5] = np.nan
    with pytest.raises(InputError, match=expecting("row 1", "NaN")):
        lazy_labels(da.from_array(x, chunks=(4, 1)), CENTERS, 9.0).compute()
