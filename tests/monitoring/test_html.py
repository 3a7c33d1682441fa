"""HTML for notebooks."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from by_hand import CONFIG, ROWS

import scrlm_dask
from scrlm_dask.events import (
    BlockDone,
    PhaseStarted,
    RowsLabelled,
    RunEnded,
    RunStarted,
)
from scrlm_dask.monitoring.html import facts_html, model_html, progress_html
from scrlm_dask.monitoring.json_log import event_record
from scrlm_dask.monitoring.run_state import RunState

NASTY = "<img src=x onerror=alert(1)>"


def test_progress_is_escaped() -> None:
    state = RunState("r", 0.0)
    events = (
        (0.0, RunStarted("SCRLM", NASTY, 5, 2, None)),
        (0.0, PhaseStarted(NASTY, 2, 10, 80)),
        (1.0, BlockDone(NASTY, 5, 40)),
        (1.0, RowsLabelled(10, 3, 2.5, (0, 2), 0)),
    )
    for now, event in events:
        state.apply(event_record(event), now)
    html = progress_html(state.snapshot(1.0))
    assert NASTY not in html
    assert "&lt;img src=x" in html
    assert "width:50.0%" in html
    assert "30.00 %" in html  # outliers


def test_estimators_models_and_runs_as_html() -> None:
    x = np.repeat(np.array([[0.0, 0.0], [9.0, 9.0]]), 20, axis=0)
    x += np.random.default_rng(0).normal(0, 0.01, x.shape)
    title = re.compile(r"<b>[^<]*\bscrlm</b>")
    estimator = scrlm_dask.SCRLM(n_clusters=2, rho=0.5)
    assert not title.search(estimator._repr_html_())
    fitted = estimator.fit(x)
    html = fitted._repr_html_()
    assert title.search(html)
    assert "20, 20" in html
    assert title.search(fitted._repr_mimebundle_()["text/html"])
    assert "20, 20" in fitted.model_._repr_html_()
    run = scrlm_dask.kmeans(x, scrlm_dask.KMeansConfig(n_clusters=2))
    assert "iteration" in run._repr_html_()


def test_facts_are_escaped() -> None:
    html = facts_html(NASTY, [("name <b>", NASTY)])
    assert NASTY not in html
    assert html.count("&lt;img src=x") == 2
    assert "name &lt;b&gt;" in html


def test_numbers_of_a_model() -> None:
    html = model_html(scrlm_dask.fit(ROWS, CONFIG).model)
    for fact in ("SCRLM[^<]*", "3, 2", r"6\b[^<]*\b1 feature", r"1 \(16\.67 %\)", r"5\.5"):
        assert re.search(f">{fact}<", html)


HOSTILE = [
    "<script>window.hacked = 1</script>",
    "\"><img src=x onerror='window.hacked = 1'>",
    "</script></style></title><svg onload=window.hacked=1>",
    "<a href='javascript:window.hacked=1'>x</a>",
]


def test_names_cannot_change_the_direction_of_text() -> None:
    html = facts_html("a\u202eb", [("c\u202e", "d\x1b")])
    assert all(text in html for text in (r"a\u202eb", r"c\u202e", r"d\x1b"))


class Tags(HTMLParser):
    """Names of the elements of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_add_no_elements(name: str, tmp_path: Path) -> None:
    state = RunState(name, 0.0)
    state.apply(event_record(RunStarted(name, name, 5, 2, name)), 0.0)
    state.apply(event_record(PhaseStarted(name, 2, 10, 80)), 0.0)
    state.apply(event_record(RunEnded(1.0, name)), 1.0)
    path = tmp_path / name.replace("/", "")
    store = scrlm_dask.FeatureStore.write(ROWS.astype(np.float32), path)
    run = scrlm_dask.kmeans(store, scrlm_dask.KMeansConfig(n_clusters=2))
    pages = [progress_html(state.snapshot(1.0)), facts_html(name, [(name, name)])]
    for html in [*pages, run._repr_html_()]:
        assert Tags(html).names <= {"div", "b", "table", "tr", "td"}
