"""Events as lines of JSON."""

from __future__ import annotations

import json

import pytest

from scrlm_dask.events import (
    BlockDone,
    CandidatesJudged,
    PhaseFinished,
    PhaseStarted,
)
from scrlm_dask.monitoring.json_log import JsonLines, event_record, plain


def test_lines_are_json_and_blocks_are_summed() -> None:
    lines: list[str] = []
    listener = JsonLines(lines.append)
    listener(CandidatesJudged(2, (1, 2), (-3.0, float("nan"))))
    listener(PhaseStarted("loss", 1000, 1000, 8))
    for _ in range(1000):
        listener(BlockDone("loss", 1, 8))
    listener(BlockDone("survey", 1, 8))  # late
    listener(PhaseFinished("loss", 1.0, 1000, 8, 1000, 5, 0.0))
    records = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    names = [record["event"] for record in records]
    assert names[:2] == ["CandidatesJudged", "PhaseStarted"]
    assert names[-1] == "PhaseFinished"
    assert 1 <= len(names) - 3 < 100
    assert records[-2]["event"] == "BlocksDone"
    assert (records[-2]["blocks"], records[-2]["rows"], records[-2]["bytes"]) == (1000, 1000, 8000)
    assert records[0]["losses"] == [-3.0, None]
    assert all(isinstance(record["time"], float) for record in records)


def test_values_that_json_cannot_represent() -> None:
    value = {"a": [1.5, float("inf"), (float("nan"), "x")], "b": None}
    assert plain(value) == {"a": [1.5, None, [None, "x"]], "b": None}
    assert event_record(BlockDone("loss", 5, 40)) == {
        "event": "BlockDone",
        "name": "loss",
        "rows": 5,
        "bytes": 40,
    }
