"""The search for rho on a sample: sizes, number of candidates, and centers."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from scrlm_dask.kernels.bandwidth.ladder import pair_sq_distances
from scrlm_dask.kernels.bandwidth.search import (
    LEAST_CANDIDATES,
    LEAST_JUDGED,
    MOST_CANDIDATES,
    MOST_HELD_OUT,
    MOST_JUDGED,
    PERTURBATION,
    SampleScan,
    ScanSizes,
    scan_sample,
    scan_sizes,
)
from scrlm_dask.kernels.distances.preprocessing import fit_map
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec, synth_block, true_mixture


def mixture(p: int, m: int, outliers: float, rows: int) -> Any:
    spec = MixtureSpec(p, m, outliers)
    return synth_block(spec, true_mixture(spec), 0, rows)


def test_only_one_table_of_distances_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[weakref.ref[np.ndarray]] = []

    def check_and_compute(*args: Any) -> np.ndarray:
        assert all(table() is None for table in tables)
        found = pair_sq_distances(*args)
        tables.append(weakref.ref(found))
        return found

    monkeypatch.setattr("scrlm_dask.kernels.bandwidth.ladder.pair_sq_distances", check_and_compute)
    scan_sample(
        mixture(32, 40, 0.5, rows=2000).features,
        fit_map("none", 32, None),
        ScanSizes(candidates=100, judged=2000, held_out=0),
        rho=0.4,
        F=2.5,
        n_clusters=None,
        min_neighbors=1,
        extraction="residual",
    )
    assert len(tables) > 1


def test_number_of_candidates_is_increased_if_needed() -> None:
    rows = np.random.default_rng(0).normal(size=(600, 12))
    scan = scan_sample(
        rows,
        fit_map("none", 12, None),
        ScanSizes(candidates=30, judged=600, held_out=0),
        rho=None,
        F=2.5,
        n_clusters=60,
        min_neighbors=1,
        extraction=None,
    )
    assert scan is not None
    assert (scan.first_candidates, scan.n_candidates) == (30, 600)
    assert len(scan.found.centers) == 60


@pytest.mark.parametrize(
    ("n_rows", "n_clusters", "expected"),
    [
        (100, None, ScanSizes(100, 100, 0)),
        (LEAST_JUDGED, 1, ScanSizes(LEAST_CANDIDATES, LEAST_JUDGED, 0)),
        (LEAST_JUDGED + 5, 1, ScanSizes(LEAST_CANDIDATES, LEAST_JUDGED, 5)),
        (10**9, None, ScanSizes(LEAST_CANDIDATES, LEAST_JUDGED, MOST_HELD_OUT)),
        (10**9, 10**6, ScanSizes(MOST_CANDIDATES, MOST_JUDGED, MOST_HELD_OUT)),
    ],
)
def test_sizes_have_bounds(n_rows: int, n_clusters: int | None, expected: ScanSizes) -> None:
    assert scan_sizes(n_rows, n_clusters) == expected
    assert expected.rows == expected.judged + expected.held_out <= n_rows


def three_groups() -> np.ndarray:
    """Return 40 rows each around 0, 100 and 200, in random order."""
    rng = np.random.default_rng(0)
    rows = np.repeat([[0.0] * 8, [100.0] * 8, [200.0] * 8], 40, axis=0)
    return rng.permutation(rows + rng.normal(size=rows.shape))


def scan(rows: np.ndarray, **options: Any) -> SampleScan | None:
    defaults = {"rho": None, "F": 2.5, "n_clusters": None, "min_neighbors": 1, "extraction": None}
    sizes = ScanSizes(len(rows), len(rows), 0)
    return scan_sample(rows, fit_map("none", rows.shape[1], None), sizes, **defaults | options)


@pytest.mark.parametrize("options", [{}, {"n_clusters": 3, "extraction": "merge"}, {"rho": 3.0}])
def test_separate_groups_are_found(options: dict[str, Any]) -> None:
    rows = three_groups()
    found = scan(rows, **options)
    assert found is not None
    centers = np.sort(found.found.centers[:, 0])
    means = [rows[np.round(rows[:, 0] / 100) == k, 0].mean() for k in range(3)]
    np.testing.assert_allclose(centers, means, atol=1e-6)
    assert found.coverage == 1.0
    assert 0.8 < found.sigma_max < 1.3  # the true sigma is 1
    assert found.extraction == options.get("extraction", "residual")
    if "rho" in options:
        assert (found.choice.rho, found.choice.basis) == (3.0, "given")
        assert found.perturbed == ()
    else:
        factors = [other.rho / found.choice.rho for other in found.perturbed]
        np.testing.assert_allclose(factors, [1 - PERTURBATION, 1 + PERTURBATION])
        assert [(other.clusters, other.ari) for other in found.perturbed] == [(3, 1.0)] * 2


def test_no_result_for_equal_rows() -> None:
    assert scan(np.ones((20, 3))) is None


def test_given_number_of_candidates_is_not_changed() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 4))
    found = scan_sample(
        rows,
        fit_map("none", 4, None),
        ScanSizes(candidates=20, judged=300, held_out=0),
        rho=None,
        F=2.5,
        n_clusters=30,
        min_neighbors=1,
        extraction="merge",
        keep_candidates=True,
    )
    assert found is not None
    assert (found.first_candidates, found.n_candidates) == (20, 20)
