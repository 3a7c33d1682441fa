"""Figures of a run, and their data."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from by_hand import SCAN
from matplotlib.figure import Figure
from PIL import Image
from reporting.level_records import LEVEL_SCAN, TRIALS

from scrlm_dask.events import IterationDone
from scrlm_dask.reporting import figures
from scrlm_dask.reporting.report_data import PlaneMap, ReportData
from scrlm_dask.runs.record import KMeansRecord

ITERATIONS = [IterationDone(n, 6, n == 1, 9.0 / n, 0.0, 1, 0, 0, 1.0) for n in (1, 2, 3)]
DRAWN = b"PNG"


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Save a constant instead of drawing, and return the list of saved figures."""
    saved: list[Any] = []

    def save(self: Any, content: BytesIO, **kwargs: Any) -> None:
        saved.append(self)
        content.write(DRAWN)

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save)
    return saved


def with_everything(found: ReportData) -> ReportData:
    scan = SCAN.to_json()
    scan["rungs"] = [{**scan["rungs"][0], "rho": rho} for rho in (0.25, 0.5, 1.0)]
    kmeans = KMeansRecord(ITERATIONS, "tol")
    return replace(found, record=replace(found.record, scan=scan, kmeans=kmeans))


def test_figures_depend_on_the_data_of_the_run(found: ReportData, undrawn: list[Any]) -> None:
    plain = [name for name, _, _ in figures.run_figures(found, None)]
    assert plain == ["phases", "sizes", "sigmas", "outliers", "distances", "margins", "losses"]
    plane = PlaneMap(np.array([[0.0, 0.0], [9.0, 0.0]]), "PCA")
    drawn = list(figures.run_figures(with_everything(found), plane))
    assert {name for name, _, _ in drawn} - set(plain) == {"rho", "inertia", "map"}
    assert all(title for _, title, _ in drawn)
    assert {png for _, _, png in drawn} == {DRAWN}


def test_data_of_the_figures(found: ReportData, undrawn: list[Any]) -> None:
    names = [name for name, _, _ in figures.run_figures(with_everything(found), None)]
    axes = {name: figure.axes[0] for name, figure in zip(names, undrawn, strict=True)}
    assert axes["sizes"].lines[0].get_xydata().tolist() == [[1, 3], [2, 2]]
    assert axes["losses"].lines[0].get_xydata()[0].tolist() == [1, pytest.approx(-3.0)]
    # the first iteration used a sample, so its inertia is not comparable
    assert axes["inertia"].lines[0].get_xydata().tolist() == [[2, 4.5], [3, 3.0]]
    widths = [bar.get_width() for bar in axes["outliers"].patches]
    assert widths == pytest.approx([5 / 6, 1 / 6])
    radius = [line.get_xdata()[0] for line in axes["distances"].lines]
    assert radius == pytest.approx([2.5**0.5])
    assert axes["rho"].lines[0].get_xdata().tolist() == [0.25, 0.5, 1.0]


def test_modularity_is_shown_if_it_decided(found: ReportData, undrawn: list[Any]) -> None:
    data = replace(found, record=replace(found.record, scan=LEVEL_SCAN.to_json()))
    names = [name for name, _, _ in figures.run_figures(data, None)]
    assert "modularity" in names
    assert "rho" not in names
    (axes,) = undrawn[names.index("modularity")].axes
    assert axes.lines[0].get_xdata().tolist() == [trial.clusters for trial in TRIALS]
    assert {text.get_text() for text in axes.texts} == {"coarse 8", "default 19", "fine 76"}
    assert "11 to 54" in axes.get_xlabel()


def test_runs_of_the_same_name_are_numbered(found: ReportData, undrawn: list[Any]) -> None:
    runs = [found, replace(found, name="other"), found]
    names = [name for name, _, _ in figures.comparison_figures(runs)]
    assert names == ["compared-sizes", "compared-phases"]  # none has iterations
    legend = [text.get_text() for text in undrawn[0].axes[0].get_legend().get_texts()]
    assert legend == ["run (1)", "other", "run (3)"]


def test_names_are_neither_formulas_nor_omitted(found: ReportData, undrawn: list[Any]) -> None:
    phases = [replace(phase, name=r"$\bad{$") for phase in found.record.phases]
    odd = replace(found, name=r"b$\bad{$", record=replace(found.record, phases=phases))
    runs = [odd, replace(found, name="_x"), replace(found, name="\x1b[2J\nx$")]
    assert list(figures.run_figures(odd, None)) + list(figures.comparison_figures(runs))
    for figure in undrawn:
        Figure.draw_without_rendering(figure)  # raises for an invalid formula
    (legend,) = [figure.axes[0].get_legend() for figure in undrawn[-2:-1]]
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == [r"b\$\bad{\$", " _x", r"\x1b[2J\nx\$"]


def test_figures_are_reproducible(found: ReportData) -> None:
    first, again = (next(figures.run_figures(found, None))[2] for _ in range(2))
    assert first == again
    with Image.open(BytesIO(first)) as image:
        assert (image.format, image.width) == ("PNG", 1024)  # 6.4 inches at 160 dpi
