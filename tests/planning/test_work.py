"""Predicted work: blocks, rows, bytes and FLOPs of each phase, computed by hand."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

from scrlm_dask.config import FitConfig, LloydConfig
from scrlm_dask.engine.block_layout import Layout
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.workers import WorkerMemory
from scrlm_dask.events import Planned
from scrlm_dask.planning.memory import MemoryPlan, fit_memory, kmeans_memory
from scrlm_dask.planning.work import (
    PhaseCost,
    block_samples,
    fit_costs,
    kmeans_costs,
    report_plan,
)

TINY = Layout(n_rows=10, n_features=3, itemsize=4, block_rows=4, chunk_rows=4, read_copies=1)
WORKERS = [WorkerMemory(10**9, 1, 0), WorkerMemory(10**9, 2, 1)]


def resolved(n_rows: int = 10, **options: Any) -> Any:
    return FitConfig(**{"rho": 0.5, "n_candidates": 5, **options}).resolve(n_rows)


def test_counts_by_hand() -> None:
    lloyd = LloydConfig(max_iter=7)
    work = tuple(
        fit_costs(TINY, resolved(polish=True, refine=lloyd), n_clusters=2, persisted=False)
    )
    assert work == (
        PhaseCost("survey", 3, 10, 10, 120, 4 * 10 * 3),
        PhaseCost("loss", 3, 10, 10, 120, 2 * 10 * 5 * 3),
        PhaseCost("extract", 1, 5, 5, 0, 2 * 5 * 2 * 3, from_store=False),
        PhaseCost("polish", 3, 10, 10, 120, 2 * 10 * 2 * 3),
        PhaseCost("kmeans-step", 3, 10, 10, 120, 2 * 10 * 2 * 3, times=7),
        PhaseCost("assign", 3, 10, 10, 120, 2 * 10 * 2 * 3),
    )


def test_persisted_features_are_read_once() -> None:
    hold, *others = fit_costs(TINY, resolved(), n_clusters=2, persisted=True)
    assert hold == PhaseCost("hold", 3, 10, 10, 120, 0)
    assert not any(work.from_store for work in others)


def test_blocks_of_a_subset_are_read_and_its_rows_computed() -> None:
    layout = Layout(1000, 3, 4, 10, 10)
    config = resolved(1000, loss_rows=5, preprocess="none")
    survey, loss, *_ = fit_costs(layout, config, 2, persisted=False)
    assert survey.blocks <= 5
    assert survey.flops == 0
    assert loss.computed_rows == 5 < loss.rows == 10 * loss.blocks <= 50
    assert loss.flops == 2 * 5 * 5 * 3


def test_phases_on_a_sample_of_rows() -> None:
    config = resolved(rho="auto", n_candidates="auto", preprocess="none")
    survey, scan, step, assign = fit_costs(TINY, config, n_clusters=2, persisted=False)
    # The sample contains all 10 rows, which are compared with each other.
    assert survey == PhaseCost("survey", 3, 10, 10, 120, 0)
    assert scan == PhaseCost("scan", 1, 10, 10, 0, 2 * 10 * 10 * 3, from_store=False)
    # The scan decides whether there are k-means iterations.
    assert step == PhaseCost("kmeans-step", 3, 10, 10, 120, 2 * 10 * 2 * 3, times=20)
    assert assign == PhaseCost("assign", 3, 10, 10, 120, 2 * 10 * 2 * 3)


def test_features_are_persisted_after_the_scan_if_it_decides_about_k_means() -> None:
    def phases(**options: Any) -> list[tuple[str, bool]]:
        config = resolved(rho="auto", n_candidates="auto", **options)
        costs = fit_costs(TINY, config, n_clusters=2, persisted=True)
        return [(cost.name, cost.from_store) for cost in costs if cost.name != "scan"]

    later = [("kmeans-step", False), ("assign", False)]
    assert phases() == [("survey", True), ("hold", True), *later]
    assert phases(refine=3) == [("hold", True), ("survey", False), *later]


def test_share_of_outliers_needs_a_pass() -> None:
    config = resolved(outlier_share=0.1)
    radius = [c for c in fit_costs(TINY, config, n_clusters=2) if c.name == "radius"]
    assert radius == [PhaseCost("radius", 3, 10, 10, 120, 2 * 10 * 2 * 3)]


def test_k_means_counts_by_hand() -> None:
    assert tuple(kmeans_costs(TINY, 2, max_iter=7)) == (
        PhaseCost("kmeans-step", 3, 10, 10, 120, 2 * 10 * 2 * 3, times=7),
        PhaseCost("assign", 3, 10, 10, 120, 2 * 10 * 2 * 3),
    )


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.5])
def test_samples_of_blocks_are_nested_and_double(share: float) -> None:
    samples = list(block_samples(100, share, seed=3))
    assert [len(sample) for sample in samples[:1]] == [round(100 * share)]
    for small, large in pairwise(samples):
        assert set(small) < set(large)
        assert len(large) == 2 * len(small)
    assert all(sample == sorted(set(sample)) and len(sample) < 100 for sample in samples)
    assert 2 * len(samples[-1]) >= 100
    assert samples == list(block_samples(100, share, seed=3))
    assert samples[0] != next(block_samples(100, share, seed=4))


def test_no_samples_of_blocks() -> None:
    assert list(block_samples(100, None, seed=0)) == []
    assert list(block_samples(100, 1.0, seed=0)) == []
    assert list(block_samples(1, 0.5, seed=0)) == []


def test_iterations_on_samples_are_counted() -> None:
    layout = Layout(40, 3, 4, 4, 4)
    lloyd = LloydConfig(max_iter=7, sample=0.2)
    work = fit_costs(layout, resolved(40, refine=lloyd), n_clusters=2, persisted=False)
    steps = [(phase.blocks, phase.times) for phase in work if phase.name == "kmeans-step"]
    assert steps == [(2, 10), (4, 10), (8, 10), (10, 7)]


def planned(costs: Iterable[PhaseCost], memory: MemoryPlan) -> Planned:
    events: list[Any] = []
    with Execution(events.append) as execution:
        report_plan(execution, costs, memory, WORKERS)
    (plan,) = [event for event in events if isinstance(event, Planned)]
    return plan


@pytest.mark.parametrize("n_clusters", [None, 2])
def test_plan_of_a_fit_contains_the_known_phases(n_clusters: int | None) -> None:
    config = resolved(refine=LloydConfig(max_iter=7))
    memory = fit_memory(TINY, config, n_clusters, 2)
    plan = planned(fit_costs(TINY, config, n_clusters), memory)
    known = {"survey": 4 * 10 * 3, "loss": 2 * 10 * 5 * 3}
    known |= {"extract": 2 * 5 * (n_clusters or 0) * 3}
    if n_clusters is not None:
        known |= {"kmeans-step": 7 * 2 * 10 * 2 * 3, "assign": 2 * 10 * 2 * 3}
    assert plan.flops == known
    assert (plan.row_flops["survey"], plan.row_flops["loss"]) == (12.0, 30.0)
    assert plan.worker_bytes == memory.worker_bytes(2, 1)  # of the worker with the largest need
    assert plan.client_bytes == memory.client_bytes


def test_plan_of_k_means() -> None:
    memory = kmeans_memory(TINY, 2, 2)
    plan = planned(kmeans_costs(TINY, 2, max_iter=7), memory)
    assert plan.flops == {"kmeans-step": 7 * 2 * 10 * 2 * 3, "assign": 2 * 10 * 2 * 3}
    assert plan.row_flops == {"kmeans-step": 12.0, "assign": 12.0}
    assert plan.worker_bytes == memory.worker_bytes(2, 1)
