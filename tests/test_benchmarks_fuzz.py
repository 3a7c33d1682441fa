"""The judge of `benchmarks.fuzz` finds defects that these tests put into the package."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from benchmarks import fuzz_files
from benchmarks.fuzz_files import TARGETS, Report, Workers
from benchmarks.mutations import Change, _entries
from scrlm_dask.pipeline import export
from scrlm_dask.runs import record, resume
from scrlm_dask.sources import vector_files
from scrlm_dask.storage import arrays, checkpoints

pytestmark = pytest.mark.slow


def _grow(path: Path) -> list[Change]:
    """Claim more rows than the array has."""
    content = json.loads(path.read_bytes())
    found = (i for i, (holder, _) in enumerate(_entries(content)) if holder is content["shape"])
    return [("set", next(found), 31)]


def _flip_last_number(path: Path) -> list[Change]:
    return [("flip", path.stat().st_size - 2, 5)]


def _keep(path: Path) -> list[Change]:
    return []


def _ignore_missing_chunks() -> None:
    trace = arrays.trace_chunks
    arrays.trace_chunks = lambda *where: dataclasses.replace(trace(*where), first_missing=None)
    arrays.find_damage = lambda *_: None


def _ignore_digests() -> None:
    begin = len(checkpoints._MAGIC) + checkpoints._DIGEST_BYTES
    checkpoints._check_digest = lambda data, what: memoryview(data)[begin:]


def _in_reader(act: Callable[[], Any]) -> Callable[[], None]:
    check = vector_files.check_size

    def before_check(*arguments: Any) -> None:
        act()
        check(*arguments)

    def insert() -> None:
        vector_files.check_size = before_check  # type: ignore[assignment]

    return insert


def _raise() -> None:
    raise ValueError


def _raise_os_error() -> None:
    raise OSError


def _in_export(name: str) -> Callable[[], None]:
    to_arrow = export._to_arrow

    def wrong(rows: Any, files: Any) -> Any:
        return to_arrow(dataclasses.replace(rows, **{name: getattr(rows, name) + 1}), files)

    def insert() -> None:
        export._to_arrow = wrong

    return insert


def _omit_labels() -> None:
    to_arrow = export._to_arrow
    export._to_arrow = lambda rows, files: to_arrow(rows, files).drop_columns(["label"])


def _accept_records_without_phases() -> None:
    (phases,) = (f for f in dataclasses.fields(record.ResultRecord) if f.name == "phases")
    phases.metadata = {}  # type: ignore[assignment]


def _drop_phases(path: Path) -> list[Change]:
    entries = _entries(json.loads(path.read_bytes()))
    return [("set", [key for _, key in entries].index("phases"), [])]


def _trust_any_process() -> None:
    resume._reject_if_alive = lambda run, record: record["process"].get("pid")


def _name_process(path: Path) -> list[Change]:
    entries = _entries(json.loads(path.read_bytes()))
    return [("set", [key for _, key in entries].index("process"), "x")]


def _hang() -> None:
    fuzz_files._SECONDS_PER_CASE = 5.0
    _in_reader(lambda: time.sleep(60))()


class Defect(NamedTuple):
    """A defect, and a damaged file for which the judge finds it."""

    target: str
    file: str
    damage: Callable[[Path], list[Change]]
    insert: Callable[[], None]
    verdict: str  # its begin


DEFECTS = {
    "missing chunks are zeros": Defect(
        "zarr 3", "x.zarr/zarr.json", _grow, _ignore_missing_chunks, "wrong: accepted"
    ),
    "digests are ignored": Defect(
        *("checkpoint", "run/checkpoint/centers", _flip_last_number, _ignore_digests),
        "wrong: exit code 0",
    ),
    "bare error": Defect("npy", "x.npy", _keep, _in_reader(_raise), "wrong: ValueError at"),
    "error of a library": Defect(
        "npy", "x.npy", _keep, _in_reader(_raise_os_error), "wrong: exit code 1"
    ),
    "too much memory": Defect(
        "npy", "x.npy", _keep, _in_reader(lambda: np.ones(170_000_000)), "wrong: used"
    ),
    "crash": Defect(
        *("npy", "x.npy", _keep, _in_reader(lambda: os.kill(os.getpid(), signal.SIGKILL))),
        "crashed",
    ),
    "hang": Defect("npy", "x.npy", _keep, _hang, "hung"),
    "wrong distances": Defect(
        *("labels", "run/labels.zarr/zarr.json", _keep, _in_export("distances")),
        "wrong: exit code 0",
    ),
    "export without labels": Defect(
        *("labels", "run/labels.zarr/zarr.json", _keep, _omit_labels), "wrong: exit code 0"
    ),
    "record without phases": Defect(
        *("record for a report", "run/run.json", _drop_phases, _accept_records_without_phases),
        "wrong: ValueError at",
    ),
    "record with a damaged process": Defect(
        *("record of an unfinished run", "run/run.json", _name_process, _trust_any_process),
        "wrong: AttributeError at",
    ),
    "wrong source rows": Defect(
        *("source rows", "x.zarr/source_row/zarr.json", _keep, _in_export("source_rows")),
        "wrong: exit code 0",
    ),
}


def verdict_of(place: Path, defect: str, broken: bool) -> str:
    """Run a case with or without a defect in a new process, which may fork."""
    name, file, damage, insert, _ = DEFECTS[defect]
    if not (place / "pristine" / name).exists():
        writer = fuzz_files._FORK.Process(target=_prepare, args=(place, name))
        writer.start()
        writer.join()
    if broken:
        insert()
    workers = Workers(place, Report())
    try:
        return workers.verdict(name, file, damage(place / "pristine" / name / file))
    finally:
        workers.close()


def _prepare(place: Path, name: str) -> None:
    folder = place / "pristine" / name
    folder.mkdir(parents=True)
    TARGETS[name].write(folder / TARGETS[name].name)


@pytest.mark.parametrize("defect", DEFECTS)
def test_judge_finds_a_defect(defect: str, tmp_path: Path) -> None:
    _, _, damage, _, expected = DEFECTS[defect]
    verdicts = []
    for broken in (False, True) if damage is not _keep else (True,):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            verdicts.append(pool.submit(verdict_of, tmp_path, defect, broken).result())
    assert verdicts[-1].startswith(expected), verdicts
    assert verdicts[:-1] in ([], ["rejected"], ["unchanged"])
