"""Configs: rejected values, facts in the messages, and defaults that depend on the data."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, asdict, fields
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from messages import expecting

from scrlm_dask.config import (
    ASSUMED_CLUSTERS,
    KMEANS_ITERATIONS,
    MERGED_ITERATIONS,
    FitConfig,
    KMeansConfig,
    LloydConfig,
    as_config,
    stored_config,
)
from scrlm_dask.errors import InputError, StoreError


@pytest.mark.parametrize("name", ["rho", "F"])
@pytest.mark.parametrize(
    "value",
    [
        *(0, 0.0, -0.0, -1, -1e-300, math.nan, math.inf, -math.inf),
        *("x", "0.5", True, None, 1j, [0.5], Decimal("0.5")),
        *(np.True_, np.float32(0), np.float64(np.nan), np.array(0.5)),
    ],
    ids=repr,
)
def test_numbers_must_be_finite_and_positive(name: str, value: Any) -> None:
    words = ["'auto'"] if name == "rho" else []
    with pytest.raises(InputError, match=expecting(name, repr(value), *words)):
        FitConfig(**{name: value})


@pytest.mark.parametrize(
    ("name", "least", "words"),
    [
        ("n_clusters", 1, [None]),
        ("n_candidates", 1, ["auto"]),
        ("loss_rows", 1, ["all"]),
        ("min_neighbors", 1, []),
        ("seed", 0, []),
    ],
)
def test_counts_must_be_integers(name: str, least: int, words: list[str | None]) -> None:
    bad = [least - 1, -(10**9), 3.0, 2.5, math.nan, "3", "x", True, 1j, (3,), np.float64(3)]
    # A word that one parameter accepts is an error for the others.
    bad += [word for word in (None, "auto", "all") if word not in words]
    for value in bad:
        facts = (name, repr(value), least, *map(repr, words))
        with pytest.raises(InputError, match=expecting(*facts)):
            FitConfig(**{name: value})
    assert getattr(FitConfig(**{name: least}), name) == least


def test_arrays_are_rejected_as_counts() -> None:
    for name in ("n_clusters", "n_candidates", "loss_rows", "min_neighbors", "seed"):
        with pytest.raises(InputError, match=expecting(name, "array([3, 4])")):
            FitConfig(**{name: np.array([3, 4])})


def test_integer_beyond_float64_is_rejected() -> None:
    with pytest.raises(InputError, match=expecting("rho", 10**400)):
        FitConfig(rho=10**400)


@pytest.mark.parametrize("kind", ["bogus", "", "Standardize", None, True, 1, ["none"]])
def test_unknown_preprocessing_is_rejected_with_the_known_kinds(kind: Any) -> None:
    known = ("none", "center", "standardize", "scale", "l2")
    with pytest.raises(InputError, match=expecting("preprocess", repr(kind), *known)):
        FitConfig(rho=0.5, preprocess=kind)


def test_input_errors_are_value_errors() -> None:
    with pytest.raises(ValueError, match=expecting("rho", -1)):
        FitConfig(rho=-1)


def test_numpy_scalars_become_plain_numbers() -> None:
    # JSON, in which the config is stored, supports only plain numbers.
    config = FitConfig(
        rho=np.float32(0.25),  # type: ignore[arg-type]
        F=np.int64(2),  # type: ignore[arg-type]
        n_clusters=np.int32(3),  # type: ignore[arg-type]
        n_candidates=np.uint8(4),  # type: ignore[arg-type]
        loss_rows=np.int64(5),  # type: ignore[arg-type]
        min_neighbors=np.int16(6),  # type: ignore[arg-type]
        seed=np.uint64(7),  # type: ignore[arg-type]
        refine=np.int64(8),  # type: ignore[arg-type]
        robust=np.False_,  # type: ignore[arg-type]
        prune=np.int8(9),  # type: ignore[arg-type]
        margins=np.True_,  # type: ignore[arg-type]
    )
    values = [getattr(config, field.name) for field in fields(config)]
    plain = [
        0.25,
        2.0,
        3,
        4,
        5,
        6,
        "standardize",
        7,
        False,
        LloydConfig(8),
        False,
        None,
        None,
        9,
        True,
        False,
        "greedy",
    ]
    assert values == plain
    none = type(None)
    kinds = [float, float, int, int, int, int, str, int, bool, LloydConfig, bool, none, none]
    kinds += [int, bool, bool, str]
    assert [type(value) for value in values] == kinds


def test_defaults_are_those_of_the_paper() -> None:
    """Only rho differs: it is chosen from the data; with a given rho nothing differs."""
    config = FitConfig()
    assert (config.rho, config.F, config.preprocess) == ("auto", 2.5, "auto")
    assert (config.n_clusters, config.n_candidates, config.loss_rows) == (None, "auto", "all")
    assert (config.min_neighbors, config.seed) == (1, 0)
    assert (config.polish, config.refine.max_iter) == (False, "auto")
    assert (config.outlier_share, config.radius, config.levels) == (None, None, False)
    assert (config.extraction, config.robust, config.samples) == ("auto", "auto", True)
    given = FitConfig(rho=0.5)
    assert (given.extraction, given.robust, given.samples) == ("greedy", True, False)
    # The other settings do not depend on rho.
    settled = {"rho": 0.5, "extraction": "greedy", "robust": True, "preprocess": "standardize"}
    assert asdict(given) == asdict(config) | settled | {"refine": asdict(LloydConfig(0))}


def test_config_is_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        FitConfig(rho=0.5).rho = 1.0  # type: ignore[misc]


# --- values that depend on the data -------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_clusters", "expected"),
    [
        # Corollary 7, n > (m / 0.8)(log m + log 400), the smallest integer above
        (1, 8),  # 1.25 x 5.991465 = 7.489
        (3, 27),  # 3.75 x 7.090077 = 26.588
        (10, 104),  # 12.5 x 8.294050 = 103.676
        (1000, 16125),  # 1250 x 12.899220 = 16124.025
    ],
)
def test_number_of_candidates_from_the_theory(n_clusters: int, expected: int) -> None:
    resolved = FitConfig(rho=0.5, n_clusters=n_clusters).resolve(10**6)
    assert resolved.n_candidates == expected


def test_at_most_as_many_candidates_as_rows() -> None:
    assert FitConfig(rho=0.5, n_clusters=10).resolve(104).n_candidates == 104
    assert FitConfig(rho=0.5, n_clusters=10).resolve(103).n_candidates == 103
    assert FitConfig(rho=0.5, n_clusters=10).resolve(1).n_candidates == 1


def test_without_a_number_of_clusters_candidates_are_drawn_for_1000() -> None:
    assert ASSUMED_CLUSTERS == 1000
    assert FitConfig(rho=0.5).resolve(10**6).n_candidates == 16125
    assert FitConfig(rho=0.5).resolve(500).n_candidates == 500


def test_given_numbers_are_used() -> None:
    asked = FitConfig(rho=0.5, n_clusters=10, n_candidates=7, loss_rows=20)
    resolved = asked.resolve(30)
    assert resolved.asked is asked
    assert (resolved.n_rows, resolved.n_candidates, resolved.loss_rows) == (30, 7, 20)
    assert not resolved.loss_on_all_rows


def test_loss_is_computed_on_all_rows_by_default() -> None:
    assert FitConfig(rho=0.5).resolve(30).loss_rows == 30
    assert FitConfig(rho=0.5).resolve(30).loss_on_all_rows
    assert FitConfig(rho=0.5, loss_rows=30).resolve(30).loss_on_all_rows


@pytest.mark.parametrize("name", ["n_candidates", "loss_rows"])
def test_more_than_the_number_of_rows_is_rejected(name: str) -> None:
    assert getattr(FitConfig(**{name: 30}).resolve(30), name) == 30
    with pytest.raises(InputError, match=expecting(name, 31, 30)):
        FitConfig(**{name: 31}).resolve(30)


@pytest.mark.parametrize("value", [20, {"rho": 0.5}, KMeansConfig(2)])
def test_another_type_of_config_is_rejected(value: Any) -> None:
    with pytest.raises(InputError, match=expecting("config", "FitConfig", type(value).__name__)):
        as_config(value, FitConfig)
    assert as_config(None, FitConfig) == FitConfig()


@pytest.mark.parametrize("change", [{"x": 1}, {"refine": {"x": 1}}])
def test_stored_settings_of_another_version_are_rejected(change: dict[str, Any]) -> None:
    config = FitConfig(rho=0.5)
    assert stored_config(asdict(config), FitConfig) == config
    with pytest.raises(StoreError, match="'x'"):
        stored_config(asdict(config) | change, FitConfig)


class TestOutliers:
    @pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2, "most", True])
    def test_share_is_between_0_and_1(self, share: Any) -> None:
        with pytest.raises(InputError, match=expecting("outlier_share", repr(share), "'auto'")):
            FitConfig(outlier_share=share)

    def test_share_and_radius_exclude_each_other(self) -> None:
        with pytest.raises(InputError, match=expecting("--outlier-share", "--radius", 0.02, 1.5)):
            FitConfig(outlier_share=0.02, radius=1.5)

    def test_auto_needs_a_sample(self) -> None:
        with pytest.raises(InputError, match=expecting("outlier_share", "'auto'", "rho")):
            FitConfig(rho=0.5, outlier_share="auto")
        FitConfig(rho=0.5, n_clusters=3, extraction="merge", outlier_share="auto")

    def test_radius_decides_about_outliers(self) -> None:
        config = FitConfig(rho=0.5, radius=3.0)
        assert (config.sq_radius(16), config.kmeans_sq_radius(16)) == (9.0, 9.0)
        merged = FitConfig(rho=0.5, radius=3.0, n_clusters=2, extraction="merge")
        assert (merged.sq_radius(16), merged.kmeans_sq_radius(16)) == (9.0, math.inf)
        assert FitConfig(rho=0.5).sq_radius(16) == 0.25 * 2.5 * 16


def test_number_of_iterations_that_is_chosen_later() -> None:
    assert FitConfig().most_iterations == MERGED_ITERATIONS
    assert FitConfig(refine=3).most_iterations == 3
    assert FitConfig(extraction="residual").most_iterations == 0
    assert FitConfig(rho=0.5).refine.max_iter == 0
    merging = FitConfig(rho=0.5, n_clusters=2, extraction="merge")
    assert merging.refine.max_iter == MERGED_ITERATIONS
    assert KMeansConfig(lloyd={"tol": 0.1}).lloyd.max_iter == KMEANS_ITERATIONS
