"""Data of a report, as read from a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_hand import CONFIG, SCAN
from reporting.level_records import LEVEL_SCAN, LEVELS

from scrlm_dask.errors import StoreError
from scrlm_dask.reporting.report_data import ReportData, plane_map, read_report_data


def test_map_preserves_distances_in_a_plane() -> None:
    flat = np.random.default_rng(3).normal(size=(12, 2)) * [5.0, 1.0]
    points = np.concatenate([flat, np.zeros((12, 3))], axis=1)
    found = plane_map(points)
    assert found is not None
    assert "PCA" in found.method
    assert "100%" in found.method
    apart = np.linalg.norm(found.xy[:, None] - found.xy[None], axis=2)
    assert np.allclose(apart, np.linalg.norm(flat[:, None] - flat[None], axis=2), atol=1e-4)


def test_map_of_a_line_and_of_a_point() -> None:
    found = plane_map(np.array([[1.0], [3.0], [8.0]]))
    assert found is not None
    assert found.xy.tolist() == [[-3.0, 0.0], [-1.0, 0.0], [4.0, 0.0]]
    assert plane_map(np.array([[1.0, 2.0]])) is None


def test_distances_and_margins_of_all_blocks(found: ReportData) -> None:
    assert found.name == "run"
    assert found.points.tolist() == [[1.0], [10.0]]
    columns = found.columns
    totals = [h.bins.total for h in (columns.inside, columns.outside, columns.margins)]
    assert totals == [5, 1, 5]  # margins of rows with a label
    assert columns.median_margin == pytest.approx(9.0, rel=0.1)
    # rows at the same distance are in the order of their numbers
    assert [columns.nearest.of(k).tolist() for k in (0, 1)] == [[1, 0], [3, 4]]
    assert found.by_size.tolist() == [0, 1]
    assert (found.pairs.first.tolist(), found.pairs.second.tolist()) == ([0], [1])
    assert found.pairs.distances.tolist() == [9.0]


def test_notes_and_losses_from_events(found: ReportData) -> None:
    assert found.notes == []  # only warnings
    assert found.loss_curve is not None
    assert found.loss_curve.ranks == (1, 2, 3, 4, 5, 6)
    assert found.loss_curve.losses == pytest.approx([-3.0, -1.5, -1.5, -1.5, -1.5, 0.0])
    odd = [
        {"event": "CandidatesJudged", "ranks": [1, 2], "losses": [-1.0]},
        {"event": "CandidatesJudged", "ranks": [1], "losses": ["low"]},
        {"event": "Note", "warning": True},
        {"event": "Note", "warning": True, "text": "some rows"},
        {"event": "Note", "warning": False, "text": "many rows"},
    ]
    changed = replace(found, events=[*found.events, *odd])
    assert changed.loss_curve == found.loss_curve
    assert changed.notes == ["some rows"]
    assert replace(found, events=[]).loss_curve is None


def test_trials_are_shown_if_several_are_complete(found: ReportData) -> None:
    assert found.trials == []
    scan = SCAN.to_json()
    (first,) = scan["rungs"]
    second = {**first, "rho": 1.0}

    def shown(*trials: dict[str, Any]) -> list[float]:
        record = replace(found.record, scan={**scan, "rungs": list(trials)})
        return [trial.rho for trial in replace(found, record=record).trials]

    assert shown(first, second) == [first["rho"], second["rho"]]
    assert shown(first) == []
    assert shown(first, {**second, "shell": None}) == []


def test_numbers_of_clusters_chosen_by_modularity(found: ReportData) -> None:
    assert found.scan is None
    assert found.levels is None

    def read(scan: dict[str, Any]) -> ReportData:
        return replace(found, record=replace(found.record, scan=scan))

    content = LEVEL_SCAN.to_json()
    assert read(content).scan == LEVEL_SCAN
    assert read(content).levels == LEVELS
    damaged = read({**content, "levels": {"clusters": 19}})
    assert damaged.scan is None
    assert damaged.levels is None


def test_requested_config(found: ReportData) -> None:
    assert (found.asked["rho"], found.asked["preprocess"]) == (CONFIG.rho, CONFIG.preprocess)


def test_missing_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"{tmp_path}/none"):
        read_report_data(tmp_path / "none", rows_each=2)
