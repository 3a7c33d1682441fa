"""Pruning does not change results, and each block chooses the cheapest subspace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from scrlm_dask.errors import NonFiniteRowError
from scrlm_dask.kernels.distances.nearest_center import nearest_centers
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.distances.projections import Subspace
from scrlm_dask.kernels.distances.pruning import (
    Pruned,
    max_possible_points,
    merge_pruned,
    prepare_centers,
    prepare_with_axes,
    subspace_cost,
)
from scrlm_dask.kernels.scrlm.loss import LossPart, loss_part, losses_of


def plain(p: int, kind: Any = "none") -> AffineMap:
    return AffineMap(kind, np.zeros(p), np.ones(p))


def mixture(
    seed: int, rows: int, p: int, clusters: int, spread: float, steepness: float = 0.0
) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    deviations = np.arange(1, p + 1) ** -steepness
    means = rng.normal(size=(clusters, p)) * deviations
    x = means[rng.integers(clusters, size=rows)]
    return np.asarray(x + spread * rng.normal(size=(rows, p)) * deviations, np.float32)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    p=st.integers(1, 1000),
    n=st.sampled_from([1, 2, 7, 63, 150]),
    steepness=st.sampled_from([0.0, 0.5, 1.5]),
    offset=st.sampled_from([0.0, 1e3]),
    spread=st.sampled_from([0.05, 0.5, 1.0]),
    size=st.sampled_from([1e-12, 1.0, 1e15]),
    share=st.floats(0.001, 0.9),
    on_a_pair=st.booleans(),
    prune=st.integers(1, 300),
)
def test_loss_does_not_depend_on_pruning(
    seed: int,
    p: int,
    n: int,
    steepness: float,
    offset: float,
    spread: float,
    size: float,
    share: float,
    on_a_pair: bool,
    prune: int,
) -> None:
    x = (mixture(seed, 300, p, 9, spread, steepness) + np.float32(offset)) * np.float32(size)
    x[1] = x[0]
    candidates = prepare_with_axes(x[:n], plain(p))
    distances = cdist(x[:n].astype(np.float64), x.astype(np.float64), "sqeuclidean")
    method = "nearest" if on_a_pair else "linear"  # a pair exactly on the radius is outside
    radii = [float(np.quantile(distances, share, method=method)) + 1e-9 * size**2]
    numbers = np.arange(300)
    dense, pruned = (
        loss_part(x, numbers, candidates, numbers[:n], radii, axes) for axes in (0, prune)
    )
    a, b = losses_of(dense, radii, 2.5)[0], losses_of(pruned, radii, 2.5)[0]
    np.testing.assert_array_equal(a.neighbors, b.neighbors)
    # a neighbor near the radius adds almost nothing, but has the usual rounding error
    off = np.abs(a.losses - b.losses) / (2.5 * np.maximum(a.neighbors, 1))
    assert off.max() <= 1e-5
    assert pruned.pruned.pairs == 300 * n
    assert pruned.pruned.finished + pruned.pruned.dense <= pruned.pruned.pairs


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    p=st.integers(1, 1000),
    steepness=st.sampled_from([0.0, 0.5, 1.5]),
    offset=st.sampled_from([0.0, 1e3]),
    spread=st.sampled_from([0.05, 0.5, 1.0]),
    k=st.sampled_from([1, 2, 7, 63, 100]),
    size=st.sampled_from([1e-22, 1e-15, 1.0, 1e15]),
    dtype=st.sampled_from([np.float32, np.float64]),
    prune=st.integers(1, 200),
    kind=st.sampled_from(["none", "l2"]),
    reach=st.sampled_from([0.1, 1.0, np.inf]),
)
def test_labels_do_not_depend_on_pruning(
    seed: int,
    p: int,
    steepness: float,
    offset: float,
    spread: float,
    k: int,
    size: float,
    dtype: Any,
    prune: int,
    kind: str,
    reach: float,
) -> None:
    assume(p > 1 or kind == "none")  # at unit length all rows would be equal
    x = ((mixture(seed, 400, p, 20, spread, steepness) + offset) * size).astype(dtype)
    x[90] = x[3]  # duplicate centers: the first one gets the rows
    centers = prepare_with_axes(x[:k], plain(p, kind))
    sq_radius = reach * float(np.median(centers.sq_norms))
    dense = nearest_centers(x, centers, sq_radius, 0)
    pruned = nearest_centers(x, centers, sq_radius, prune)
    if np.isinf(reach):
        np.testing.assert_array_equal(dense.labels, pruned.labels)
        assert 90 not in dense.labels
        if kind == "none":
            exact = cdist(
                x.astype(np.float64) / size, x[:k].astype(np.float64) / size, "sqeuclidean"
            )
            found = exact[np.arange(400), dense.labels]
            assert (found <= exact.min(axis=1) * (1 + 1e-9) + 1e-18).all()
    else:  # an outlier may have the label of a center that is farther away than the radius
        known = pruned.labels >= 0
        np.testing.assert_array_equal(dense.labels[known], pruned.labels[known])
        nearest = dense.labels[~known]
        apart = x[~known].astype(np.float64) * dense.inv_norms[~known, None]
        apart -= centers.raw[nearest] * centers.inv_norms[nearest, None]
        assert (np.square(apart).sum(axis=1) >= sq_radius * (1 - 1e-6)).all()
    np.testing.assert_array_equal(dense.inv_norms, pruned.inv_norms)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), p=st.integers(2, 90), prune=st.sampled_from([0, 3, 40]))
def test_losses_of_several_radii_equal_those_of_each(seed: int, p: int, prune: int) -> None:
    x = mixture(seed, 200, p, 6, 0.4)
    candidates = prepare_with_axes(x[:100], plain(p))
    radii = [0.05 * p, 0.3 * p, 0.31 * p, 2.0 * p, 9.0 * p]
    numbers = np.arange(200)

    def part(sq_radii: list[float]) -> LossPart:
        return loss_part(x, numbers, candidates, numbers[:100], sq_radii, prune)

    for one, many in zip(
        (losses_of(part([r]), [r], 2.5)[0] for r in radii),
        losses_of(part(radii), radii, 2.5),
        strict=True,
    ):
        np.testing.assert_array_equal(one.neighbors, many.neighbors)
        np.testing.assert_allclose(one.losses, many.losses, rtol=1e-5, atol=1e-5)


def test_few_axes_for_separate_clusters_and_dense_products_for_one_blob() -> None:
    numbers = np.arange(2048)
    apart = mixture(0, 2048, 128, 30, 0.1)
    candidates = prepare_with_axes(apart[:600], plain(128))
    part = loss_part(apart, numbers, candidates, numbers[:600], [16.0])
    (cut,) = part.pruned.cuts
    assert "principal axes" in cut
    assert part.pruned.dense == 0
    assert part.pruned.finished < 0.05 * part.pruned.pairs
    blob = np.random.default_rng(0).normal(size=(2048, 128)).astype(np.float32)
    candidates = prepare_with_axes(blob[:600], plain(128))
    part = loss_part(blob, numbers, candidates, numbers[:600], [250.0])
    assert part.pruned == Pruned({"dense": 1}, 2048 * 600, 0, 2048 * 600)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    p=st.integers(50, 300),
    spread=st.sampled_from([0.02, 0.3, 0.6, 1.0]),
    offset=st.sampled_from([0.0, 1e3]),
    size=st.sampled_from([1e-12, 1.0, 1e15]),
    kind=st.sampled_from(["none", "l2"]),
    twins=st.booleans(),
)
def test_rows_labelled_by_the_quick_check_have_their_nearest_center(
    seed: int, p: int, spread: float, offset: float, size: float, kind: str, twins: bool
) -> None:
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(80, p))
    x = means[rng.integers(80, size=1200)] + spread * rng.normal(size=(1200, p))
    x[::3] = rng.normal(size=(400, p))  # a third of the rows belongs to no cluster
    raw = ((means + offset) * size).astype(np.float32)
    raw[7] = raw[5] if twins else raw[7]
    rows = ((x + offset) * size).astype(np.float32)
    centers = prepare_centers(raw, plain(p, kind))
    found = nearest_centers(rows, centers)
    np.testing.assert_array_equal(found.labels, nearest_centers(rows, centers, prune=0).labels)


def test_quick_check_labels_rows_near_a_center() -> None:
    rng = np.random.default_rng(0)
    means = rng.normal(size=(600, 400)).astype(np.float32)
    x = means[rng.integers(600, size=2048)] + 0.25 * rng.normal(size=(2048, 400))
    x[:1024] = rng.normal(size=(1024, 400))  # about equally far from all centers
    x = x.astype(np.float32)
    centers = prepare_centers(means, plain(400))
    found = nearest_centers(x, centers).pruned
    assert found == Pruned({"15 features, then dense": 1}, 2048 * 600, 0, 1024 * 600)
    all_near = nearest_centers(x[1024:].repeat(2, axis=0), centers).pruned
    assert (all_near.finished, all_near.dense) == (0, 0)
    # not used for candidates of a loss, where every pair inside the radius counts
    assert prepare_with_axes(means, plain(400)).half_distances is None


def test_given_number_of_axes_and_small_blocks() -> None:
    x = mixture(0, 1500, 100, 30, 0.1)
    centers = prepare_with_axes(x[:80], plain(100))
    assert nearest_centers(x, centers, prune=7).pruned.cuts == {"7 principal axes": 1}
    assert nearest_centers(x, centers, prune=0).pruned.cuts == {"dense": 1}
    assert nearest_centers(x[:1000], centers).pruned.cuts == {"dense": 1}
    few = prepare_with_axes(x[:10], plain(100))
    three = prepare_with_axes(x[:3], plain(100))
    assert nearest_centers(x, three, prune=9).pruned.cuts == {"dense": 1}
    assert few.axes is None
    assert nearest_centers(x, few).pruned.cuts == {"dense": 1}
    assert nearest_centers(x, few, prune=500).pruned.cuts == {"100 features": 1}


def test_rows_with_many_near_points_use_dense_products() -> None:
    # half of the rows are about equally far from all centers, half are close to one center
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(200, 64)).astype(np.float32)
    anywhere = rng.normal(size=(1500, 64))
    close = centers[rng.integers(200, size=1500)] + 0.01 * anywhere
    x = np.concatenate([anywhere, close]).astype(np.float32)
    points = prepare_with_axes(centers, plain(64))
    found = nearest_centers(x, points, prune=16)
    np.testing.assert_array_equal(found.labels, nearest_centers(x, points, prune=0).labels)
    assert 1000 * 200 <= found.pruned.dense <= 1500 * 200


def test_costs_by_hand() -> None:
    # p = 100, n = 700: a row with at least 101 possible points costs 700 * 122, else 700 for each
    # of them; in addition 700 * (10 + 40), and a projection of 10 * 100
    assert max_possible_points(700) == 100
    possible_points = np.array([0, 100, 101])
    finish = (0 + 100 * 700 + 700 * 122) / 3
    assert subspace_cost(Subspace(10), possible_points, 700, 100) == pytest.approx(
        700 * 50 + finish
    )
    assert subspace_cost(Subspace(10, principal=True), possible_points, 700, 100) == pytest.approx(
        1000 + 700 * 50 + finish
    )


def test_merged_counts_and_record() -> None:
    a = Pruned({"dense": 2}, 100, 0, 100)
    b = Pruned({"dense": 1, "16 features": 3}, 300, 30, 20)
    total = merge_pruned(a, b)
    assert total == Pruned({"dense": 3, "16 features": 3}, 400, 30, 120)
    assert total.record() == {
        "blocks": {"16 features": 3, "dense": 3},
        "pairs": 400,
        "finished_share": 0.075,
        "dense_share": 0.3,
    }


@pytest.mark.parametrize("prune", [0, 20, "auto"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_non_finite_row_is_named_with_any_pruning(prune: Any, bad: float) -> None:
    x = mixture(0, 2048, 64, 10, 0.1)
    centers = prepare_with_axes(x[:100], plain(64))
    x[1984, 5] = bad  # also one of the rows by which the subspace is chosen
    with pytest.raises(NonFiniteRowError) as caught:
        nearest_centers(x, centers, prune=prune)
    assert caught.value.row == 1984


def test_no_center_at_all() -> None:
    x = mixture(0, 100, 64, 10, 0.1)
    for prune in (0, 5, "auto"):
        found = nearest_centers(x, prepare_with_axes(x[:0], plain(64)), np.inf, prune)
        assert (found.labels == -1).all()


@pytest.mark.parametrize("size", [2.0**-55, 1.0, 2.0**55])
def test_rows_of_any_magnitude_of_float32(size: float) -> None:
    x = mixture(0, 2048, 128, 30, 0.1) * np.float32(size)
    numbers = np.arange(2048)
    candidates = prepare_with_axes(x[:600], plain(128))
    for sq_radius in (16.0 * size**2, 1e38):
        whole, chosen = (
            loss_part(x, numbers, candidates, numbers[:600], [sq_radius], prune)
            for prune in (0, "auto")
        )
        np.testing.assert_array_equal(whole.neighbors, chosen.neighbors)
        assert whole.neighbors.sum() > 0
        assert whole.neighbors.max() <= 2047  # a row is not a neighbor of itself
    assert any(
        "principal" in cut
        for cut in loss_part(x, numbers, candidates, numbers[:600], [16.0 * size**2]).pruned.cuts
    )


def test_radii_that_do_not_increase_are_rejected() -> None:
    x = mixture(0, 50, 8, 3, 0.1)
    with pytest.raises(ValueError, match=r"\[2\.0, 1\.0\]"):
        loss_part(x, np.arange(50), prepare_with_axes(x, plain(8)), np.arange(50), [2.0, 1.0])
