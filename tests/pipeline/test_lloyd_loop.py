"""Refinement of SCRLM: polished centers, and k-means with and without outliers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from lloyd_oracle import naive_step
from messages import expecting
from numpy.typing import NDArray

import scrlm_dask
from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
from scrlm_dask.events import BlockDone
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec, synth_block, true_mixture
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.kmeans import kmeans
from scrlm_dask.pipeline.predict import predict
from scrlm_dask.runs.lifecycle import FitResult

STRICT = LloydConfig(max_iter=30, tol=0.0, inertia_tol=0.0)
SPEC = MixtureSpec(n_features=64, n_clusters=10, outliers=0.5, seed=7)
CONFIG = FitConfig(rho=0.5, n_clusters=40, preprocess="none", refine=STRICT, polish=True)


@pytest.fixture(scope="module")
def drawn() -> Any:
    return synth_block(SPEC, true_mixture(SPEC), 0, 4000)


@pytest.fixture(scope="module")
def x(drawn: Any) -> NDArray[np.float32]:
    return drawn.features


def ignore(event: Any) -> None:
    """Ignore events; these tests do not check warnings."""


def run(x: Any, config: FitConfig, **options: Any) -> FitResult:
    with dask.config.set(scheduler="sync"):
        return fit(x, config, **{"collect_labels": True, "listener": ignore, **options})


def check_centers(found: FitResult, drawn: Any) -> None:
    """Check that centers are as close to the true means as the mean of a cluster's rows."""
    truth = true_mixture(SPEC)
    for k in range(SPEC.n_clusters):
        distances = np.linalg.norm(found.model.centers - truth.means[k], axis=1)
        rows = int((drawn.labels == k).sum())
        assert distances.min() <= 3 * truth.sigmas[k] * np.sqrt(SPEC.n_features / rows)


@pytest.mark.parametrize("preprocess", ["none", "standardize"])
@pytest.mark.parametrize("polish", [False, True])
def test_refined_centers_are_close_to_the_true_means(
    x: NDArray[np.float32], drawn: Any, preprocess: Any, polish: bool
) -> None:
    config = replace(CONFIG, preprocess=preprocess, polish=polish)
    plain, found = run(x, replace(config, polish=False, refine=LloydConfig())), run(x, config)
    assert found.model.n_clusters == 10
    check_centers(found, drawn)
    with pytest.raises(AssertionError):
        check_centers(plain, drawn)  # centers that are rows are much farther away
    np.testing.assert_array_equal(found.labels == -1, drawn.labels == -1)
    # The model keeps the rows from which the centers started.
    np.testing.assert_array_equal(found.model.center_rows, plain.model.center_rows)
    np.testing.assert_array_equal(found.model.losses, plain.model.losses)
    np.testing.assert_allclose(found.model.centers, found.model.means, rtol=1e-6, atol=1e-6)
    assert found.model.inertia < plain.model.inertia


def test_polish_without_refinement(x: NDArray[np.float32], drawn: Any) -> None:
    found = run(x, replace(CONFIG, refine=LloydConfig()))
    check_centers(found, drawn)
    assert "kmeans" not in found.record
    row = x[found.model.center_rows[0]].astype(float)
    sq = ((x.astype(float) - row) ** 2).sum(axis=1)
    mean = x[sq < found.model.sq_radius].mean(axis=0, dtype=float)
    np.testing.assert_allclose(found.model.centers[0], mean, rtol=1e-9, atol=1e-12)


def test_predict_gives_the_labels_of_the_fit(x: NDArray[np.float32], tmp_path: Path) -> None:
    for robust in (True, False):
        out = tmp_path / str(robust)
        found = run(x, replace(CONFIG, robust=robust), block_rows=700, out=out)
        for model in (found.model, out):
            again = predict(model, x, collect_labels=True, block_rows=333)
            np.testing.assert_array_equal(again.labels, found.labels)
        naive = naive_step(x, found.model.centers, found.model.sq_radius)
        np.testing.assert_array_equal(found.labels, naive.labels)
        assert found.model.inertia == pytest.approx(naive.inertia)


def test_without_robust_every_row_is_labelled(x: NDArray[np.float32], drawn: Any) -> None:
    found = run(x, replace(CONFIG, robust=False))
    assert found.labels is not None
    assert (found.labels >= 0).all()
    assert (found.model.n_outliers, found.model.outlier_weight) == (0, 0.0)
    assert np.isinf(found.model.radius)
    assert found.record["radius"] is None
    with pytest.raises(AssertionError):
        check_centers(found, drawn)  # outliers move the centers
    # From the same initial centers, the result is that of k-means.
    start = run(x, replace(CONFIG, refine=LloydConfig())).model.centers
    plain = kmeans(
        x, KMeansConfig(10, "given", STRICT), centers=start, collect_labels=True, listener=ignore
    )
    np.testing.assert_array_equal(found.labels, plain.labels)
    np.testing.assert_allclose(found.model.centers, plain.model.centers, rtol=1e-9)


@pytest.mark.parametrize("polish", [False, True])
def test_number_of_reads(x: NDArray[np.float32], polish: bool) -> None:
    events: list[Any] = []
    config = replace(
        CONFIG, polish=polish, preprocess="standardize", refine=replace(STRICT, max_iter=3)
    )
    found = run(x, config, block_rows=400, listener=events.append)
    iterations = len(found.record["kmeans"]["iterations"])
    assert 1 <= iterations <= 3
    done = Counter(event.name for event in events if isinstance(event, BlockDone))
    assert done == {
        "survey": 10,
        "loss": 10,
        **({"polish": 10} if polish else {}),
        "kmeans-step": 10 * iterations,
        "assign": 10,
    }


@pytest.mark.slow
def test_labels_do_not_depend_on_the_chunks(x: NDArray[np.float32], tmp_path: Path) -> None:
    one = run(x, CONFIG)
    # Blocks of 7 rows are smaller than the sums of 10 clusters, so the last passes merge blocks.
    for block_rows in (7, 999):
        rows = x[:1500] if block_rows == 7 else x
        expected = run(rows, CONFIG) if block_rows == 7 else one
        out = tmp_path / str(block_rows)
        many = run(rows, CONFIG, block_rows=block_rows, out=out)
        np.testing.assert_array_equal(many.labels, expected.labels)
        np.testing.assert_allclose(many.model.centers, expected.model.centers, rtol=1e-6, atol=1e-9)
        import zarr

        stored = zarr.open_array(out / "labels.zarr" / "labels", mode="r")
        assert stored.chunks == (block_rows,)
        np.testing.assert_array_equal(stored[:], expected.labels)


def test_l2_ignores_the_length_of_rows(x: NDArray[np.float32]) -> None:
    lengths = np.random.default_rng(0).uniform(0.1, 10, size=(len(x), 1))
    config = replace(CONFIG, preprocess="l2", rho=0.06)
    found, stretched = run(x, config), run(x * lengths, config)
    assert found.model.n_clusters >= 5
    np.testing.assert_allclose(np.linalg.norm(found.model.centers, axis=1), 1.0)
    np.testing.assert_array_equal(found.labels, stretched.labels)
    np.testing.assert_allclose(found.model.centers, stretched.model.centers, atol=1e-6)


def test_refinement_without_clusters() -> None:
    x = np.arange(10, dtype=np.float32)[:, None] * 100
    found = run(x, CONFIG)
    assert found.model.n_clusters == 0
    assert found.record["kmeans"] == {"iterations": [], "stopped": ""}
    assert found.labels is not None
    assert (found.labels == -1).all()
    not_robust = run(x, replace(CONFIG, robust=False))
    assert (not_robust.labels == -1).all()  # there is no nearest center


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"polish": False},
        {"robust": False},
        {"refine": LloydConfig()},
        {"refine": replace(STRICT, max_iter=1)},
        {"refine": replace(STRICT, tol=0.5)},
        {"refine": replace(STRICT, inertia_tol=0.5)},
        {"refine": replace(STRICT, max_seconds=1e-9)},
        {"refine": replace(STRICT, sample=0.25)},
    ],
    ids=str,
)
def test_every_parameter_has_an_effect(change: dict[str, Any]) -> None:
    # Overlapping clusters, so that k-means needs several iterations.
    x = np.random.default_rng(2).normal(size=(1200, 4)).astype(np.float32)
    config = replace(CONFIG, rho=0.4, n_clusters=12)
    before, after = (
        run(x, config, block_rows=150),
        run(x, replace(config, **change), block_rows=150),
    )
    assert len(before.record["kmeans"]["iterations"]) > 5
    results = [
        (
            f.model.centers.tobytes(),
            [it["rows"] for it in f.record.get("kmeans", {}).get("iterations", ())],
        )
        for f in (before, after)
    ]
    assert results[0] != results[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [{"n_clusters": 5}, {"init": "random"}, {"preprocess": "l2"}, {"seed": 1}], ids=str
)
def test_every_parameter_of_kmeans_has_an_effect(change: dict[str, Any]) -> None:
    x = np.random.default_rng(2).normal(size=(500, 4)).astype(np.float32)
    config = KMeansConfig(6, "k-means++")
    before, after = (kmeans(x, c, listener=ignore) for c in (config, replace(config, **change)))
    assert before.model.centers.tobytes() != after.model.centers.tobytes()


def test_invalid_robust() -> None:
    with pytest.raises(
        scrlm_dask.errors.InputError, match=expecting("robust", False, "--kmeans-iter")
    ):
        FitConfig(rho=0.5, robust=False)
    with pytest.raises(
        scrlm_dask.errors.InputError, match=expecting("robust", "'no'", True, False)
    ):
        FitConfig(rho=0.5, robust="no")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "facts"),
    [
        ("max_iter", -1, (-1, 0)),
        ("max_iter", 1.5, (1.5, 0)),
        ("tol", -1e-9, (-1e-9, 0, 1)),
        ("tol", float("nan"), ("nan", 0, 1)),
        ("tol", 10**400, (10**400, 0, 1)),
        ("inertia_tol", "small", ("'small'", 0, 1)),
        ("max_seconds", 0, (0,)),
        ("sample", 0.0, (0, None)),
        ("sample", 1.5, (1.5, 0, 1)),
        ("persist", True, (True, "auto", "yes", "no")),
    ],
    ids=lambda value: str(value)[:20],
)
def test_invalid_lloyd_config(name: str, value: Any, facts: tuple[Any, ...]) -> None:
    with pytest.raises(scrlm_dask.errors.InputError, match=expecting(name, *facts)):
        LloydConfig(**{name: value})


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        ({"n_clusters": 0}, ("n_clusters", 0, 1)),
        ({"n_clusters": 2.0}, ("n_clusters", 2.0, 1)),
        ({"init": "kmeans++"}, ("init", "'kmeans++'", "scrlm", "k-means++")),
        ({"preprocess": "cosine"}, ("preprocess", "'cosine'", "l2")),
        ({"seed": -1}, ("seed", -1, 0)),
    ],
    ids=str,
)
def test_invalid_kmeans_config(config: dict[str, Any], facts: tuple[Any, ...]) -> None:
    with pytest.raises(scrlm_dask.errors.InputError, match=expecting(*facts)):
        KMeansConfig(**config)
