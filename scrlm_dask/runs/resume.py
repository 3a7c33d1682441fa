"""Runs that go on where they were stopped.

The record of an unfinished run says what was asked, and of which features. Whoever asks the same
again goes on from what the run has kept; whoever asks something else is told the difference.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psutil

from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import Features
from scrlm_dask.engine.workers import check_paths_visible
from scrlm_dask.errors import InputError, StoreError, UnreachableError, UnusableRowsError
from scrlm_dask.events import Note
from scrlm_dask.passes.digests import check_digests_pass
from scrlm_dask.storage.checkpoints import CHECKPOINT, Checkpoint
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.outputs import RUN_KIND, check_not_inside, check_output_free, discard
from scrlm_dask.storage.run_directory import COMPLETE, INTERRUPTED, RUNNING, RunDirectory
from scrlm_dask.storage.store_info import describe_store, features_digest, features_mtimes_digest

_COMMANDS = {"scrlm": "fit", "k-means": "kmeans"}
# In the record: traces of the features' files when the attempt that computed began, and when it
# ended. One that was killed left none.
_WRITTEN, _LEFT = "features_written", "features_left"
_ATTEMPT = "attempt"  # in the record: a name of whoever writes the run, as nobody else has it
_BITS = ("scrlm-dask", "numpy", "numba", "scipy")  # other versions of these may give other bits


@dataclass(frozen=True)
class OpenRun:
    """A run that is being written, and where it keeps its work; nothing of it without an output."""

    directory: RunDirectory | None = None
    checkpoint: Checkpoint | None = None
    resumed: bool = False
    rewritten: bool = False  # files of the features were, since what is kept was begun
    trusted: bool = True  # they were as they had been until that was kept


@dataclass(frozen=True)
class RunRequest:
    """What an unfinished run was asked, as its record has it."""

    features: str
    config: dict[str, Any]
    block_rows: int | None
    inputs: dict[str, Any]


@contextmanager
def open_run(
    features: Features,
    out: Location | None,
    overwrite: bool,
    record: dict[str, Any],
    storage_options: Options | None = None,
) -> Iterator[OpenRun]:
    """The run directory at `out`, new or continued; what becomes of it if the run ends early.

    Input that is refused leaves nothing. Otherwise what is done is kept, and says that it is
    unfinished. `storage_options` open the features.
    """
    if out is None:
        yield OpenRun()
        return
    check_not_inside(out, features.path)
    run, keeps = RunDirectory(out), is_resumable(record)
    before = find_unfinished(run, record, overwrite or not keeps)
    record["attempts"] = 1 if before is None else before.get("attempts", 1) + 1
    record[_ATTEMPT] = uuid4().hex
    checkpoint = Checkpoint(run.location / CHECKPOINT)
    opened = _compare_attempts(run, checkpoint if keeps else None, before, record)
    # what is not compared yet is not what the rows were known by
    traces = _mtimes_in(before) if before is not None and opened.rewritten else {}
    at_work = record | _here() | traces
    run.begin(overwrite, at_work) if before is None else run.go_on(at_work)
    try:
        check_paths_visible(run.record)
        yield opened
    except BaseException as error:
        held = run.record_of(record[_ATTEMPT])
        if held is None:
            raise  # somebody else has the place by now
        if held["status"] == COMPLETE:
            checkpoint.remove()
            raise  # somebody who watches failed after the end
        if not keeps or _rejects_input(error, checkpoint, resumed=before is not None):
            discard(out)
        else:
            error.add_note(_mark_stopped(run, held, record, storage_options))
        raise
    checkpoint.remove()


def check_still_owner(run: RunDirectory, record: dict[str, Any]) -> None:
    """Refuse to write a result where another process has begun a run since."""
    if run.record_of(record[_ATTEMPT]) is None:
        raise StoreError(
            f"the run {run.path} was begun anew by another process meanwhile, whose files are left "
            "alone; choose another output"
        )


def is_resumable(record: dict[str, Any]) -> bool:
    """Whether another process could find the same input again."""
    return record["features"].get("digest") is not None and not record["asked"]["in_memory"]


def resume_hint(method: str, out: Place) -> str:
    return f"`scrlm {_COMMANDS[method]} --resume {out}`, or the same command again, goes on"


def check_run(features: Features, out: Location, overwrite: bool, record: dict[str, Any]) -> None:
    """Raise what `opened_run` would raise before it writes anything."""
    check_not_inside(out, features.path)
    if find_unfinished(RunDirectory(out), record, overwrite) is None:
        check_output_free(out, overwrite, RUN_KIND)


def find_unfinished(
    run: RunDirectory, record: dict[str, Any], overwrite: bool
) -> dict[str, Any] | None:
    """The record of the run if it is unfinished and the same was asked; refused if it was not.

    With `overwrite` none is gone on with, but one that is being written is refused all the same.
    """
    if not run.looks_like_one():
        return None
    try:
        before = run.read_record()
    except StoreError:
        return None  # not ours, or broken: whoever makes way will say so
    _reject_if_alive(run, before)
    unended = before.get("status") in (RUNNING, INTERRUPTED)
    if overwrite or not unended or "asked" not in before:
        return None
    found = list(list_differences(run_identity(before), run_identity(record)))
    if found:
        raise StoreError(
            f"the unfinished run {run.path} was asked something else: {'; '.join(found)}. Ask the "
            "same to go on with it, --overwrite to begin anew, or choose another output"
        )
    return before


def run_identity(record: dict[str, Any]) -> dict[str, Any]:
    """All that the bits of a run depend on, in plain JSON."""
    asked = record["asked"]
    parts = {
        "method": record.get("method"),
        "config": asked["config"],
        "input": asked["inputs"],
        "features": record["features"],
        "version": {name: record["versions"].get(name) for name in _BITS},
    }
    plain: dict[str, Any] = json.loads(json.dumps(parts))
    return plain


def list_differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """What differs, by name, with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            yield from list_differences(before.get(key), now.get(key), f"{name} {key}".strip())
    elif before != now:
        yield f"{name} was {before!r} and is {now!r}"


def read_request(
    path: Place, method: str, storage_options: Options | None = None
) -> RunRequest | None:
    """What the run at `path` was asked, to go on with it; None if it is complete."""
    run = RunDirectory(locate(path, storage_options))
    record = run.read_record()
    if record.get("method") != method:
        other = _COMMANDS.get(str(record.get("method")), "another command")
        raise StoreError(f"the run {path} was not written by this command, but by {other}")
    if record.get("status") == COMPLETE:
        return None
    try:
        asked = record["asked"]
        features, config, inputs = record["features"]["path"], asked["config"], asked["inputs"]
        return RunRequest(str(features), dict(config), asked["block_rows"], dict(inputs))
    except (KeyError, TypeError) as error:
        raise StoreError(
            f"the run {path} does not say what it was asked ({error!r}); give the whole command "
            "with --overwrite"
        ) from error


def check_unchanged(record: dict[str, Any], storage_options: Options | None) -> None:
    """Refuse a result of features that were written to meanwhile."""
    features = record["features"]
    if features.get("digest") is None:
        return
    place = locate(features["path"], storage_options)
    if (
        features_digest(place) != features["digest"]
        or features_mtimes_digest(place) != record[_WRITTEN]
    ):
        raise UnusableRowsError(
            f"the features store {features['path']} changed during the run, which therefore has "
            "no result; run the command again when nobody writes to the store"
        )


def check_rewritten_features(
    execution: Execution, run: OpenRun, record: dict[str, Any], storage_options: Options | None
) -> None:
    """Read features whose files were written since the attempt before: are they what they were?

    A chunk that was restored is; the manifest knows what it must hold. Only then are the new traces
    those by which the rows are known: the next attempt would not look again.
    """
    if not run.rewritten or run.directory is None or run.checkpoint is None:
        return
    execution.emit(Note("files of the features were written since: they are compared first"))
    _check_restored(execution, record["features"]["path"], storage_options)
    if not run.trusted:
        _forget(run.checkpoint)
        text = (
            "files of the features were written while an attempt read them, or nobody can tell "
            "that they were not, so what it kept is not trusted: everything is computed again"
        )
        execution.emit(Note(text, warning=True))
    run.directory.go_on(record | _here())


def _check_restored(execution: Execution, path: str, storage_options: Options | None) -> None:
    store = describe_store(locate(path, storage_options))
    if store.manifest is None:  # known by its files alone: others would not have come this far
        return
    where = store.location, store.features, store.manifest.block_rows
    damage = check_digests_pass(execution, *where, has_digests=True)
    if damage:
        raise StoreError(
            f"block {damage[0].block} of the features store {store.location} {damage[0].reason}: "
            "it is not what it was when the run began; restore it, or begin anew with --overwrite"
        )


def _forget(checkpoint: Checkpoint) -> None:
    checkpoint.remove()
    if checkpoint.names():
        raise StoreError(
            f"{checkpoint.location} cannot be removed, and must not be used: the features were "
            "written while it was; remove it, or begin anew with --overwrite"
        )


def _compare_attempts(
    run: RunDirectory,
    checkpoint: Checkpoint | None,
    before: dict[str, Any] | None,
    record: dict[str, Any],
) -> OpenRun:
    """The run, and what the traces of the attempt before say of its features."""
    if before is None:
        return OpenRun(run, checkpoint)
    began, left = before.get(_WRITTEN), before.get(_LEFT)
    rewritten = record[_WRITTEN] != began or left not in (None, began)
    return OpenRun(run, checkpoint, True, rewritten, trusted=left == began)


def _mtimes_in(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record.get(name) for name in (_WRITTEN, _LEFT)}


def _mark_stopped(
    run: RunDirectory,
    held: dict[str, Any],
    record: dict[str, Any],
    storage_options: Options | None,
) -> str:
    """Say in the record `held` that nobody is at work; what a person should know about it."""
    way = resume_hint(record["method"], run.path)
    traces = _mtimes_in(held)
    # else this attempt ended before it compared, and computed nothing
    if traces == {_WRITTEN: record[_WRITTEN], _LEFT: None}:
        with suppress(OSError, ValueError):  # not reached: nobody can tell
            place = locate(record["features"]["path"], storage_options)
            traces[_LEFT] = features_mtimes_digest(place)
    with suppress(OSError, ValueError):  # a full disk: it still says "running"
        run.stop(record | traces)
    if traces[_LEFT] not in (None, traces[_WRITTEN]):
        return (
            "files of the features were written meanwhile, so that nothing that was computed can "
            f"be trusted: {way}, from the beginning"
        )
    return f"what is done is kept: {way}"


def _rejects_input(error: BaseException, checkpoint: Checkpoint, resumed: bool) -> bool:
    """Whether the input is at fault, so that there is nothing to go on with.

    A store that is damaged is so in the first pass. One that is damaged later may be mended, and
    hours of work are worth keeping until then; so they are if it was the memory of a worker, or a
    setting, that was refused.
    """
    if isinstance(error, UnusableRowsError):
        return True
    refused = isinstance(error, InputError | StoreError) and not isinstance(error, UnreachableError)
    if resumed or not refused:
        return False
    with suppress(StoreError):
        names = checkpoint.names()
        passes = [step for name in names for step in (checkpoint / name).names()]
        return len(names) <= 1 and len(passes) <= 1
    return False


def _reject_if_alive(run: RunDirectory, record: dict[str, Any]) -> None:
    """Two processes in one run would remove each other's files."""
    process = dict(record.get("process") or {})
    pid = process.get("pid")
    if record.get("status") != RUNNING or process.pop("host", None) != socket.gethostname():
        return
    if isinstance(pid, int) and pid != os.getpid() and _process(pid) == process:
        raise StoreError(
            f"the run {run.path} is being written by the process {pid}; wait for it, or stop it"
        )


def _here() -> dict[str, Any]:
    """For the record: who is at work."""
    return {"process": {"host": socket.gethostname(), **_process(os.getpid())}}


def _process(pid: int) -> dict[str, Any]:
    """What a process is known by: numbers are used again, with another beginning."""
    try:
        return {"pid": pid, "began": round(psutil.Process(pid).create_time())}
    except psutil.Error:
        return {}
