"""Typed records of runs: a written record is read back, and invalid fields are rejected."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import pytest
from by_hand import SCAN
from messages import expecting

from scrlm_dask.errors import StoreError
from scrlm_dask.events import IterationDone, PhaseFinished
from scrlm_dask.runs.record import ResultRecord, ScanRecord

STEP = {"rows": 4, "bytes": 32, "blocks": 2, "seconds": 1, "read_seconds": 0.25}


def record() -> dict[str, Any]:
    """Return the record of a complete run as stored in its file."""
    features = {"source": "x.zarr", "path": "x.zarr", "rows": 4, "features": 2, "dtype": "float32"}
    iteration = {"number": 1, "rows": 4, "sampled": False, "inertia": 2.5, "shift": None}
    iteration |= {"moved": None, "empty": 0, "reseeded": 0, "seconds": 0.5}
    return {
        "method": "scrlm",
        "config": {"rho": 0.5},
        "features": {**features, "blocks": 2, "block_rows": 2, "digest": "d"},
        "phases": [
            {"name": name, **STEP, "peak_worker_bytes": peak}
            for name, peak in (("survey", 7), ("kmeans-step", 9), ("kmeans-step", 8))
        ],
        "seconds": 3,
        "outlier_share": 0.25,
        "radius": None,
        "kmeans": {"iterations": [iteration], "stopped": "tol"},
        "counts": [3],
    }


def test_fields_are_read_and_unknown_fields_accepted() -> None:
    read = ResultRecord.from_json({**record(), "later_field": 1})
    assert (read.method, read.seconds, read.radius) == ("scrlm", 3, None)
    assert (read.features.path, read.features.digest) == ("x.zarr", "d")
    assert read.kmeans is not None
    assert read.kmeans.stopped == "tol"
    assert read.iterations == [IterationDone(1, 4, False, 2.5, math.inf, None, 0, 0, 0.5)]
    assert (read.started, read.workers, read.scan) == ("", {}, {})


def test_iterations_of_kmeans_are_one_phase() -> None:
    totals = ResultRecord.from_json(record()).phase_totals()
    assert totals == {
        "survey": PhaseFinished("survey", 1, 4, 32, 2, 7, 0.25),
        "kmeans-step x 2": PhaseFinished("kmeans-step", 2, 8, 64, 4, 9, 0.5),
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("method",), 3),
        (("method",), "\x1b[2J"),
        (("features",), None),
        (("features", "rows"), "4"),
        (("features", "path"), 4),
        (("phases",), {}),
        (("phases",), []),
        (("phases", 0, "rows"), True),
        (("phases", 0, "rows"), 2**63),
        (("phases", 0, "seconds"), math.nan),
        (("phases", 0, "seconds"), 10**400),
        (("phases", 0, "bytes"), 1.5),
        (("phases", 2, "peak_worker_bytes"), ...),
        (("radius",), "inf"),
        (("radius",), ...),
        (("seconds",), None),
        (("outlier_share",), ...),
        (("kmeans", "stopped"), ...),
        (("kmeans", "iterations", 0, "moved"), "all"),
    ],
)
def test_missing_or_mistyped_field_is_named(path: tuple[Any, ...], value: Any) -> None:
    content = record()
    *parents, name = path
    section: Any = content
    for key in parents:
        section = section[key]
    if value is ...:
        del section[name]
    else:
        section[name] = value
    facts = ("some/run.json", repr(name), "--overwrite")
    with pytest.raises(StoreError, match=expecting(*facts)):
        ResultRecord.from_json(content, "some/run.json")


def test_scan_round_trip() -> None:
    content = SCAN.to_json()
    assert content["rungs"][0]["shell"] == 0.01
    assert content["stability"] == [asdict(SCAN.stability[0])]
    assert ScanRecord.from_json(json.loads(json.dumps(content))) == SCAN
    del content["rungs"][0]["shell"]
    with pytest.raises(StoreError, match=expecting("'shell'")):
        ScanRecord.from_json(content)
