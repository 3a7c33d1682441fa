"""Region experiments: panels, and tables of known tallies."""

from __future__ import annotations

from scrlm_dask.paper.regions import (
    BANDWIDTH_GRIDS,
    BandwidthGrid,
    RegionGrid,
    define_bandwidth,
    define_bounds,
)


def test_last_panel_of_the_paper_has_its_own_number_of_features() -> None:
    settings = [cell.setting for cell in define_bandwidth("paper").cells]
    assert {s.n_candidates for s in settings if s.n_features == 4200} == set(
        BANDWIDTH_GRIDS["paper"].candidates
    )
    assert 4200 not in {cell.setting.n_features for cell in define_bandwidth("small").cells}


def test_bounds_from_tallies_by_hand() -> None:
    """Runs succeed with 8 features or more; cells with too few rows are not in the table."""
    grid = RegionGrid(10, 100, 16, (100,), (4, 8, 16), (2,), (8, 200))
    experiment = define_bounds("smoke", grid)
    results = {
        cell: {"tallies": [{"runs": 10, "failures": int(cell.setting.n_features < 8)}]}
        for cell in experiment.cells
    }
    found = experiment.finish(results)
    panels = found.summary["panels"]
    assert panels["p vs m"]["limits"][0]["observed"] == 8
    assert panels["n vs m"]["limits"][0]["observed"] is None  # 200 candidates of 100 rows
    assert {row["n_candidates"] for row in found.rows if row["panel"] == "n vs m"} == {8}
    first = next(row for row in found.rows if row["panel"] == "p vs m")
    assert (first["n_features"], first["failures"], first["success"]) == (4, 1, False)
    assert [line[0] for line in found.tables[0].lines] == list(panels)


def test_bandwidths_from_tallies_by_hand() -> None:
    grid = BandwidthGrid(10, 32, 16, (32,), (16,), (2,), (8,), rhos=(0.2, 0.3, 0.4, 0.9))
    experiment = define_bandwidth("smoke", grid)
    tallies = [{"runs": 10, "failures": failures} for failures in (1, 0, 0, 1)]
    found = experiment.finish({cell: {"tallies": tallies} for cell in experiment.cells})
    panel = found.summary["panels"]["rho vs N"]
    assert panel["columns"] == [{"x": 32, "low": 0.3, "high": 0.4}]
    assert (panel["lower_minus_sigma_max"], found.summary["rho_step"]) == (0.05, 0.1)
    assert len(found.rows) == 4 * 4
    assert found.tables[0].lines[0][2:5] == ("0.300", "+0.050", "0.400")
