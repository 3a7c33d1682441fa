"""Rows of the mixture of the paper, drawn in blocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrlm_dask.errors import InputError
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec, synth_block, true_mixture

SPEC = MixtureSpec(n_features=16, n_clusters=5, outliers=0.4, seed=9)


@settings(max_examples=20, deadline=None)
@given(start=st.integers(0, 4000), length=st.integers(0, 2500))
def test_rows_do_not_depend_on_the_split(start: int, length: int) -> None:
    mixture = true_mixture(SPEC)
    whole = synth_block(SPEC, mixture, 0, 6500)
    part = synth_block(SPEC, mixture, start, start + length)
    assert part.features.tobytes() == whole.features[start : start + length].tobytes()
    assert part.labels.tobytes() == whole.labels[start : start + length].tobytes()


def test_parameters_of_the_mixture() -> None:
    spec = MixtureSpec(n_features=200, n_clusters=4, outliers=0.5, seed=1)
    mixture = true_mixture(spec)
    drawn = synth_block(spec, mixture, 0, 20_000)
    assert mixture.sigmas.tolist() == np.linspace(1 / 16, 1 / 4, 4).tolist()
    assert mixture.weights.sum() == pytest.approx(0.5)
    assert (mixture.weights >= 0.5 * 0.8 / 1.2 / 4).all()
    assert (drawn.labels == -1).mean() == pytest.approx(0.5, abs=0.02)
    outliers = drawn.features[drawn.labels == -1]
    assert outliers.mean() == pytest.approx(0, abs=0.01)
    assert outliers.std() == pytest.approx(1, abs=0.01)
    for k in range(4):
        rows = drawn.features[drawn.labels == k]
        assert len(rows) / 20_000 == pytest.approx(mixture.weights[k], abs=0.015)
        np.testing.assert_allclose(rows.mean(axis=0), mixture.means[k], atol=0.05)
        assert (rows - mixture.means[k]).std() == pytest.approx(mixture.sigmas[k], rel=0.01)


def test_no_outliers_and_only_outliers() -> None:
    none = MixtureSpec(2, 3, outliers=0.0)
    assert set(synth_block(none, true_mixture(none), 0, 3000).labels) == {0, 1, 2}
    only = MixtureSpec(2, 3, outliers=1.0)
    assert set(synth_block(only, true_mixture(only), 0, 3000).labels) == {-1}


def test_seeds_differ() -> None:
    other = MixtureSpec(16, 5, 0.4, seed=10)
    a, b = (synth_block(s, true_mixture(s), 0, 10) for s in (SPEC, other))
    assert not np.array_equal(a.features, b.features)


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"n_features": 0}, r"(?=.*features)(?=.*\b0\b)"),
        ({"n_clusters": 0}, r"(?=.*clusters)(?=.*\b0\b)"),
        ({"outliers": 1.5}, r"(?=.*outliers)(?=.*\b1\.5\b)"),
        ({"sigma_min": 0.0}, r"(?=.*sigma)(?=.*\b0\.0\b)"),
        ({"sigma_min": 0.5}, r"(?=.*sigma)(?=.*\b0\.5\b)(?=.*\b0\.25\b)"),
        ({"seed": -1}, r"(?=.*seed)(?=.*-1\b)"),
    ],
)
def test_invalid_parameters_are_rejected(change: dict[str, float], facts: str) -> None:
    with pytest.raises(InputError, match=facts):
        MixtureSpec(**{"n_features": 2, "n_clusters": 2, **change})
