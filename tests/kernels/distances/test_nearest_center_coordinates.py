"""Stored coordinates of rows are valid for other points with the same axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scrlm_dask.kernels.distances.nearest_center import nearest_centers
from scrlm_dask.kernels.distances.points import (
    Points,
    map_like,
    move_origin,
    project_rows,
    with_coordinates,
)
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.distances.projections import (
    AxisFrame,
    Subspace,
    distance_bound,
    project_block,
    project_points,
)
from scrlm_dask.kernels.distances.pruning import prepare_centers, prepare_with_axes, subspace_cost

N_KNOWN = 31


def plain(p: int, kind: Any = "none") -> AffineMap:
    return AffineMap(kind, np.zeros(p), np.full(p, 1.5))


def steep(seed: int, rows: int, p: int) -> NDArray[np.float32]:
    spread = np.arange(1, p + 1) ** -0.7
    return np.asarray(np.random.default_rng(seed).normal(size=(rows, p)) * spread, np.float32)


def frame_of(points: Points) -> AxisFrame:
    assert points.axes is not None
    return AxisFrame(points.axes.directions, points.axes.origin)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    p=st.integers(64, 200),
    offset=st.sampled_from([0.0, 1e4]),
    shift=st.sampled_from([0.0, 0.01, 50.0]),
    n_axes=st.sampled_from([1, 15, 31]),
)
def test_stored_coordinates_give_a_lower_bound(
    seed: int, p: int, offset: float, shift: float, n_axes: int
) -> None:
    x = (steep(seed, 120, p) + offset).astype(np.float32)
    first = prepare_with_axes(x[:100], plain(p))
    known = project_rows(x, first, N_KNOWN)
    assert known.shape == (120, N_KNOWN)
    later = prepare_with_axes(x[20:] + np.float32(shift), plain(p), frame_of(first))
    projected = project_points(later, Subspace(n_axes, principal=True))
    moved = move_origin(later, known.shape[1])
    rows = with_coordinates(map_like(x, later), known, moved)
    seen = project_block(rows, projected)
    y, c = 1.5 * x.astype(np.float64), 1.5 * later.raw.astype(np.float64)
    true = np.square(y[:, None] - c[None]).sum(axis=-1)
    sq_sums = rows.sq_norms[:, None] + later.sq_norms
    found = sq_sums - 2.0 * seen.products.astype(np.float64)
    assert (
        found <= distance_bound(true, seen.errors[:, None]) + projected.error_factor * sq_sums
    ).all()
    # the projections of these rows are the same
    expected = project_block(map_like(x, later), projected)
    np.testing.assert_allclose(
        seen.products, expected.products, atol=2e-3 * float(np.sqrt(sq_sums.max())) + 1e-3
    )


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(["none", "l2"]),
    prune=st.sampled_from(["auto", 7, 31, 50]),  # 50 is more than the stored coordinates
)
def test_labels_do_not_depend_on_stored_coordinates(seed: int, kind: str, prune: Any) -> None:
    x = steep(seed, 1100, 120)
    first = prepare_centers(x[:90], plain(120, kind))
    later = prepare_centers(x[10:100] * np.float32(1.1), plain(120, kind), frame_of(first))
    found = nearest_centers(x, later, prune=prune, coordinates=project_rows(x, first, N_KNOWN))
    np.testing.assert_array_equal(found.labels, nearest_centers(x, later, prune=0).labels)


def test_stored_coordinates_reduce_the_cost() -> None:
    subspace, none = Subspace(31, principal=True), np.zeros(1, np.int64)
    projected, known = (subspace_cost(subspace, none, 100, 700, n) for n in (30, 31))
    assert projected - known == 31 * 700
