"""The pipeline agrees with a naive Algorithm 1 and does not depend on chunks or input type."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from messages import expecting
from numpy.typing import NDArray
from oracle import is_clear, naive_scrlm

import scrlm_dask
from scrlm_dask.choices import PREPROCESS_KINDS
from scrlm_dask.config import FitConfig
from scrlm_dask.errors import InputError, UnusableRowsError
from scrlm_dask.kernels.distances.points import squared_radius
from scrlm_dask.kernels.randomness.sampling import Purpose, sample_rows
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.runs.lifecycle import FitResult


@dataclass(frozen=True)
class Case:
    """Rows around a few centers, with outliers and repeated rows."""

    rows: int
    features: int
    clusters: int
    outliers: float
    repeats: int
    offset: float
    dtype: str
    seed: int

    def draw(self) -> NDArray[Any]:
        rng = np.random.default_rng(self.seed)
        centers = rng.normal(scale=4.0, size=(self.clusters, self.features))
        x = centers[rng.integers(self.clusters, size=self.rows)]
        x = x + rng.normal(scale=0.3, size=x.shape)
        out = rng.random(self.rows) < self.outliers
        x[out] = rng.normal(scale=6.0, size=(int(out.sum()), self.features))
        for _ in range(self.repeats):
            x[rng.integers(self.rows)] = x[rng.integers(self.rows)]
        return (x + self.offset).astype(self.dtype)


cases = st.builds(
    Case,
    rows=st.integers(1, 60),
    features=st.integers(1, 12),
    clusters=st.integers(1, 5),
    outliers=st.sampled_from([0.0, 0.2, 0.5]),
    repeats=st.integers(0, 10),
    offset=st.sampled_from([0.0, 1e4, -1e4]),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    seed=st.integers(0, 2**32 - 1),
)


def ignore(event: Any) -> None:
    """Ignore events; these tests do not check warnings."""


def run(x: Any, config: FitConfig, block_rows: int | None = None) -> FitResult:
    with dask.config.set(scheduler="sync"):
        return fit(x, config, collect_labels=True, block_rows=block_rows, listener=ignore)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    case=cases,
    rho=st.floats(0.05, 1.5),
    preprocess=st.sampled_from(PREPROCESS_KINDS),
    share=st.floats(0.0, 1.0),  # share of rows that are candidates; 1: n = N
    at_most=st.one_of(st.none(), st.integers(1, 70)),
    block_rows=st.integers(1, 60),
    seed=st.integers(0, 1000),
)
@example(Case(1, 1, 1, 0.0, 0, 0.0, "float32", 0), 0.5, "standardize", 1.0, None, 1, 0)  # one row
@example(
    Case(9, 9, 1, 0.2, 8, 0.0, "float16", 1), 0.234375, "standardize", 1.0, None, 1, 0
)  # one neighbor just inside the radius
@example(
    Case(60, 8, 3, 0.2, 10, 1e4, "float32", 1), 0.5, "standardize", 1.0, 70, 7, 0
)  # more clusters requested than exist, far from the origin
def test_pipeline_agrees_with_algorithm_1(
    case: Case,
    rho: float,
    preprocess: Any,
    share: float,
    at_most: int | None,
    block_rows: int,
    seed: int,
) -> None:
    x = case.draw()
    n = max(1, round(share * case.rows))
    config = FitConfig(
        rho=rho, n_clusters=at_most, n_candidates=n, preprocess=preprocess, seed=seed
    )
    candidates = sample_rows(seed, Purpose.CANDIDATES, case.rows, n)
    naive = naive_scrlm(x, candidates, rho, at_most, preprocess=preprocess)
    assume(is_clear(naive, candidates, squared_radius(rho, 2.5, case.features)))

    found = run(x, config, block_rows)

    assert found.model.center_rows.tolist() == naive.center_rows
    np.testing.assert_array_equal(found.labels, naive.labels)
    np.testing.assert_array_equal(found.model.centers, x[naive.center_rows])
    # A neighbor near the radius adds nearly nothing, so errors are relative to F.
    np.testing.assert_allclose(
        found.model.losses, naive.losses[naive.center_rows], rtol=1e-5, atol=1e-5 * config.F
    )
    assert found.model.n_outliers == (naive.labels == -1).sum()


@settings(max_examples=100, deadline=None)
@given(
    points=st.lists(st.tuples(*[st.integers(-4, 4)] * 2), min_size=1, max_size=40),
    rho=st.sampled_from([0.5, 1.0, 2.0]),
    block_rows=st.integers(1, 40),
    offset=st.sampled_from([0, 10_000]),
)
def test_lattices_with_exact_ties(
    points: list[tuple[int, int]], rho: float, block_rows: int, offset: int
) -> None:
    # With integers, distances equal to the radius (R^2 = 5 at rho = 1), tied losses and rows
    # halfway between centers are common, and float64 is exact.
    x = np.array(points, np.float32) + np.float32(offset)
    config = FitConfig(rho=rho, n_candidates=len(x), preprocess="none")
    naive = naive_scrlm(x, np.arange(len(x)), rho)
    found = run(x, config, block_rows)
    assert found.model.center_rows.tolist() == naive.center_rows
    np.testing.assert_array_equal(found.labels, naive.labels)


def test_by_hand() -> None:
    # p = 1, rho = 1, F = 2.5: R = 1.58. Rows 0, 1, 2 | 10, 11 | 50.
    # L(0) = 1-2.5 = -1.5, L(1) = 2 (1-2.5) = -3, L(2) = -1.5, L(10) = L(11) = -1.5, L(50) = 0.
    # The first center is row 1, which removes 0 and 2; 10 and 11 tie, so row 3 is next; 50 has no
    # neighbors.
    x = np.array([[0.0], [1], [2], [10], [11], [50]], np.float32)
    found = run(x, FitConfig(rho=1.0, preprocess="none"))
    assert found.model.center_rows.tolist() == [1, 3]
    np.testing.assert_allclose(found.model.losses, [-3.0, -1.5], rtol=1e-6)
    assert found.model.neighbors.tolist() == [2, 1]
    assert found.labels is not None
    assert found.labels.tolist() == [0, 0, 0, 1, 1, -1]
    assert found.model.counts.tolist() == [3, 2]
    np.testing.assert_allclose(found.model.means, [[1.0], [10.5]])
    assert found.model.n_outliers == 1


def test_row_at_the_radius_is_outside() -> None:
    # R^2 = 1 * 1 * 4 = 4, and the distance of the rows is exactly 2.
    x = np.array([[0.0], [2.0]], np.float32)
    config = FitConfig(rho=1.0, F=4.0, preprocess="none")
    assert run(x, config).model.n_clusters == 0
    assert run(x, replace(config, F=4.001)).model.n_clusters == 1


def test_min_neighbors() -> None:
    x = np.array([[0.0], [0.1], [0.2], [9.0], [9.1]], np.float32)
    config = FitConfig(rho=0.5, preprocess="none")
    assert run(x, config).model.n_clusters == 2
    assert run(x, replace(config, min_neighbors=2)).model.n_clusters == 1
    assert run(x, replace(config, min_neighbors=3)).model.n_clusters == 0


def test_errors_keep_their_type_inside_an_event_loop() -> None:
    # Cells of a notebook run inside an event loop.
    async def cell() -> None:
        fit(np.full((10, 2), np.nan, np.float32), FitConfig(rho=0.5))

    with pytest.raises(scrlm_dask.errors.InputError, match="row 0"):
        asyncio.run(cell())


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e15])
def test_scales_near_the_limits_of_float32(scale: float) -> None:
    rng = np.random.default_rng(4)
    truth = rng.integers(5, size=400)
    x = (rng.normal(scale=4, size=(5, 6))[truth] + rng.normal(scale=0.1, size=(400, 6))) * scale
    found = run(x, FitConfig(rho=0.3 * scale, n_candidates=400, preprocess="none"))
    assert found.model.n_clusters == 5
    assert found.model.n_outliers == 0


def test_scales_beyond_float32_are_rejected() -> None:
    x = np.random.default_rng(4).normal(size=(50, 6))
    with pytest.raises(UnusableRowsError, match=r"row \d+\b.*float32"):
        run(x * 1e19, FitConfig(rho=1e19, preprocess="none"))
    with pytest.raises(scrlm_dask.errors.InputError, match=expecting("rho", "1e-25", "float32")):
        run(x * 1e-25, FitConfig(rho=1e-25, preprocess="none"))


@pytest.mark.parametrize("preprocess", ["center", "none"])
@pytest.mark.parametrize("n_clusters", [None, 3])
def test_scales_at_which_no_rho_can_be_chosen(preprocess: Any, n_clusters: int | None) -> None:
    rng = np.random.default_rng(4)
    x = 20 * np.eye(3, 16)[rng.integers(3, size=300)] + rng.normal(size=(300, 16))
    config = FitConfig(n_clusters=n_clusters, preprocess=preprocess)
    for scale in (1e17, 1e18):
        with pytest.raises(UnusableRowsError, match=expecting("row", "--preprocess")):
            run((x * scale).astype(np.float32), config)
    for scale in (1e-18, 1e-25):
        with pytest.raises(InputError, match=expecting("float32", "scale")):
            run((x * scale).astype(np.float32), config)


def test_message_of_a_scan_names_the_extreme_row() -> None:
    x = np.random.default_rng(4).normal(size=(300, 6)).astype(np.float32)
    x[123] = 1e20
    with pytest.raises(UnusableRowsError, match=expecting("row 123", "--preprocess")):
        run(x, FitConfig(preprocess="center"))


CONFIG = FitConfig(rho=0.5, n_clusters=40, seed=5)


@pytest.mark.parametrize("block_rows", [1, 7, 250, 999, 3000])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_chunking_does_not_change_the_result(
    mixture: NDArray[np.float32], block_rows: int, dtype: str
) -> None:
    if block_rows == 1:
        mixture = mixture[:300]
    x = mixture.astype(dtype)
    one, many = run(x, CONFIG), run(x, CONFIG, block_rows)
    assert one.model.n_clusters > 5
    np.testing.assert_array_equal(many.model.center_rows, one.model.center_rows)
    np.testing.assert_array_equal(many.model.centers, one.model.centers)
    np.testing.assert_array_equal(many.model.neighbors, one.model.neighbors)
    np.testing.assert_array_equal(many.labels, one.labels)
    np.testing.assert_allclose(many.model.losses, one.model.losses, rtol=1e-6)
    np.testing.assert_allclose(many.model.sigmas, one.model.sigmas, rtol=1e-9)


def same_bits(a: FitResult, b: FitResult) -> None:
    for name in ("centers", "center_rows", "losses", "means", "counts", "weights", "sigmas"):
        x, y = getattr(a.model, name), getattr(b.model, name)
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes(), name
    np.testing.assert_array_equal(a.labels, b.labels)


def test_every_kind_of_input_gives_the_same_bits(
    mixture: NDArray[np.float32], tmp_path: Any
) -> None:
    stored = zarr.create_array(
        str(tmp_path / "x.zarr"), shape=mixture.shape, chunks=(500, 64), dtype="float32"
    )
    stored[:] = mixture
    in_memory = zarr.create_array({}, shape=mixture.shape, chunks=(500, 64), dtype="float32")
    in_memory[:] = mixture
    inputs = [
        tmp_path / "x.zarr",
        str(tmp_path / "x.zarr"),
        f"file://{tmp_path}/x.zarr",
        stored,
        in_memory,
        da.from_array(mixture, chunks=(500, 64)),
        da.from_array(mixture, chunks=(500, 16)),
        da.from_array(mixture, chunks=((100, 900, 2000), 64)),
    ]
    reference = run(mixture, CONFIG, block_rows=500)
    for source in inputs:
        same_bits(run(source, CONFIG, block_rows=500), reference)


def test_equal_chunks_give_the_same_bits_without_block_rows(
    mixture: NDArray[np.float32], tmp_path: Any
) -> None:
    stored = zarr.create_array(
        str(tmp_path / "x.zarr"), shape=mixture.shape, chunks=(700, 64), dtype="float32"
    )
    stored[:] = mixture
    same_bits(
        run(tmp_path / "x.zarr", CONFIG), run(da.from_array(mixture, chunks=(700, 64)), CONFIG)
    )


def test_offset_does_not_change_labels(mixture: NDArray[np.float32]) -> None:
    # Rounded values, to which float32 adds 1e4 exactly.
    x = np.round(mixture * 64) / 64
    for preprocess in ("none", "standardize", "center", "scale"):
        config = replace(CONFIG, preprocess=preprocess)
        near, far = run(x, config), run(x + np.float32(1e4), config)
        np.testing.assert_array_equal(near.labels, far.labels)
        np.testing.assert_array_equal(near.model.center_rows, far.model.center_rows)
        np.testing.assert_allclose(near.model.sigmas, far.model.sigmas, rtol=1e-6)


def test_small_clusters_at_large_distances() -> None:
    # Clusters of width 1e-3 at distances of 1e3: |y|^2 is 1e12 R^2, beyond the accuracy of float32.
    rng = np.random.default_rng(0)
    centers = rng.normal(scale=1e3, size=(8, 16))
    truth = rng.integers(8, size=400)
    x = centers[truth] + rng.normal(scale=1e-3, size=(400, 16))
    found = run(x, FitConfig(rho=2e-3, n_candidates=400, preprocess="none"))
    assert found.model.n_clusters == 8
    assert found.labels is not None
    for k in range(8):
        assert len(np.unique(truth[found.labels == k])) == 1


def test_l2_ignores_the_length_of_rows() -> None:
    rng = np.random.default_rng(1)
    directions = rng.normal(size=(5, 32))
    truth = rng.integers(5, size=500)
    x = (directions[truth] + 0.1 * rng.normal(size=(500, 32))).astype(np.float32)
    stretched = x * rng.uniform(0.1, 100, size=(500, 1)).astype(np.float32)
    config = FitConfig(rho=0.05, n_candidates=500, preprocess="l2")
    plain, other = run(x, config), run(stretched, config)
    assert plain.model.n_clusters == 5
    np.testing.assert_array_equal(plain.labels, other.labels)
    np.testing.assert_allclose(np.linalg.norm(plain.model.means, axis=1), 1.0, atol=0.05)
    zero = np.vstack([stretched, np.zeros((1, 32), np.float32)])
    assert run(zero, config).labels is not None  # a row of zeros has no direction


def test_loss_rows_uses_a_subset_and_labels_all_rows(mixture: NDArray[np.float32]) -> None:
    complete = run(mixture, CONFIG)
    subset = run(mixture, replace(CONFIG, loss_rows=800), block_rows=300)
    assert subset.labels is not None
    assert len(subset.labels) == len(mixture)
    assert subset.model.n_clusters == complete.model.n_clusters
    assert (subset.model.neighbors < complete.model.neighbors).all()
    # The loss of the first center, computed by hand on the drawn rows.
    rows = sample_rows(5, Purpose.LOSS_ROWS, len(mixture), 800)
    y = (mixture - mixture.mean(axis=0, dtype=float)) / mixture.std(axis=0, dtype=float)
    first = int(subset.model.center_rows[0])
    sq = ((y[rows[rows != first]] - y[first]) ** 2).sum(axis=1)
    expected = np.minimum(sq / (64 * 0.25) - 2.5, 0).sum()
    np.testing.assert_allclose(subset.model.losses[0], expected, rtol=1e-5)


def test_constant_features(mixture: NDArray[np.float32]) -> None:
    x = mixture.copy()
    x[:, 3] = 7.0
    x[:, 9] = 0.0
    for preprocess in PREPROCESS_KINDS:
        found = run(x, replace(CONFIG, preprocess=preprocess))
        assert np.isfinite(found.model.sigmas).all()
        assert np.isfinite(found.model.means).all()
    constant = np.full((50, 4), 3.0, np.float32)
    found = run(constant, FitConfig(rho=0.5))
    assert found.model.n_clusters == 1
    assert found.model.sigmas.tolist() == [0.0]
    assert found.model.weights.tolist() == [1.0]


@pytest.mark.parametrize("block_rows", [100, 1000])
def test_error_names_row_and_block_of_nan(mixture: NDArray[np.float32], block_rows: int) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        for preprocess in PREPROCESS_KINDS:
            x = mixture[:1000].copy()
            x[637, 5] = bad
            # Few candidates, so that the survey may not read the row.
            config = FitConfig(rho=0.5, n_candidates=3, preprocess=preprocess)
            with pytest.raises(
                scrlm_dask.errors.InputError,
                match=expecting("row 637", f"block {637 // block_rows}"),
            ):
                run(x, config, block_rows)


def test_run_directory_is_removed_after_an_error(
    mixture: NDArray[np.float32], tmp_path: Any
) -> None:
    x = mixture.copy()
    x[2999, 0] = np.nan
    with pytest.raises(scrlm_dask.errors.InputError):
        fit(x, CONFIG, out=tmp_path / "run", block_rows=500)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"rho": 0.2},
        {"F": 1.0},
        {"n_clusters": 3},
        {"n_candidates": 30},
        {"loss_rows": 50},
        {"min_neighbors": 200},
        {"preprocess": "l2"},
        {"preprocess": "scale"},
        {"preprocess": "none"},
        {"seed": 6},
    ],
    ids=str,
)
def test_every_parameter_has_an_effect(
    mixture: NDArray[np.float32], change: dict[str, Any]
) -> None:
    before, after = run(mixture, CONFIG).model, run(mixture, replace(CONFIG, **change)).model
    names = ("center_rows", "losses", "counts")
    assert not all(np.array_equal(getattr(before, n), getattr(after, n)) for n in names)


def test_centering_changes_only_the_map(mixture: NDArray[np.float32]) -> None:
    # Distances do not depend on a shift.
    none, center = (run(mixture, replace(CONFIG, preprocess=kind)) for kind in ("none", "center"))
    np.testing.assert_array_equal(none.labels, center.labels)
    assert not none.model.affine.shift.any()
    np.testing.assert_allclose(center.model.affine.shift, mixture.mean(axis=0, dtype=float))
