"""The search for rho on a sample: sizes, number of candidates, and centers."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import pytest

from scrlm_dask.kernels.bandwidth.ladder import pair_sq_distances
from scrlm_dask.kernels.bandwidth.modularity import LEAST_ROWS, null_rows
from scrlm_dask.kernels.bandwidth.representation import LEAST_DIRECTIONS
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
from scrlm_dask.kernels.distances.points import prepare_points
from scrlm_dask.kernels.distances.preprocessing import (
    AffineMap,
    block_moments,
    fit_map,
    needs_moments,
)
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
        [fit_map("none", 32, None)],
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
        [fit_map("none", 12, None)],
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


AUTO = ("standardize", "l2", "center")


def maps_of(rows: np.ndarray, kinds: tuple[str, ...]) -> list[AffineMap]:
    moments = block_moments(rows)
    return [
        fit_map(kind, rows.shape[1], moments if needs_moments(kind) else None) for kind in kinds
    ]


def scan(rows: np.ndarray, kinds: tuple[str, ...] = ("none",), **options: Any) -> SampleScan | None:
    defaults = {"rho": None, "F": 2.5, "n_clusters": None, "min_neighbors": 1, "extraction": None}
    sizes = scan_sizes(len(rows), options.get("n_clusters"))
    return scan_sample(rows, maps_of(rows, kinds), sizes, **defaults | options)


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
        [fit_map("none", 4, None)],
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


# --- no clear scale: modularity ------------------------------------------------------------------


def overlapping(n: int = 1500, k: int = 12, p: int = 30) -> np.ndarray:
    """Return k clusters with unit deviation whose centers have deviation 0.9."""
    rng = np.random.default_rng(0)
    centers = 0.9 * rng.normal(size=(k, p))
    return (centers[rng.integers(k, size=n)] + rng.normal(size=(n, p))).astype(np.float32)


def test_modularity_decides_without_a_clear_scale() -> None:
    found = scan(overlapping())
    assert found is not None
    assert (found.choice.basis, found.extraction, found.coverage) == ("modularity", "merge", 1.0)
    assert not found.choice.clear
    assert found.levels is not None
    assert found.levels.structure == "clear"
    assert 10 <= found.levels.clusters <= 14
    assert found.choice.clusters == found.levels.clusters == len(found.found.centers)
    assert found.choice.why == found.levels.describe()
    assert found.perturbed == found.maps == ()
    assert (found.found.fine is None) == (found.levels.fine is None)


def test_centers_are_found_at_distinct_candidates() -> None:
    rows = overlapping()
    found = scan(rows)
    assert found is not None
    centers, positions = found.found.centers, found.found.positions
    assert len(set(positions.tolist())) == len(centers) == len(found.found.losses)
    # the candidate of each center is nearer to its center than to the others
    nearest = np.square(rows[positions, None] - centers).sum(axis=-1).argmin(axis=1)
    assert nearest.tolist() == list(range(len(centers)))
    assert (found.found.losses < 0.0).all()
    assert (found.found.neighbors > 0).all()


def test_rho_has_the_radius_of_the_null() -> None:
    """Half of the null is outside this radius; few rows of overlapping clusters are."""
    rows = overlapping()
    found = scan(rows)
    assert found is not None
    assert found.null is not None
    assert found.choice.rho * math.sqrt(2.5 * 30) == pytest.approx(found.null.radius)
    distances = np.sqrt(np.square(rows[:, None] - found.found.centers).sum(axis=-1)).min(axis=1)
    assert found.null.outside == pytest.approx(np.mean(distances > found.null.radius), abs=2e-3)
    assert found.null.outside < 0.1
    points = prepare_points(rows, found.affine)
    null = null_rows(points) + points.shift
    nearest = np.sqrt(np.square(null[:, None] - found.found.centers).sum(axis=-1)).min(axis=1)
    assert np.median(nearest) == pytest.approx(found.null.radius, rel=0.02)


def test_fine_centers_are_those_of_the_fine_level() -> None:
    """Each of four groups is divided into clusters that overlap."""
    rng = np.random.default_rng(0)
    groups = np.repeat(2.0 * rng.normal(size=(4, 10)), 8, axis=0)
    centers = groups + 0.7 * rng.normal(size=(32, 10))
    found = scan(centers[rng.integers(32, size=1500)] + rng.normal(size=(1500, 10)))
    assert found is not None
    assert found.levels is not None
    assert found.levels.fine is not None
    assert found.found.fine is not None
    assert found.found.fine.shape == (found.levels.fine, 10)


@pytest.mark.parametrize("kinds", [("none",), AUTO])
def test_result_is_reproducible(kinds: tuple[str, ...]) -> None:
    rows = overlapping(800)
    one, two = scan(rows, kinds), scan(rows, kinds)
    assert one is not None
    assert two is not None
    assert one.choice == two.choice
    assert one.levels == two.levels
    assert (one.maps, one.null, one.sigma_max) == (two.maps, two.null, two.sigma_max)
    for name in ("centers", "positions", "losses", "neighbors", "fine"):
        a, b = getattr(one.found, name), getattr(two.found, name)
        assert (a is None) == (b is None)
        assert a is None or a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    ("options", "basis", "extraction"),
    [
        ({"n_clusters": 12}, "held-out", "merge"),
        ({"by_modularity": False}, "persistent", "residual"),
        ({"extraction": "residual"}, "persistent", "residual"),
        ({"extraction": "residual", "by_modularity": False}, "persistent", "residual"),
        ({"rho": 1.0}, "given", "residual"),
    ],
)
def test_other_rules_are_unchanged(options: dict[str, Any], basis: str, extraction: str) -> None:
    found = scan(overlapping(600), **options)
    assert found is not None
    assert (found.choice.basis, found.extraction) == (basis, extraction)
    assert found.levels is None
    assert found.found.fine is None
    assert (found.null is None) == (extraction == "residual")


# --- several maps --------------------------------------------------------------------------------


def test_clear_scale_keeps_the_first_map() -> None:
    for kinds in (AUTO, AUTO[::-1]):
        found = scan(three_groups(), kinds)
        assert found is not None
        assert found.affine.kind == kinds[0]
        assert (found.choice.basis, found.choice.clusters, found.maps) == ("stretch", 3, ())


def test_best_map_is_used_without_a_clear_scale() -> None:
    """Only standardization shows the clusters, because other features have a large variance."""
    rng = np.random.default_rng(1)
    rows = np.c_[overlapping(1000), 100.0 * rng.normal(size=(1000, 5))]
    found = scan(rows, ("center", "l2", "standardize"))
    assert found is not None
    assert found.affine.kind == "standardize"
    assert [trial.preprocess for trial in found.maps] == ["center", "l2", "standardize"]
    assert found.levels is not None
    assert found.levels.structure == "clear"
    given_number = scan(rows, ("center", "l2", "standardize"), n_clusters=12)
    assert given_number is not None
    assert given_number.affine.kind == "standardize"
    assert [trial.clusters for trial in given_number.maps] == [12, 12, 12]


def test_first_map_is_used_without_structure() -> None:
    rows = np.random.default_rng(0).normal(size=(400, 20))
    for kinds in (AUTO, AUTO[::-1]):
        found = scan(rows, kinds)
        assert found is not None
        assert found.affine.kind == kinds[0]
        assert len(found.maps) == 3
        assert found.levels is not None
        assert found.levels.structure == "none"


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rows_of_unit_length_use_directions(dtype: str) -> None:
    rows = overlapping(500)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(dtype)
    found = scan(rows, AUTO)
    assert found is not None
    assert found.affine.kind == "l2"
    assert found.maps == ()  # no other map is judged
    np.testing.assert_allclose(np.linalg.norm(rows[found.found.positions], axis=1), 1.0, atol=2e-3)
    alone = scan(rows, ("standardize",))
    assert alone is not None
    assert alone.affine.kind == "standardize"  # the only map is used, also for unit rows


def test_directions_of_few_features_are_not_used() -> None:
    """With fewer features than this, directions of a normal distribution are similar."""
    rows = overlapping(300, p=LEAST_DIRECTIONS - 1)
    unit_rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for some in (rows, unit_rows):
        found = scan(some, AUTO)
        assert found is not None
        assert found.affine.kind != "l2"
        assert "l2" not in [trial.preprocess for trial in found.maps]
    alone = scan(rows, ("l2",))
    assert alone is not None
    assert alone.affine.kind == "l2"


def test_given_rho_uses_the_first_map() -> None:
    found = scan(overlapping(300), AUTO, rho=1.0)
    assert found is not None
    assert (found.affine.kind, found.maps) == ("standardize", ())


# --- no structure --------------------------------------------------------------------------------


def one_group(shape: str, n: int, p: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, n, p])
    if shape == "uniform":
        return rng.uniform(size=(n, p)).astype(np.float32)
    deviations = rng.lognormal(0.0, 1.5, p) if shape == "unequal" else np.ones(p)
    return (rng.normal(size=(n, p)) * deviations).astype(np.float32)


# A stretch at a small radius whose clusters have two or three rows.
SMALL_STRETCH = [("normal", 2, 200, 4), ("normal", 2, 200, 7), ("normal", 3, 200, 11)]


@pytest.mark.parametrize("n", [200, 1000])
@pytest.mark.parametrize("p", [2, 5, 20, 100])
@pytest.mark.parametrize("shape", ["normal", "uniform", "unequal"])
def test_one_group_has_no_structure(shape: str, p: int, n: int) -> None:
    for seed in range(2 if n == 200 else 1):
        check_no_structure(one_group(shape, n, p, seed), AUTO)


@pytest.mark.slow
@pytest.mark.parametrize("p", [2, 5, 20, 100])
@pytest.mark.parametrize("shape", ["normal", "uniform", "unequal"])
@pytest.mark.parametrize("kind", ["standardize", "center"])
def test_one_group_has_no_structure_with_one_map(kind: str, shape: str, p: int) -> None:
    check_no_structure(one_group(shape, 400, p, 0), (kind,))


@pytest.mark.parametrize(("shape", "p", "n", "seed"), SMALL_STRETCH)
def test_pairs_of_rows_are_not_clusters(shape: str, p: int, n: int, seed: int) -> None:
    check_no_structure(one_group(shape, n, p, seed), ("standardize",))


def check_no_structure(rows: np.ndarray, kinds: tuple[str, ...]) -> None:
    found = scan(rows, kinds)
    assert found is not None
    assert found.levels is not None, found.choice
    assert found.levels.structure == "none", (found.affine.kind, found.levels.gap)


# --- few, equal and extreme rows -----------------------------------------------------------------


def few(n: int) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(n, 4)).astype(np.float32)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, LEAST_ROWS - 1, LEAST_ROWS, LEAST_ROWS + 1, 40])
@pytest.mark.parametrize("kinds", [("none",), AUTO])
def test_few_rows(n: int, kinds: tuple[str, ...]) -> None:
    found = scan(few(n), kinds)
    if n < LEAST_ROWS:
        assert found is None or found.levels is None
    if found is not None:
        assert np.isfinite(found.found.centers).all()
        assert 0.0 < found.coverage <= 1.0


def with_zero_rows(step: int) -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(300, 5))
    rows[::step] = 0.0
    return rows


def shuffled_copies(distinct: int, copies: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.permutation(np.repeat(rng.normal(size=(distinct, 4)), copies, axis=0))


SPECIAL = {
    "constant feature": np.c_[few(300), np.ones(300)],
    "single feature": few(300)[:, :1],
    "positive feature": np.abs(few(300)[:, :1]),  # all directions are equal
    "some rows of zeros": with_zero_rows(10),
    "many rows of zeros": with_zero_rows(2),
    "pairs": shuffled_copies(150, 2),
    "copies": shuffled_copies(60, 5),
    "two distinct rows": shuffled_copies(2, 60),
    "one other row": np.r_[np.ones((99, 3)), np.zeros((1, 3))],
    "half equal": np.r_[np.ones((100, 4)), few(100)],
    "integers": np.random.default_rng(0).integers(0, 3, (300, 6)).astype(np.float32),
    "one-hot": np.eye(40)[np.random.default_rng(0).integers(0, 40, 400)],
    "more features than rows": np.random.default_rng(0).normal(size=(40, 200)),
    "far from the origin": few(300) + 1e6,
    "small": few(300) * 1e-20,
    "large": few(300) * 1e15,
    "one extreme row": np.r_[few(300), np.full((1, 4), 1e12)],
    "heavy tails": np.random.default_rng(0).standard_cauchy((300, 4)),
}


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("n_clusters", [None, 5])
def test_special_rows(name: str, n_clusters: int | None) -> None:
    found = scan(SPECIAL[name], AUTO, n_clusters=n_clusters)
    assert found is not None
    assert len(found.found.centers) > 0
    assert np.isfinite(found.found.centers).all()
    assert np.isfinite(found.choice.rho)
    assert found.choice.rho > 0.0
    if found.levels is not None:
        assert np.isfinite([found.levels.gap, found.levels.same, found.levels.agreement]).all()


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_no_result_for_equal_rows_with_any_map(value: float) -> None:
    assert scan(np.full((100, 3), value), AUTO) is None


def test_map_whose_distances_overflow_is_not_used() -> None:
    found = scan(few(300) * 1e18, AUTO)
    assert found is not None
    assert found.affine.kind != "center"


@pytest.mark.parametrize("candidates", [1, 2, 20, 74, 149])
def test_few_candidates_without_a_clear_scale(candidates: int) -> None:
    rows = few(300)
    found = scan_sample(
        rows,
        maps_of(rows, AUTO),
        ScanSizes(candidates, judged=300, held_out=0),
        rho=None,
        F=2.5,
        n_clusters=None,
        min_neighbors=1,
        extraction=None,
        keep_candidates=True,
    )
    assert found is None or found.n_candidates == candidates
