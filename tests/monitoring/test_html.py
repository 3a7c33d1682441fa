"""HTML for notebooks."""

from __future__ import annotations

import re

import numpy as np
from by_hand import CONFIG, ROWS

import scrlm_dask
from scrlm_dask.events import (
    BlockDone,
    PhaseStarted,
    RowsLabelled,
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
