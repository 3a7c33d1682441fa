"""Theorem 2 of Hsu and Kakade: exact for exact moments, accurate for random rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from scrlm_dask.errors import InputError
from scrlm_dask.kernels.evaluation.metrics import contingency, scores, with_outlier_cluster
from scrlm_dask.kernels.randomness.synthesis import (
    MixtureSpec,
    SynthBlock,
    synth_block,
    true_mixture,
)
from scrlm_dask.paper.moment_tensor import SphericalMixture, most_likely, spherical_mixture

MEANS = np.array([[0, 0, 0, 0, 0, 0], [4, 0, 0, 1, 0, 0], [0, 5, -2, 0, 0, 1]], np.float64)
COPIES, SIGMAS = (3, 1, 2), (1.0, 0.25, 0.5)


def crosses() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return rows mu +- sigma sqrt(p) e_j: three moments equal those of a spherical Gaussian."""
    p = MEANS.shape[1]
    arms = np.sqrt(p) * np.vstack([np.eye(p), -np.eye(p)])
    parts = [
        np.tile(mean + sigma * arms, (copies, 1))
        for mean, copies, sigma in zip(MEANS, COPIES, SIGMAS, strict=True)
    ]
    truth = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return np.vstack(parts).astype(np.float32), truth


def decompose(rows: NDArray[np.float32], k: int, seed: int = 0) -> SphericalMixture:
    return spherical_mixture(rows, k, np.random.default_rng(seed))


def draw_mixture(spec: MixtureSpec, n_rows: int) -> SynthBlock:
    return synth_block(spec, true_mixture(spec), 0, n_rows)


def accuracy(truth: NDArray[np.int32], labels: NDArray[np.int64]) -> float:
    return scores(with_outlier_cluster(contingency(truth, labels))).accuracy


@pytest.mark.parametrize("seed", range(3))
def test_exact_moments_give_the_exact_mixture(seed: int) -> None:
    # one mean is the origin, which raw moments do not detect
    found = decompose(crosses()[0], 3, seed)
    order = [0, 2, 1]  # heaviest first
    assert found.weights == pytest.approx([3 / 6, 2 / 6, 1 / 6], abs=1e-5)
    assert found.means == pytest.approx(MEANS[order], abs=1e-4)
    assert found.variances == pytest.approx(np.square(SIGMAS)[order], abs=1e-4)


def test_points_without_noise() -> None:
    rows = np.repeat(np.eye(3, 5, dtype=np.float32), [1, 2, 3], axis=0)
    found = decompose(rows, 3)
    assert found.weights == pytest.approx([3 / 6, 2 / 6, 1 / 6], abs=1e-5)
    assert found.means == pytest.approx(np.eye(3, 5)[::-1], abs=1e-5)
    assert found.variances == pytest.approx(0.0, abs=1e-6)
    assert most_likely(rows, found).tolist() == [2, 1, 1, 0, 0, 0]


def test_row_belongs_to_the_most_likely_component() -> None:
    mixture = SphericalMixture(
        weights=np.array([0.5, 0.5]),
        means=np.array([[0.0, 0.0], [3.0, 0.0]]),
        variances=np.array([4.0, 0.25]),
    )
    # 1.7 is nearer to 3, but 2.6 deviations from it, and less than one from the origin:
    # -log 4 - 1.7^2 / 8 = -1.75 against log 4 - 1.3^2 / 0.5 = -1.99
    rows = np.array([[1.7, 0.0], [2.6, 0.0], [-9.0, 0.0]], np.float32)
    assert most_likely(rows, mixture).tolist() == [0, 1, 0]


def test_negative_variance_is_treated_as_small() -> None:
    mixture = SphericalMixture(
        np.array([0.5, 0.5]), np.array([[0.0], [9.0]]), np.array([1.0, -1.0])
    )
    labels = most_likely(np.array([[0.0], [9.0]], np.float32), mixture)
    assert labels.tolist() == [0, 1]


def test_random_mixture_is_recovered() -> None:
    spec = MixtureSpec(n_features=30, n_clusters=4, outliers=0.5)
    truth, block = true_mixture(spec), draw_mixture(spec, 40_000)
    found = decompose(block.features, 5)
    # the outliers are the heaviest component: N(0, I)
    assert found.weights[0] == pytest.approx(0.5, abs=0.01)
    assert found.variances[0] == pytest.approx(1.0, abs=0.02)
    distances = np.linalg.norm(truth.means[:, None] - found.means[1:], axis=2) / np.sqrt(30)
    nearest = distances.argmin(axis=1)
    assert sorted(nearest) == [0, 1, 2, 3]
    assert distances.min(axis=1) == pytest.approx(0.0, abs=1e-2)
    assert found.weights[1:][nearest] == pytest.approx(truth.weights, abs=5e-3)
    assert accuracy(block.labels, most_likely(block.features, found)) == 1.0


@pytest.mark.parametrize(
    ("n_clusters", "n_features", "n_rows"),
    [(2, 100, 500), (10, 100, 2000), (10, 500, 500), (5, 1000, 500)],
)
def test_rows_of_the_mixture_of_the_paper_are_labelled_correctly(
    n_clusters: int, n_features: int, n_rows: int
) -> None:
    # also with fewer rows than features, where the smallest eigenvalue is zero
    block = draw_mixture(MixtureSpec(n_features, n_clusters, 0.5), n_rows)
    found = decompose(block.features, n_clusters + 1)
    assert accuracy(block.labels, most_likely(block.features, found)) == 1.0


def test_labels_do_not_depend_on_the_location_of_the_data() -> None:
    spec = replace(MixtureSpec(50, 3, 0.3), seed=2)
    rows = draw_mixture(spec, 1000).features
    here = most_likely(rows, decompose(rows, 4))
    there = most_likely(rows + np.float32(1e3), decompose(rows + np.float32(1e3), 4))
    assert np.array_equal(here, there)


def test_one_component_contains_all_rows() -> None:
    rows = draw_mixture(MixtureSpec(6, 1, 0.0), 200).features
    found = decompose(rows, 1)
    assert found.weights.tolist() == [1.0]
    assert found.means[0] == pytest.approx(rows.mean(axis=0), abs=1e-5)
    assert most_likely(rows, found).tolist() == [0] * 200


@pytest.mark.parametrize(("k", "shape"), [(0, (9, 4)), (5, (9, 4)), (4, (3, 9))])
def test_too_many_components_are_rejected(k: int, shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    with pytest.raises(InputError, match=rf"(?=.*\b{k}\b)(?=.*\b{min(shape)}\b)"):
        decompose(rows, k)


def test_identical_rows_are_rejected() -> None:
    with pytest.raises(InputError, match=r"\b9\b"):
        decompose(np.ones((9, 4), np.float32), 2)
