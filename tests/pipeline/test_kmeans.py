"""k-means on blocks agrees with scikit-learn and does not depend on chunks or input type."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import sklearn.cluster
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lloyd_oracle import naive_lloyd, naive_step
from messages import expecting
from numpy.typing import NDArray

import scrlm_dask
from scrlm_dask.choices import Init
from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
from scrlm_dask.errors import UnusableRowsError
from scrlm_dask.events import BlockDone, IterationDone, Note, PhaseFinished
from scrlm_dask.kernels.kmeans.init import ROUNDS
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.kmeans import kmeans, prepare_kmeans
from scrlm_dask.pipeline.predict import predict
from scrlm_dask.runs.lifecycle import FitResult
from scrlm_dask.storage.locations import Location
from scrlm_dask.storage.npy_files import read_npy

INITS: tuple[Init, ...] = ("scrlm", "k-means++", "k-means||", "random")
STRICT = LloydConfig(max_iter=100, tol=0.0, inertia_tol=0.0)


def ignore(event: Any) -> None:
    """Ignore events; tests of notes pass their own listener."""


def run(x: Any, k: int, centers: Any = None, **options: Any) -> FitResult:
    """Run k-means in this thread; `options` are fields of the configs or arguments of the call."""
    lloyd = {name: options.pop(name) for name in list(options) if name in vars(STRICT)}
    init = options.pop("init", "scrlm" if centers is None else "given")
    chosen = {name: options.pop(name) for name in ("preprocess", "seed") if name in options}
    config = KMeansConfig(k, init, replace(STRICT, **lloyd), **chosen)
    options = {"collect_labels": True, "listener": ignore, **options}
    with dask.config.set(scheduler="sync"):
        return kmeans(x, config, centers=centers, **options)


def iterations(found: FitResult) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = found.record["kmeans"]["iterations"]
    return steps


def noise(rows: int, p: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(rows, p))


def blobs(
    rows: int, p: int, k: int, seed: int = 0, spread: float = 8.0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(k, size=rows)
    centers = rng.normal(scale=spread, size=(k, p))
    return (centers[truth] + rng.normal(size=(rows, p))).astype(np.float32), truth


def same_bits(a: FitResult, b: FitResult) -> None:
    for name in ("centers", "means", "counts", "weights", "sigmas"):
        assert getattr(a.model, name).tobytes() == getattr(b.model, name).tobytes(), name
    assert a.model.inertia == b.model.inertia
    np.testing.assert_array_equal(a.labels, b.labels)


class TestResult:
    def test_by_hand(self) -> None:
        # Centers 0 and 1: {0} | {1, 10, 11}; centers 0 and 22/3: {0, 1} | {10, 11}; then 0.5, 10.5.
        x = np.array([[0.0], [1], [10], [11]], np.float32)
        found = run(x, 2, np.array([[0.0], [1.0]]), block_rows=3)
        assert found.model.centers.tolist() == [[0.5], [10.5]]
        assert found.labels is not None
        assert found.labels.tolist() == [0, 0, 1, 1]
        assert found.model.inertia == 1.0
        assert found.model.counts.tolist() == [2, 2]
        assert found.model.means.tolist() == [[0.5], [10.5]]
        assert found.model.weights.tolist() == [0.5, 0.5]
        # Deviations of 0.5 and one degree of freedom: sigma^2 = 0.5.
        np.testing.assert_allclose(found.model.sigmas, [math.sqrt(0.5)] * 2)
        assert (found.model.n_outliers, found.model.outlier_weight) == (0, 0.0)
        assert math.isinf(found.model.radius)
        assert [it["inertia"] for it in iterations(found)] == [181.0, pytest.approx(194 / 9), 1.0]
        assert [it["moved"] for it in iterations(found)] == [None, 1, 0]
        assert found.record["kmeans"]["stopped"].startswith("converged")
        assert found.record["radius"] is None
        assert found.record["method"] == "k-means"

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    @pytest.mark.parametrize(("k", "p"), [(1, 3), (2, 1), (7, 5), (40, 16)])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_agrees_with_scikit_learn(self, k: int, p: int, dtype: str, weighted: bool) -> None:
        x = noise(1500, p, seed=k).astype(dtype)
        weights = np.random.default_rng(1).uniform(0.1, 3.0, size=1500) if weighted else None
        theirs = sklearn.cluster.KMeans(
            k, init=x[:k].astype(float), n_init=1, algorithm="lloyd", tol=0, max_iter=6
        ).fit(x.astype(float), sample_weight=weights)
        ours = run(x, k, x[:k], max_iter=6, block_rows=400, sample_weight=weights)
        assert len(iterations(ours)) == theirs.n_iter_
        np.testing.assert_allclose(
            ours.model.centers, theirs.cluster_centers_, rtol=1e-4, atol=1e-6
        )
        np.testing.assert_array_equal(ours.labels, theirs.labels_)
        assert ours.model.inertia == pytest.approx(theirs.inertia_, rel=1e-6)

    def test_converged_result_agrees_with_scikit_learn(self) -> None:
        x, _ = blobs(2000, 6, 8, spread=2.0)
        theirs = sklearn.cluster.KMeans(
            8, init=x[:8].astype(float), n_init=1, algorithm="lloyd", tol=0
        ).fit(x.astype(float))
        ours = run(x, 8, x[:8], block_rows=333)
        assert len(iterations(ours)) == theirs.n_iter_
        np.testing.assert_allclose(ours.model.centers, theirs.cluster_centers_, rtol=1e-4)
        np.testing.assert_array_equal(ours.labels, theirs.labels_)
        assert ours.record["kmeans"]["stopped"].startswith("converged")

    @pytest.mark.parametrize("spherical", [False, True])
    def test_agrees_with_the_naive_loop_far_from_the_origin(self, spherical: bool) -> None:
        x = noise(800, 8) + (1e4 if not spherical else 0.5)
        found = run(
            x, 10, x[:10], max_iter=7, block_rows=90, preprocess="l2" if spherical else "none"
        )
        expected = naive_lloyd(x, x[:10], 7, spherical=spherical)
        np.testing.assert_allclose(found.model.centers, expected, rtol=1e-10, atol=1e-10)
        if spherical:
            np.testing.assert_allclose(np.linalg.norm(found.model.centers, axis=1), 1.0)

    def test_labels_and_inertia_belong_to_the_returned_centers(self) -> None:
        x = noise(900, 5).astype(np.float32)
        found = run(x, 12, max_iter=3, init="random")  # not converged
        naive = naive_step(x, found.model.centers)
        np.testing.assert_array_equal(found.labels, naive.labels)
        assert found.model.inertia == pytest.approx(naive.inertia)
        np.testing.assert_array_equal(found.model.counts, np.bincount(naive.labels, minlength=12))
        np.testing.assert_array_equal(
            predict(found.model, x, collect_labels=True).labels, found.labels
        )

    @pytest.mark.parametrize("kind", ["standardize", "center", "scale", "l2"])
    def test_centers_are_in_input_units_with_preprocessing(self, kind: Any) -> None:
        x = noise(600, 4) * [1.0, 10.0, 0.1, 3.0] + 5.0
        factor = {
            "standardize": 1.0 / x.std(axis=0),
            "scale": 1.0 / math.sqrt(float(x.var(axis=0).mean())),
        }.get(kind, 1.0)
        found = run(x, 5, x[:5], max_iter=5, preprocess=kind, block_rows=70)
        expected = naive_lloyd(x * factor, x[:5] * factor, 5, spherical=kind == "l2") / factor
        np.testing.assert_allclose(found.model.centers, expected, rtol=1e-9)
        naive = naive_step(x * factor, expected * factor, spherical=kind == "l2")
        np.testing.assert_array_equal(found.labels, naive.labels)
        assert found.model.inertia == pytest.approx(naive.inertia)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(2, 80),
    p=st.integers(1, 6),
    k=st.integers(1, 12),
    repeats=st.integers(0, 40),
    mode=st.sampled_from(["plain", "weighted", "spherical", "robust", "robust and polished"]),
    far=st.integers(0, 3),
    offset=st.sampled_from([0.0, 1e4]),
    block_rows=st.sampled_from([7, 30, 80]),
)
@example(0, 40, 2, 6, 0, "plain", 3, 0.0, 7)
@example(1, 40, 2, 6, 30, "weighted", 2, 0.0, 7)
def test_inertia_never_increases(
    seed: int,
    rows: int,
    p: int,
    k: int,
    repeats: int,
    mode: str,
    far: int,
    offset: float,
    block_rows: int,
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, p))
    x[rng.integers(rows, size=repeats)] = x[0]
    x = (x + (0.0 if mode == "spherical" else offset)).astype(np.float32)
    k = min(k, rows)
    if mode.startswith("robust"):
        config = FitConfig(
            rho=0.6, preprocess="none", n_candidates=rows, refine=STRICT, polish="pol" in mode
        )
        with dask.config.set(scheduler="sync"):
            found = fit(x, config, block_rows=block_rows, collect_labels=True, listener=ignore)
        if found.model.n_clusters == 0:
            return
    else:
        centers = x[:k].astype(np.float64)
        centers[: min(far, k - 1)] += 1e3  # these have no rows
        weights = rng.integers(0, 3, size=rows) + (np.arange(rows) == 0)
        found = run(
            x,
            k,
            centers,
            sample_weight=weights if mode == "weighted" else None,
            preprocess="l2" if mode == "spherical" else "none",
            block_rows=block_rows,
        )
    values = [it["inertia"] for it in iterations(found)] + [found.model.inertia]
    scale = 1e-13 * float(np.square(x.astype(float)).sum())  # bound of the rounding error
    for before, after in itertools.pairwise(values):
        assert after <= before * (1 + 1e-10) + scale


class TestBlocks:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("init", "preprocess"),
        [*((init, "none") for init in INITS), ("scrlm", "standardize"), ("k-means||", "l2")],
    )
    def test_labels_do_not_depend_on_the_chunks(self, init: Init, preprocess: Any) -> None:
        x, _ = blobs(1300, 7, 9, seed=3, spread=2.0)
        one = run(x, 9, init=init, preprocess=preprocess, seed=4)
        for block_rows in (170, 1299):
            many = run(x, 9, init=init, preprocess=preprocess, seed=4, block_rows=block_rows)
            np.testing.assert_allclose(many.model.centers, one.model.centers, rtol=1e-6, atol=1e-6)
            np.testing.assert_array_equal(many.labels, one.labels)
            assert len(iterations(many)) == len(iterations(one))

    def test_every_kind_of_input_gives_the_same_bits(self, tmp_path: Path) -> None:
        import zarr

        x, _ = blobs(1300, 7, 9)
        path = tmp_path / "x.zarr"
        stored = zarr.create_array(str(path), shape=x.shape, chunks=(100, 7), dtype=x.dtype)
        stored[:] = x
        weights = np.random.default_rng(0).random(1300)
        expected = run(x, 9, block_rows=200, sample_weight=weights)
        sources = (path, str(path), stored, da.from_array(x, chunks=(100, 3)))
        for source in sources:
            same_bits(run(source, 9, block_rows=200, sample_weight=weights), expected)
        lazy = da.from_array(weights, chunks=77)
        same_bits(run(x, 9, block_rows=200, sample_weight=lazy), expected)

    def test_blocks_grow_with_the_number_of_clusters(self, tmp_path: Path) -> None:
        x = noise(1200, 4).astype(np.float32)
        whole = run(x, 100, x[:100], block_rows=1200, max_iter=4)
        # 100 sums in float64 are as large as 200 rows in float32: blocks grow from 7 to 203 rows.
        small = run(x, 100, x[:100], block_rows=7, max_iter=4, out=tmp_path / "run")
        assert small.record["features"]["block_rows"] == 203
        assert small.record["features"]["blocks"] == 6
        np.testing.assert_array_equal(small.labels, whole.labels)
        np.testing.assert_allclose(small.model.centers, whole.model.centers, rtol=1e-6, atol=1e-9)
        again = predict(tmp_path / "run", x, collect_labels=True)
        np.testing.assert_array_equal(again.labels, whole.labels)
        # With very many clusters one block contains all rows.
        most = run(x, 900, x[:900], block_rows=7, max_iter=1)
        assert most.record["features"]["blocks"] == 1

    def test_weights_are_split_like_the_blocks(self) -> None:
        x = noise(1200, 4).astype(np.float32)
        weights = np.random.default_rng(0).random(1200)
        small = run(x, 100, x[:100], block_rows=7, max_iter=4, sample_weight=weights)
        whole = run(x, 100, x[:100], block_rows=1200, max_iter=4, sample_weight=weights)
        np.testing.assert_array_equal(small.labels, whole.labels)
        np.testing.assert_allclose(small.model.centers, whole.model.centers, rtol=1e-6, atol=1e-9)


class TestSampleWeights:
    @pytest.mark.slow
    @settings(max_examples=12)
    @given(seed=st.integers(0, 2**32 - 1), spherical=st.booleans(), block_rows=st.integers(20, 90))
    def test_integer_weights_repeat_rows(self, seed: int, spherical: bool, block_rows: int) -> None:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(80, 3))
        weights = rng.integers(0, 4, size=80)
        weights[:5] = 1
        kind = "l2" if spherical else "none"
        repeated = np.repeat(x, weights, axis=0)
        a = run(x, 5, x[:5], sample_weight=weights, preprocess=kind, block_rows=block_rows)
        b = run(repeated, 5, x[:5], preprocess=kind)
        assert len(iterations(a)) == len(iterations(b))
        np.testing.assert_allclose(a.model.centers, b.model.centers, rtol=1e-9, atol=1e-12)
        assert a.model.inertia == pytest.approx(b.model.inertia)
        assert a.labels is not None
        np.testing.assert_array_equal(np.repeat(a.labels, weights), b.labels)
        np.testing.assert_allclose(a.model.weights, b.model.weights)

    def test_record_contains_the_number_of_rounds(self) -> None:
        assert run(noise(400, 3), 5, init="k-means||").record["init"]["rounds"] == ROUNDS
        # The first draw has distance 0 to all rows.
        equal_rows = run(np.ones((50, 3)), 5, init="k-means||").record["init"]
        assert equal_rows == {"drawn_rows": 1, "rounds": 0}

    def test_record_contains_the_origin_of_the_centers(self, tmp_path: Path) -> None:
        x = noise(100, 3)
        np.save(tmp_path / "c.npy", x[:4])
        first = run(x, 4, centers=x[:4], out=tmp_path / "run")
        assert first.record["init"] == {"centers": "array"}
        assert run(x, 4, centers=first.model).record["init"] == {"centers": "model"}
        for path in (tmp_path / "run", tmp_path / "c.npy"):
            assert run(x, 4, centers=path).record["init"] == {"centers": str(path)}
            found = scrlm_dask.KMeans(4, init=path).fit(x)
            assert found.record_["init"] == {"centers": str(path)}

    @pytest.mark.parametrize("init", INITS)
    def test_rows_of_weight_zero_are_never_drawn(self, init: Init) -> None:
        x = noise(400, 3)
        weights = np.ones(400)
        weights[::3] = 0.0
        x[::3] += 1e3  # far away, so that a center there would show
        for seed in range(3):
            initial = run(x, 20, init=init, max_iter=0, sample_weight=weights, seed=seed)
            assert np.abs(initial.model.centers).max() < 100
            if init == "k-means||":  # also not among the oversampled points
                assert initial.record["init"]["drawn_rows"] < 121 + 5 * math.sqrt(120)
            found = run(x, 20, init=init, max_iter=5, sample_weight=weights, seed=seed)
            assert np.abs(found.model.centers).max() < 100

    @pytest.mark.parametrize("init", INITS)
    def test_fewer_rows_of_positive_weight_than_clusters(self, init: Init) -> None:
        x = noise(30, 2)
        weights = np.zeros(30)
        weights[[3, 17]] = 2.0
        found = run(x, 4, init=init, sample_weight=weights)
        assert found.model.inertia == 0.0
        nearest = ((x[[3, 17], None] - found.model.centers) ** 2).sum(axis=2).min(axis=1)
        np.testing.assert_allclose(nearest, 0.0, atol=1e-12)

    @pytest.mark.slow
    def test_heavy_rows_are_drawn_more_often(self) -> None:
        x, weights = np.arange(100.0)[:, None], np.ones(100)
        weights[50:] = 9.0
        for init in ("random", "k-means||"):
            drawn = [
                run(x, 1, init=init, max_iter=0, sample_weight=weights, seed=seed).model.centers
                for seed in range(30)
            ]
            assert sum(center[0, 0] >= 50 for center in drawn) > 20

    def test_tiny_and_large_weights(self) -> None:
        x, _ = blobs(300, 3, 4)
        plain = run(x, 4)
        for factor in (1e-30, 1e30):
            found = run(x, 4, sample_weight=np.full(300, factor))
            np.testing.assert_allclose(found.model.inertia, plain.model.inertia * factor, rtol=1e-6)

    @pytest.mark.parametrize(
        ("values", "pattern"),
        [
            (np.append(np.ones(99), -1.0), expecting("row 99", "-1.0", 0)),
            (np.append(np.ones(99), np.nan)[::-1], expecting("row 0", "nan")),
            (np.where(np.arange(100) == 40, np.inf, 1.0), expecting("row 40", "inf")),
            (np.ones(99), expecting(99, 100)),
            (np.ones((100, 1)), expecting("(100, 1)")),
            (np.ones((100, 2)), expecting("(100, 2)")),
            (np.float64(3.0), expecting("()")),
            (np.zeros(100), r"(?=.*weight)(?=.*zero)"),  # scikit-learn requires these words
            (np.full(100, "a"), expecting("<U1")),
            (np.full(100, 1e308), expecting("1e+308", "float64")),
        ],
        ids=[
            *("negative", "NaN", "infinite", "short", "one-column", "two-columns", "scalar"),
            *("zeros", "text", "large"),
        ],
    )
    @pytest.mark.parametrize("form", ["array", "dask", "npy", "zarr"])
    def test_invalid_weights(self, values: Any, pattern: str, form: str, tmp_path: Path) -> None:
        import zarr

        source: Any = values
        if form == "dask":
            source = da.from_array(np.asarray(values), chunks=33 if values.ndim else -1)
        elif form == "npy":
            source = tmp_path / "weights.npy"
            np.save(source, values)
        elif form == "zarr":
            if values.dtype.kind == "U" or values.ndim == 0:
                return
            source = tmp_path / "weights.zarr"
            array = zarr.create_array(
                str(source),
                shape=values.shape,
                chunks=(40, *values.shape[1:]),
                dtype=values.dtype,
                config={"write_empty_chunks": True},
            )
            array[:] = values
        with pytest.raises(scrlm_dask.errors.InputError, match=pattern):
            run(noise(100, 2), 3, sample_weight=source, block_rows=30)

    def test_files(self, tmp_path: Path) -> None:
        import zarr

        x, _ = blobs(700, 3, 4, spread=2.0)
        weights = np.random.default_rng(0).random(700).astype(np.float32)
        expected = run(x, 4, sample_weight=weights, block_rows=250, max_iter=3)
        np.save(tmp_path / "w.npy", weights)
        np.save(tmp_path / "other.npy", weights.astype(">f8"))
        array = zarr.create_array(
            str(tmp_path / "w.zarr"), shape=(700,), chunks=(64,), dtype="float32"
        )
        array[:] = weights
        for source in ("w.npy", "other.npy", "w.zarr"):
            for path in (tmp_path / source, f"file://{tmp_path}/{source}"):
                found = run(x, 4, sample_weight=path, block_rows=250, max_iter=3)
                same_bits(found, expected)
        same_bits(run(x, 4, sample_weight=array, block_rows=250, max_iter=3), expected)
        plain = run(x, 4, block_rows=250, max_iter=3)
        assert not np.array_equal(expected.model.centers, plain.model.centers)

    def test_invalid_files(self, tmp_path: Path) -> None:
        import zarr

        x = noise(100, 2)

        def rejected(name: str, *facts: Any, missing: bool = False, given: Any = None) -> None:
            path = tmp_path / name
            with pytest.raises(
                scrlm_dask.errors.StoreError, match=expecting(path, *facts)
            ) as caught:
                run(x, 3, sample_weight=path if given is None else given)
            assert isinstance(caught.value, FileNotFoundError) == missing

        rejected("gone.npy", missing=True)
        rejected("gone.zarr", missing=True)
        (tmp_path / "text.npy").write_text("1 2 3")
        rejected("text.npy")
        np.save(tmp_path / "pickled.npy", np.array([{}] * 100), allow_pickle=True)
        rejected("pickled.npy", "object")
        np.save(tmp_path / "short.npy", np.ones(100))
        (tmp_path / "short.npy").write_bytes((tmp_path / "short.npy").read_bytes()[:-8])
        rejected("short.npy", 920, 928)
        zarr.create_group(str(tmp_path / "nested.zarr"))
        rejected("nested.zarr", "group")
        empty = str(tmp_path / "empty.zarr")
        array = zarr.create_array(empty, shape=(100,), chunks=(50,), dtype="f4")
        rejected("empty.zarr", "c/0")
        rejected("empty.zarr", "c/0", given=array)


class TestEmptyClusters:
    def test_empty_clusters_move_to_the_rows_farthest_from_their_centers(self) -> None:
        x = np.array([[0.0], [1.0], [2.0], [50.0]], np.float32)
        centers = np.array([[0.0], [1e6], [2e6]])
        found = run(x, 3, centers, max_iter=1)
        first = iterations(found)[0]
        assert (first["empty"], first["reseeded"]) == (2, 2)
        assert found.model.centers.tolist() == [[13.25], [50.0], [2.0]]

    def test_every_cluster_gets_rows_and_the_record_counts_them(self) -> None:
        x, _ = blobs(600, 4, 6)
        centers = np.full((6, 4), 1e5) * np.arange(1, 7)[:, None]
        found = run(x, 6, centers, block_rows=150)
        steps = iterations(found)
        assert (steps[0]["empty"], steps[0]["reseeded"]) == (5, 5)
        assert steps[-1]["empty"] == 0
        assert (found.model.counts > 0).all()
        same_bits(found, run(x, 6, centers, block_rows=150))
        np.testing.assert_array_equal(found.labels, run(x, 6, centers, block_rows=600).labels)

    def test_number_of_reseeded_clusters_per_iteration_is_limited(self) -> None:
        x = noise(500, 3).astype(np.float32)
        centers = np.concatenate([x[:1], np.full((39, 3), 1e6)])
        found = run(x, 40, centers)
        steps = iterations(found)
        assert [it["empty"] for it in steps[:3]] == [39, 23, 7]
        assert [it["reseeded"] for it in steps[:3]] == [16, 16, 7]
        assert (found.model.counts > 0).all()

    def test_iterations_continue_after_reseeding(self) -> None:
        # The centers with rows do not move, but one cluster was reseeded.
        x = np.array([[0.0], [0.0], [4.0]], np.float32)
        found = run(x, 2, np.array([[4.0 / 3.0], [99.0]]), tol=1.0, inertia_tol=1.0)
        assert iterations(found)[0]["reseeded"] == 1
        assert len(iterations(found)) > 1
        assert sorted(found.model.centers.ravel()) == [0.0, 4.0]
        # While clusters are empty, inertia_tol does not end the iterations.
        x = noise(500, 3).astype(np.float32)
        many = np.concatenate([x[:1], np.full((39, 3), 1e6)])
        steps = iterations(run(x, 40, many, inertia_tol=1.0))
        assert [it["empty"] for it in steps] == [39, 23, 7, 0]

    @pytest.mark.parametrize("init", INITS)
    @pytest.mark.parametrize("preprocess", ["none", "standardize", "l2"])
    def test_only_duplicates(self, init: Init, preprocess: Any) -> None:
        x = np.full((50, 3), 2.5, np.float32)
        events: list[Any] = []
        found = run(x, 3, init=init, preprocess=preprocess, listener=events.append)
        assert found.model.inertia == pytest.approx(0.0, abs=1e-12)
        assert found.model.counts.tolist() == [50, 0, 0]
        assert len(iterations(found)) <= 2
        assert np.isfinite(found.model.centers).all()
        assert np.isfinite(found.model.sigmas).all()
        notes = [event.text for event in events if isinstance(event, Note) and event.warning]
        assert len(notes) == 1
        assert re.search(expecting(2, 3), notes[0])
        with pytest.warns(scrlm_dask.ScrlmWarning, match=expecting(2, 3)):
            kmeans(x, KMeansConfig(3, init))

    @pytest.mark.parametrize("init", INITS)
    def test_fewer_distinct_rows_than_clusters(self, init: Init) -> None:
        x = np.array([[0.0, 0.0], [1.0, 5.0], [9.0, 2.0]], np.float32)[np.arange(90) % 3]
        found = run(x, 5, init=init)
        assert found.model.inertia == pytest.approx(0.0, abs=1e-9)
        assert sorted(found.model.counts) == [0, 0, 30, 30, 30]
        assert len(iterations(found)) <= 4


class TestSmallInput:
    @pytest.mark.parametrize("init", INITS)
    def test_one_cluster_is_the_mean(self, init: Init) -> None:
        x = noise(200, 3)
        found = run(x, 1, init=init)
        np.testing.assert_allclose(found.model.centers[0], x.mean(axis=0), rtol=1e-9, atol=1e-12)
        assert found.model.inertia == pytest.approx(float(((x - x.mean(axis=0)) ** 2).sum()))

    @pytest.mark.parametrize("init", INITS)
    @pytest.mark.parametrize("rows", [1, 2, 40])
    def test_as_many_clusters_as_rows(self, init: Init, rows: int) -> None:
        x = noise(rows, 3)
        found = run(x, rows, init=init, block_rows=7)
        assert found.model.inertia == pytest.approx(0.0, abs=1e-20)
        assert found.model.counts.tolist() == [1] * rows
        assert found.model.sigmas.tolist() == [0.0] * rows

    @pytest.mark.parametrize("init", INITS)
    def test_two_rows_and_one_cluster(self, init: Init) -> None:
        found = run(np.array([[0.0], [1.0]]), 1, init=init)
        assert found.model.centers.tolist() == [[0.5]]

    def test_more_clusters_than_rows_are_rejected(self) -> None:
        with pytest.raises(scrlm_dask.errors.InputError, match=expecting(6, 5)):
            run(noise(5, 2), 6)


@pytest.mark.parametrize("method", ["scrlm", "k-means++", "k-means||", "random"])
@pytest.mark.parametrize("scale", [1e17, 1e18])
def test_rows_too_large_for_float32(method: Any, scale: float) -> None:
    x = (20 * np.eye(3, 16)[np.arange(300) % 3] + noise(300, 16)) * scale
    with pytest.raises(UnusableRowsError, match=expecting("row", "--preprocess")):
        run(x.astype(np.float32), 3, init=method)


class TestInit:
    @pytest.mark.parametrize("init", INITS)
    def test_seed_determines_the_centers(self, init: Init) -> None:
        x = noise(800, 5).astype(np.float32)
        one, again, other = (
            run(x, 10, init=init, max_iter=0, seed=seed, block_rows=90) for seed in (1, 1, 2)
        )
        same_bits(one, again)
        assert one.model.centers.shape == (10, 5)
        assert len(np.unique(one.model.centers, axis=0)) == 10
        assert not np.array_equal(one.model.centers, other.model.centers)
        if init != "scrlm":  # whose centers are means
            rows = {tuple(row) for row in x.astype(float)}
            assert all(tuple(center) in rows for center in one.model.centers)

    @pytest.mark.slow
    @pytest.mark.parametrize("init", ["scrlm", "k-means++", "k-means||"])
    def test_careful_init_finds_a_mixture(self, init: Init) -> None:
        x, truth = blobs(3000, 16, 20, seed=9, spread=12.0)
        means = np.array([x[truth == k].mean(axis=0, dtype=float) for k in range(20)])
        best = naive_step(x, means).inertia
        for seed in range(3):
            found = run(x, 20, init=init, seed=seed, block_rows=500)
            assert found.model.inertia <= 1.05 * best
        assert run(x, 20, init="random", block_rows=500).model.inertia > 1.05 * best

    def test_record_of_init_scrlm(self) -> None:
        x, _ = blobs(3000, 16, 20, seed=9)
        record = run(x, 20, init="scrlm").record["init"]
        assert 0 < record["sampled_rows"] <= 3000
        assert record["extracted"] == 20
        rhos = [step["rho"] for step in record["ladder"]]
        assert rhos == sorted(rhos)
        best = min(record["ladder"], key=lambda step: step["mean_sq_distance"])
        assert record["rho"] == best["rho"]
        assert run(x, 20, init="k-means++").record["init"] == {"sampled_rows": 3000}

    @pytest.mark.parametrize("init", INITS)
    def test_long_time_for_initial_centers_is_reported(
        self, init: Init, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        x = noise(300, 2).astype(np.float32)

        def warnings() -> list[str]:
            events: list[Any] = []
            run(x, 20, init=init, max_iter=1, listener=events.append)
            return [e.text for e in events if isinstance(e, Note) and e.warning]

        assert warnings() == []
        # k-means|| draws 120 points; the others use all rows, and SCRLM tries 5 radii
        points = {"k-means++": 300, "k-means||": 120, "scrlm": 5 * 300}.get(init, 0)
        monkeypatch.setattr("scrlm_dask.pipeline.kmeans._FEATURE_SECONDS", 0.0)
        # 4 draws per center: 2 + ln 20
        monkeypatch.setattr("scrlm_dask.pipeline.kmeans._DRAW_SECONDS", 8 * 60 / (20 * 4 * 120))
        minutes = 8 * points // 120
        expected = [re.compile(expecting(20, init, minutes, "--init random"))] if minutes else []
        found = warnings()
        assert len(found) == len(expected)
        assert all(each.search(text) for each, text in zip(expected, found, strict=True))

    def test_each_round_draws_twice_the_number_of_clusters(self) -> None:
        x = noise(4000, 6).astype(np.float32)
        drawn = [
            run(x, 25, init="k-means||", max_iter=0, seed=s).record["init"]["drawn_rows"]
            for s in range(8)
        ]
        rounds = ROUNDS * 2 * 25
        assert np.mean(drawn) == pytest.approx(1 + rounds, abs=5 * math.sqrt(rounds / 8))
        assert len(set(drawn)) > 3  # rows are drawn independently

    def test_number_of_reads(self) -> None:
        x = noise(1000, 6).astype(np.float32)

        def reads(**options: Any) -> Counter[str]:
            events: list[Any] = []
            found = run(x, 5, block_rows=100, max_iter=3, listener=events.append, **options)
            done = Counter(e.name for e in events if isinstance(e, BlockDone))
            assert done.pop("kmeans-step") == 10 * len(iterations(found)) == 30
            assert done.pop("assign") == 10
            finished = [e for e in events if isinstance(e, PhaseFinished)]
            assert [e.blocks for e in finished if e.name == "kmeans-step"] == [10] * 3
            assert [e for e in events if isinstance(e, IterationDone)]
            return done

        assert reads(centers=x[:5]) == {}
        assert reads(centers=x[:5], preprocess="standardize") == {"survey": 10}
        assert reads(init="k-means++") == {"survey": 10}
        assert reads(init="k-means++", preprocess="scale") == {"survey": 10}
        assert reads(init="scrlm") == {"survey": 10}
        # One initial row; then each round draws in one read and updates the costs in another.
        assert reads(init="k-means||") == {
            "survey": 1,
            "init-serve": (1 + ROUNDS) * 10,
            "init-draw": ROUNDS * 10,
        }
        assert reads(init="random")["survey"] <= 5

    def test_centers_from_a_model_or_a_path(self, tmp_path: Path) -> None:
        x, _ = blobs(500, 4, 6, spread=2.0)
        first = run(x, 6, max_iter=1, init="random", out=tmp_path / "run")
        expected = run(x, 6, first.model.centers)
        np.save(tmp_path / "centers.npy", first.model.centers)
        paths = (tmp_path / "run", str(tmp_path / "run" / "model.zarr"), tmp_path / "centers.npy")
        for centers in (first.model, *paths):
            same_bits(run(x, 6, centers), expected)
        assert expected.model.inertia < first.model.inertia

    def test_file_of_centers_that_changes_while_it_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        x, file = noise(50, 3), tmp_path / "centers.npy"
        np.save(file, x[:4])

        def change(location: Location, what: str) -> np.ndarray:
            np.save(file, x[4:8])
            return read_npy(location, what)

        monkeypatch.setattr("scrlm_dask.pipeline.kmeans.read_npy", change)
        with pytest.raises(UnusableRowsError, match=str(file)):
            run(x, 4, file)

    def test_file_of_centers_that_changes_before_the_run_starts(self, tmp_path: Path) -> None:
        x, file = noise(50, 3), tmp_path / "centers.npy"
        np.save(file, x[:4])
        config = scrlm_dask.KMeansConfig(4, init="given")
        expected = scrlm_dask.kmeans(x, config, centers=file)
        job = prepare_kmeans(x, config, centers=file)
        np.save(file, x[4:8])
        found = job.run()  # the centers are in memory
        same_bits(found, expected)
        assert found.record["asked"]["inputs"] == expected.record["asked"]["inputs"]

    def test_invalid_centers(self) -> None:
        x = noise(50, 3)

        def rejected(centers: Any, *facts: Any, init: Any = "given") -> None:
            with pytest.raises(scrlm_dask.errors.InputError, match=expecting(*facts)):
                run(x, 4, centers, init=init)

        rejected(x[:5], "(5, 3)", "(4, 3)")
        rejected(x[:4, :2], "(4, 2)", "(4, 3)")
        rejected(x[0], "(3,)", "(4, 3)")
        rejected(np.full((4, 3), "a"), "<U1")
        rejected(np.full((4, 3), np.nan), "centers", "NaN")
        rejected(np.full((4, 3), 1e30), "centers", "float32")
        rejected(None, "init", "centers", "'given'")
        rejected(x[:4], "init", "centers", "'random'", "'given'", init="random")
        rejected(x[:4], "init", "'kmeans'", "scrlm", "k-means++", init="kmeans")
        integers = run(x, 4, np.round(x[:4]).astype(np.int64))  # integers are accepted
        assert integers.model.n_clusters == 4


class TestStopping:
    x, _ = blobs(2000, 4, 10, spread=1.0)

    def stopped(self, **lloyd: Any) -> tuple[str, list[dict[str, Any]]]:
        found = run(self.x, 10, init="random", block_rows=500, **lloyd)
        return found.record["kmeans"]["stopped"], iterations(found)

    def test_converged(self) -> None:
        why, steps = self.stopped()
        assert why.startswith("converged")
        assert steps[-1]["moved"] == 0
        assert all(step["moved"] for step in steps[1:-1])
        assert [step["number"] for step in steps] == list(range(1, len(steps) + 1))

    def test_max_iter(self) -> None:
        why, steps = self.stopped(max_iter=3)
        assert re.search(expecting("max_iter", 3), why)
        assert len(steps) == 3
        why, steps = self.stopped(max_iter=0)
        assert re.search(expecting("max_iter", 0), why)
        assert steps == []

    def test_tol(self) -> None:
        why, steps = self.stopped(tol=0.05)
        assert re.search(r"(?<!\w)tol\b.*\b0\.0\d", why)
        assert steps[-1]["shift"] <= 0.05
        assert all(step["shift"] > 0.05 for step in steps[:-1])

    def test_inertia_tol(self) -> None:
        why, steps = self.stopped(inertia_tol=0.01)
        assert re.search(r"\binertia_tol\b.*\b0\.00\d", why)
        falls = [1 - b["inertia"] / a["inertia"] for a, b in itertools.pairwise(steps)]
        assert falls[-1] <= 0.01
        assert all(fall > 0.01 for fall in falls[:-1])

    def test_max_seconds(self) -> None:
        why, steps = self.stopped(max_seconds=1e-9)
        assert re.search(expecting("max_seconds", "1e-09"), why)
        assert steps == []
        why, steps = self.stopped(max_seconds=3600.0)
        assert why.startswith("converged")

    def test_center_at_the_origin_does_not_end_spherical_k_means(self) -> None:
        x = noise(500, 64).astype(np.float32)
        x[0] = 0.0
        found = run(x, 5, x[:5], preprocess="l2", inertia_tol=1e-5, tol=1e-4)
        values = [it["inertia"] for it in iterations(found)]
        assert values[1] > values[0]  # the center at the origin gets a direction
        assert len(values) > 5
        assert all(after <= before for before, after in itertools.pairwise(values[1:]))
        other = run(x, 5, x[1:6], preprocess="l2", inertia_tol=1e-5, tol=1e-4)
        assert found.model.inertia == pytest.approx(other.model.inertia, rel=0.02)


class TestSampledRefinement:
    def test_growing_samples_of_blocks_then_all_rows(self) -> None:
        x, _ = blobs(4000, 4, 10, spread=4.0)
        events: list[Any] = []
        found = run(x, 10, sample=0.1, block_rows=200, init="random", listener=events.append)
        steps = iterations(found)
        sampled = [step["rows"] for step in steps if step["sampled"]]
        assert set(sampled) == {400, 800, 1600, 3200}  # 2, 4, 8 and 16 of 20 blocks
        assert sampled == sorted(sampled)
        full = [step for step in steps if not step["sampled"]]
        assert steps[-len(full) :] == full
        assert full
        assert all(step["rows"] == 4000 for step in full)
        assert full[0]["moved"] is None  # a sample has no labels of other rows
        done = Counter(e.name for e in events if isinstance(e, BlockDone))
        assert done["kmeans-step"] == sum(step["rows"] for step in steps) / 200
        assert found.record["kmeans"]["stopped"].startswith("converged")
        assert len(full) < len(iterations(run(x, 10, init="random", block_rows=200)))

    def test_sampled_blocks_keep_their_weights(self) -> None:
        x = noise(2000, 3)
        weights = np.where(x[:, 0] > 0, 1.0, 0.0)
        found = run(
            x, 8, init="random", sample=0.2, block_rows=100, sample_weight=weights, max_iter=2
        )
        assert (found.model.centers[:, 0] > 0).all()
        same_bits(
            found,
            run(x, 8, init="random", sample=0.2, block_rows=100, sample_weight=weights, max_iter=2),
        )

    def test_clusters_without_sampled_rows_stay(self) -> None:
        # Rows are sorted by cluster, so a sample of blocks contains only some clusters.
        x, truth = blobs(2000, 4, 10, spread=50.0)
        order = np.argsort(truth, kind="stable")
        x, truth = x[order], truth[order]
        means = np.array([x[truth == k].mean(axis=0, dtype=float) for k in range(10)])
        found = run(x, 10, means, sample=0.1, block_rows=100)
        np.testing.assert_allclose(found.model.centers, means, rtol=1e-5, atol=1e-5)

    def test_no_sampled_iterations_for_a_full_share_or_one_block(self) -> None:
        x, _ = blobs(400, 3, 4)
        assert not any(s["sampled"] for s in iterations(run(x, 4, sample=1.0, block_rows=50)))
        assert not any(s["sampled"] for s in iterations(run(x, 4, sample=0.1)))  # one block only


@pytest.mark.parametrize("shuffle", [True, False])
def test_weights_of_a_shuffled_store_are_questioned(tmp_path: Path, shuffle: bool) -> None:
    np.save(tmp_path / "x.npy", noise(60, 4))
    config = scrlm_dask.IngestConfig(shuffle=shuffle)
    scrlm_dask.ingest(tmp_path / "x.npy", tmp_path / "x.zarr", config)
    events: list[Any] = []
    for weights in (None, np.arange(1.0, 61.0)):
        run(tmp_path / "x.zarr", 2, sample_weight=weights, listener=events.append)
    found = [event.text for event in events if isinstance(event, Note) and event.warning]
    assert len(found) == shuffle
    assert all(str(tmp_path / "x.zarr") in text and "source_row" in text for text in found)
