"""Trials on mixtures: the algorithm, counting of failures, and seeds."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from backends import backend
from oracle import naive_scrlm

from scrlm_dask.engine.execution import Execution
from scrlm_dask.kernels.randomness.sampling import Purpose, sample_rows
from scrlm_dask.kernels.scrlm.theory import required_sizes
from scrlm_dask.paper.framework import Cell, Result, seed_for
from scrlm_dask.paper.regions import measure_trials
from scrlm_dask.paper.runner import run_cells
from scrlm_dask.paper.trials import (
    Search,
    Setting,
    Tally,
    TrialCell,
    count_failures,
    exact_at,
    is_promised,
    is_success,
    scrlm_labels,
)

EASY = Setting(n_rows=120, n_features=64, n_clusters=3, n_candidates=40)


@pytest.mark.parametrize("outliers", [0.0, 0.4])
def test_search_equals_the_algorithm_of_the_paper(outliers: float) -> None:
    setting = replace(EASY, outliers=outliers)
    rows = setting.draw(5).features
    rhos = (0.2, 0.5, 0.9)
    search = Search(rows, 40, rhos, seed=5)
    candidates = sample_rows(5, Purpose.CANDIDATES, 120, 40)
    for k, rho in enumerate(rhos):
        naive = naive_scrlm(rows, candidates, rho)
        centers = search.centers(k)
        assert centers.tolist() == naive.center_rows
        assert np.array_equal(search.labels(k, centers), naive.labels)


def test_all_rows_are_candidates_by_default() -> None:
    rows = replace(EASY, outliers=0.5).draw(1).features
    naive = naive_scrlm(rows, np.arange(120), 0.5)
    assert np.array_equal(scrlm_labels(rows, 0.5, seed=1), naive.labels)


def test_exact_only_for_a_suitable_bandwidth() -> None:
    assert exact_at(EASY, 3, (0.05, 0.5, 3.0)).tolist() == [False, True, False]


def test_counting_stops_when_success_is_impossible() -> None:
    # rho 3.0 always fails; of 100 runs one may fail, so counting stops at the second failure
    narrow, wide = count_failures(TrialCell(EASY, (0.5, 3.0), 100))
    assert (narrow, wide) == (Tally(100, 0), Tally(2, 2))
    assert is_success(narrow, 100)
    assert not is_success(wide, 100)


@pytest.mark.parametrize(
    ("runs", "failures", "success"),
    [(100, 1, True), (100, 2, False), (10, 0, True), (10, 1, False), (99, 0, False)],
)
def test_success_requires_99_of_100_or_all_of_fewer_runs(
    runs: int, failures: int, success: bool
) -> None:
    planned = 10 if runs == 10 else 100
    assert is_success(Tally(runs, failures), planned) is success


@pytest.mark.parametrize("short", ["n_rows", "n_features", "n_candidates", None])
def test_promise_requires_all_sizes_of_the_corollary(short: str | None) -> None:
    need = required_sizes(3, n_rows=500)
    enough = Setting(500, need.n_features, 3, need.n_candidates)
    less = {
        "n_rows": replace(enough, n_rows=need.n_rows - 1),
        "n_features": replace(enough, n_features=need.n_features - 1),
        "n_candidates": replace(enough, n_candidates=need.n_candidates - 1),
    }
    assert is_promised(less[short] if short else enough) is (short is None)


def test_seeds_depend_only_on_parameters() -> None:
    seeds = {seed_for(asdict(replace(EASY, n_rows=n)), k) for n in (100, 200) for k in range(50)}
    assert len(seeds) == 100
    assert seed_for({"a": 1, "b": 2}, 3) == seed_for({"b": 2, "a": 1}, 3)
    # all bandwidths of a setting use the same rows, regardless of other bandwidths
    alone = count_failures(TrialCell(EASY, (0.28,), 10))
    among = count_failures(TrialCell(EASY, (0.05, 0.28, 0.5), 10))
    assert among[1] == alone[0]


@pytest.mark.slow
@pytest.mark.cluster
def test_backends_give_the_same_tallies() -> None:
    cells = [
        TrialCell(replace(EASY, n_features=p, n_candidates=n), (0.5,), 10)
        for p in (8, 16, 32)
        for n in (6, 12, 40)
    ]

    def measured(name: str) -> dict[Cell, Result]:
        found: dict[Cell, Result] = {}
        with backend(name), Execution(lambda event: None) as execution:
            run_cells(execution, "bounds", cells, measure_trials, found.__setitem__)
        return found

    one = measured("one thread")
    assert {tally["failures"] for result in one.values() for tally in result["tallies"]} >= {0, 1}
    assert one == measured("two workers of two threads")
