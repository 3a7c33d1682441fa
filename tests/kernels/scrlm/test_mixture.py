"""Sigma of truncated clusters, and the mixture from sums over blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import chdtr

from scrlm_dask.kernels.distances.cluster_sums import ClusterSums
from scrlm_dask.kernels.scrlm.mixture import mixture_parameters, truncated_sigma


def mean_sq_by_quadrature(sigma: float, n_features: int, radius: float) -> float:
    """Return E |y|^2 inside the radius by integrating the density of |y|."""
    # midpoints avoid log(0), and the step size cancels in the ratio
    r = (np.arange(200_000) + 0.5) * (radius / 200_000)
    log_density = (n_features - 1) * np.log(r) - 0.5 * (r / sigma) ** 2
    density = np.exp(log_density - log_density.max())
    return float(np.sum(r**2 * density) / np.sum(density))


def sums_of(
    x: NDArray[np.float64],
    labels: NDArray[np.int64],
    centers: NDArray[np.float64],
    scale: NDArray[np.float64],
) -> ClusterSums:
    """Compute the sums of each cluster by their definition."""
    own = [x[labels == j] - center for j, center in enumerate(centers)]
    return ClusterSums(
        counts=np.array([d.shape[0] for d in own], dtype=np.int64),
        masses=np.array([d.shape[0] for d in own], dtype=np.float64),
        offsets=np.array([d.sum(axis=0) for d in own]).reshape(centers.shape),
        sq_distances=np.array([np.square(d * scale).sum() for d in own]),
        input_sq_distances=np.array([np.square(d).sum() for d in own]),
        n_rows=x.shape[0],
        total_mass=float(x.shape[0]),
    )


def unscaled(
    counts: list[int], offsets: NDArray[np.float64], sq_distances: list[float], n_rows: int
) -> ClusterSums:
    """Return sums whose model units equal the input units."""
    sq = np.array(sq_distances)
    masses = np.array(counts, np.float64)
    return ClusterSums(np.array(counts, np.int64), masses, offsets, sq, sq, n_rows, float(n_rows))


# ---------------------------------------------------------------- truncated_sigma


def test_sigma_of_identical_rows_is_zero() -> None:
    assert truncated_sigma(0.0, 5, 2.0) == 0.0


def test_sigma_with_a_large_radius_is_not_corrected() -> None:
    # no rows are truncated: sigma^2 = 12 / 3 = 4
    assert truncated_sigma(12.0, 3, 1e3) == pytest.approx(2.0, rel=1e-15)
    assert truncated_sigma(12.0, 3, math.inf) == pytest.approx(2.0, rel=1e-15)
    assert truncated_sigma(1e-300, 3, 1e100) == pytest.approx(math.sqrt(1e-300 / 3))


def test_sigma_in_two_dimensions_by_hand() -> None:
    # p = 2: G_2(x) = 1 - exp(-x/2) and G_4(x) = 1 - exp(-x/2)(1 + x/2). With sigma = 1, x = R^2:
    # R^2 = 2 log 4 = 2.772589 gives exp(-x/2) = 1/4, G_2 = 3/4, G_4 = 1 - (1 + log 4)/4 =
    # 3/4 - 0.3465736, so E = 2 (1 - 0.3465736/0.75) = 1.0758037
    radius = math.sqrt(2 * math.log(4))
    assert truncated_sigma(1.0758037, 2, radius) == pytest.approx(1.0, abs=1e-6)
    # all lengths are three times as large
    assert truncated_sigma(9 * 1.0758037, 2, 3 * radius) == pytest.approx(3.0, abs=3e-6)


@pytest.mark.parametrize("n_features", [1, 2, 5, 64, 640, 4096])
def test_sigma_is_capped_if_rows_fill_the_ball_evenly(n_features: int) -> None:
    radius = 3.0
    cap = radius / math.sqrt(n_features)
    edge = mean_sq_by_quadrature(cap, n_features, radius)
    assert truncated_sigma(edge * 1.001, n_features, radius) == cap
    even = radius**2 * n_features / (n_features + 2)  # rows that fill the ball evenly
    assert truncated_sigma(even, n_features, radius) == cap
    assert truncated_sigma(radius**2, n_features, radius) == cap
    below = truncated_sigma(edge * 0.999, n_features, radius)
    assert 0.9 * cap < below < cap


@pytest.mark.parametrize("n_features", [1, 2, 5, 64, 640, 4096])
@pytest.mark.parametrize("relative", [0.1, 0.5, 0.9, 0.99, 0.9999])
def test_sigma_inverts_an_integral_of_the_density(n_features: int, relative: float) -> None:
    radius = 3.0
    sigma = relative * radius / math.sqrt(n_features)
    mean_sq = mean_sq_by_quadrature(sigma, n_features, radius)
    assert truncated_sigma(mean_sq, n_features, radius) == pytest.approx(sigma, rel=1e-8)


@pytest.mark.parametrize("n_features", [1, 2, 5, 64, 640])
def test_sigma_of_random_rows(n_features: int) -> None:
    rng = np.random.default_rng(20240 + n_features)
    sigma, radius = 0.4, 0.4 * math.sqrt(n_features) / 0.97
    # |y|^2 / sigma^2 of a Gaussian row is chi-squared, so no features need to be drawn
    sq = sigma**2 * rng.chisquare(n_features, size=200_000)
    mean_sq = float(sq[sq < radius**2].mean())
    plain_error = abs(math.sqrt(mean_sq / n_features) - sigma)
    assert abs(truncated_sigma(mean_sq, n_features, radius) - sigma) < 0.1 * plain_error


@given(
    n_features=st.integers(1, 5000),
    share=st.floats(0.0, 1.0),
    factor=st.floats(1.0, 1.2),
    radius=st.floats(1e-3, 1e3),
)
def test_sigma_grows_with_the_distances_and_is_bounded(
    n_features: int, share: float, factor: float, radius: float
) -> None:
    mean_sq = share * radius**2
    sigma = truncated_sigma(mean_sq, n_features, radius)
    cap = radius / math.sqrt(n_features)
    assert min(math.sqrt(mean_sq / n_features), cap) * (1 - 1e-12) <= sigma <= cap
    assert truncated_sigma(mean_sq * factor, n_features, radius) >= sigma * (1 - 1e-12)


# ---------------------------------------------------------------- mixture_parameters


def test_mixture_by_hand() -> None:
    # Four rows, p = 1, center 10, no truncation: rows 10, 12, 14 are its cluster, one outlier.
    # offsets 0+2+4 = 6, mean 10 + 6/3 = 12; scale 1/2: squared distances 0 + 1 + 4 = 5,
    # scatter 5 - 3 (2/2)^2 = 2, sigma^2 = 2/(3-1) = 1 in model units; in input units the squared
    # distances are 0 + 4 + 16 = 20, the scatter 20 - 3 2^2 = 8, sigma^2 = 8/2 = 4
    sums = ClusterSums(
        np.array([3]), np.array([3.0]), np.array([[6.0]]), np.array([5.0]), np.array([20.0]), 4, 4.0
    )
    fit = mixture_parameters(sums, np.array([[10.0]]), np.array([0.5]), math.inf)
    np.testing.assert_allclose(fit.means, [[12.0]])
    np.testing.assert_allclose(fit.sigmas, [2.0])
    np.testing.assert_allclose(fit.weights, [0.75])
    assert fit.outlier_weight == pytest.approx(0.25)


def test_sigma_is_measured_in_input_units() -> None:
    # p = 2, the second feature constant and scaled by 1: rows (0, 9), (3, 9), (6, 9) around the
    # center (3, 9): squared distances 9 + 0 + 9 = 18, sigma^2 = 18 / 2 / p = 4.5 in input units
    sums = ClusterSums(
        np.array([3]), np.array([3.0]), np.zeros((1, 2)), np.array([2.0]), np.array([18.0]), 3, 3.0
    )
    fit = mixture_parameters(sums, np.array([[3.0, 9.0]]), np.array([1 / 3, 1.0]), math.inf)
    np.testing.assert_allclose(fit.sigmas, [math.sqrt(4.5)])


def test_weight_is_divided_by_the_share_inside_the_radius() -> None:
    # p = 2, R^2 = 2 log 4: 3/4 of a unit Gaussian is inside (see the test of sigma above)
    count = 3001
    sums = unscaled([count], np.zeros((1, 2)), [1.0758037 * (count - 1)], 10 * count)
    fit = mixture_parameters(sums, np.zeros((1, 2)), np.ones(2), math.sqrt(2 * math.log(4)))
    np.testing.assert_allclose(fit.sigmas, [1.0], atol=1e-6)
    np.testing.assert_allclose(fit.weights, [0.1 / 0.75], atol=1e-6)
    assert fit.outlier_weight == pytest.approx(1 - 0.1 / 0.75, abs=1e-6)


def test_clusters_without_rows_and_with_one_row() -> None:
    # the row of the second center is 0.1 away: its scatter is 0 except for rounding
    centers = np.array([[1.0, 2.0], [5.0, 5.0]])
    offsets = np.array([[0.0, 0.0], [0.1, 0.0]])
    sums = unscaled([0, 1], offsets, [0.0, 0.1**2 + 1e-17], 4)
    fit = mixture_parameters(sums, centers, np.ones(2), 1.0)
    np.testing.assert_array_equal(fit.means, [[1.0, 2.0], [5.1, 5.0]])
    np.testing.assert_array_equal(fit.sigmas, [0.0, 0.0])
    np.testing.assert_array_equal(fit.weights, [0.0, 0.25])
    assert fit.outlier_weight == 0.75


def test_negative_scatter_is_set_to_zero() -> None:
    sums = unscaled([2], np.array([[0.2]]), [0.02 - 1e-12], 2)
    fit = mixture_parameters(sums, np.zeros((1, 1)), np.ones(1), 1.0)
    assert fit.sigmas[0] == 0.0


def test_no_clusters_and_no_rows() -> None:
    none = unscaled([], np.zeros((0, 3)), [], 7)
    fit = mixture_parameters(none, np.zeros((0, 3)), np.ones(3), 1.0)
    assert fit.weights.shape == fit.sigmas.shape == (0,)
    assert fit.means.shape == (0, 3)
    assert fit.outlier_weight == 1.0
    empty = unscaled([0], np.zeros((1, 3)), [0.0], 0)
    assert mixture_parameters(empty, np.ones((1, 3)), np.ones(3), 1.0).outlier_weight == 1.0


def test_corrected_weights_sum_to_at_most_one() -> None:
    # both clusters at the cap: each weight 1/4 or 3/4 is divided by G_2(2) = 1 - 1/e = 0.632
    sums = unscaled([100, 300], np.zeros((2, 2)), [99.0, 299.0], 400)
    fit = mixture_parameters(sums, np.zeros((2, 2)), np.ones(2), 1.0)
    np.testing.assert_allclose(fit.weights, [0.25, 0.75])
    assert fit.outlier_weight == 0.0


def test_far_from_the_origin() -> None:
    sums = unscaled([3], np.array([[3.0]]), [5.0], 3)
    near = mixture_parameters(sums, np.zeros((1, 1)), np.ones(1), 10.0)
    # float64 cannot represent 1e16 + 1, so the mean loses the drift, but sigma must not
    far = mixture_parameters(sums, np.full((1, 1), 1e16), np.ones(1), 10.0)
    np.testing.assert_array_equal(far.sigmas, near.sigmas)


def test_recovers_the_true_mixture() -> None:
    rng = np.random.default_rng(7)
    n_features, radius, counts = 5, 2.0, (12_000, 6_000, 2_000)  # the last are outliers
    scale = np.array([1.0, 2.0, 0.5, 1.0, 4.0])
    means = np.array([[0.0] * 5, [100.0] * 5])
    sigmas = np.array([0.5, 0.7])  # model units; the second loses 15 % of its rows
    inliers = [
        mean + sigma * rng.standard_normal((count, n_features)) / scale
        for mean, sigma, count in zip(means, sigmas, counts[:2], strict=True)
    ]
    x = np.concatenate([*inliers, np.full((counts[2], n_features), -1e3)])
    centers = means + 0.05 / scale
    distances = np.linalg.norm((x[:, None, :] - centers) * scale, axis=2)
    labels = np.where(distances.min(axis=1) < radius, distances.argmin(axis=1), -1)

    fit = mixture_parameters(sums_of(x, labels, centers, scale), centers, scale, radius)

    to_input = math.sqrt(np.mean(1 / scale**2))
    np.testing.assert_allclose(fit.sigmas, sigmas * to_input, rtol=0.02)
    np.testing.assert_allclose(fit.weights, [0.6, 0.3], rtol=0.02)
    np.testing.assert_allclose(fit.means * scale, means * scale, atol=0.05)
    assert fit.outlier_weight == pytest.approx(0.1, abs=0.01)
    # without the correction the weight would be too small
    share = chdtr(n_features, (radius / sigmas[1]) ** 2)
    assert share < 0.9
    assert (labels == 1).mean() == pytest.approx(0.3 * share, rel=0.02)
