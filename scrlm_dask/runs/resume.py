"""Resume interrupted runs.

The record of an unfinished run contains its settings and identifies its features. The same command
resumes the run from its checkpoint; a command with other settings raises and lists the differences.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from uuid import uuid4

from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.workers import check_paths_visible
from scrlm_dask.errors import (
    InputError,
    MissingError,
    StoreError,
    UnreachableError,
    UnusableRowsError,
)
from scrlm_dask.events import Note
from scrlm_dask.passes.digests import verify_digests
from scrlm_dask.runs.record import RunRecord, StoredRecord
from scrlm_dask.storage.checkpoints import CHECKPOINT, Checkpoint
from scrlm_dask.storage.locations import Location, Options, Place, locate, origin_of, trust
from scrlm_dask.storage.outputs import (
    RUN_KIND,
    describe_process,
    discard,
    finish_replacement,
    locate_unfinished,
    move_into_place,
    open_output,
)
from scrlm_dask.storage.run_directory import COMPLETE, INTERRUPTED, RUNNING, RunDirectory
from scrlm_dask.storage.store_info import features_digest, files_of_features
from scrlm_dask.storage.traces import resolve_links

_COMMANDS = {"scrlm": "fit", "k-means": "kmeans"}
# Fields of the record: digests of the modification times of the features' files at the start and
# at the end of the attempt. An attempt that was killed has no second digest.
_WRITTEN, _LEFT = "features_written", "features_left"
_BITS = ("scrlm-dask", "numpy", "numba", "scipy")  # packages whose versions may change results


class RunState(Enum):
    """State of a run directory when it is opened; decides whether its checkpoint can be used."""

    NEW = "new"
    RESUMED = "resumed"
    # Feature files were rewritten after the last attempt ended: verify their digests.
    FEATURES_REWRITTEN = "features rewritten"
    # Feature files changed, or may have changed, during the last attempt: also discard its
    # checkpoint.
    CHECKPOINT_UNTRUSTED = "checkpoint untrusted"


REWRITTEN = (RunState.FEATURES_REWRITTEN, RunState.CHECKPOINT_UNTRUSTED)


@dataclass(frozen=True)
class OpenRun:
    """A run that is being written. Without an output, it has only a record."""

    record: RunRecord
    directory: RunDirectory | None = None
    checkpoint: Checkpoint | None = None
    state: RunState = RunState.NEW


@dataclass(frozen=True)
class _LastAttempt(StoredRecord):
    """Fields of the record of an unfinished run that describe its last attempt."""

    attempts: int = 1
    process: dict[str, Any] | None = None
    features_written: str | None = None
    features_left: str | None = None


@contextmanager
def open_directory(
    out: Location | None, overwrite: bool, record: RunRecord, features_at: Location | None
) -> Iterator[OpenRun]:
    """Create or resume the run directory at `out`, and clean up if the run ends early.

    A complete run at `out` stays there until the new run is complete; the new run is written
    aside. If the input is rejected, the new directory is removed. After any other error, the
    checkpoint remains, and the record marks the run as unfinished.
    """
    if out is None:
        yield OpenRun(record)
        return
    finish_replacement(out)
    run, is_resumable = RunDirectory(locate_unfinished(out)), record.is_resumable
    before = find_unfinished(run, record, overwrite or not is_resumable)
    if before is None:
        run = RunDirectory(open_output(out, overwrite, RUN_KIND))
    attempts = 1 if before is None else before.get("attempts", 1) + 1
    record = replace(record, attempts=attempts, attempt=uuid4().hex)
    checkpoint = Checkpoint(run.location / CHECKPOINT)
    state = RunState.NEW if before is None else _compare_attempts(before, record)
    # keep the old digests until the rewritten files have been verified
    digests = _mtimes_in(before) if before is not None and state in REWRITTEN else {}
    content = record.to_json() | {"process": describe_process(os.getpid())} | digests
    run.create(content) if before is None else run.write_record(content, RUNNING)
    try:
        check_paths_visible(run.record)
        yield OpenRun(record, run, checkpoint if is_resumable else None, state)
    except BaseException as error:
        stored = None
        with suppress(UnreachableError):  # the first error is reported
            stored = run.record_of(str(record.attempt))
        if stored is None:
            raise  # another process has taken over the directory, or it cannot be read
        if stored["status"] == COMPLETE:
            checkpoint.remove()
            move_into_place(run.location, out)
            raise  # a listener failed after the run was complete
        if not is_resumable or _rejects_input(error, checkpoint, resumed=before is not None):
            discard(run.location, RUN_KIND)
        else:
            error.add_note(_mark_stopped(run, out, stored, record, features_at))
        raise
    checkpoint.remove()
    move_into_place(run.location, out)


def check_still_owner(run: RunDirectory, record: RunRecord) -> None:
    """Raise if another process has taken over the directory."""
    if run.record_of(str(record.attempt)) is None:
        raise StoreError(
            f"another process has taken over the run directory {run.path}, and its files were not "
            "changed; choose another output"
        )


def _resume_command(
    method: str, run: RunDirectory, out: Location, features_at: Location | None
) -> str:
    allow = ""
    if features_at is not None and features_at.is_remote:
        origin = origin_of(features_at)
        allow = "" if origin in trust([out]).origins else f" --allow-origin {origin}"
    same = "the same command" if run.location == out else "the same command without --overwrite"
    return f"`scrlm {_COMMANDS[method]} --resume {out}{allow}` or {same}"


def find_unfinished(run: RunDirectory, record: RunRecord, overwrite: bool) -> dict[str, Any] | None:
    """Return the stored record if the run is unfinished; raise if its settings differ.

    With `overwrite`, no run is resumed. A run that another process is writing always raises.
    """
    if not run.record.is_file():
        return None
    try:
        before = run.read_record()
    except UnreachableError:  # the run may be unfinished, and must not be removed
        raise
    except StoreError:
        return None  # not a run, or damaged: the check of the output reports this
    _reject_if_alive(run, before)
    unfinished = before.get("status") in (RUNNING, INTERRUPTED)
    if overwrite or not unfinished:
        return None
    for kind in (RunRecord, _LastAttempt):
        kind.from_json(before, run.record)  # raises if the record is damaged
    differences = list(list_differences(run_identity(before), run_identity(record.to_json())))
    if differences:
        raise StoreError(
            f"the run {run.path} is unfinished and was started with other settings: "
            f"{'; '.join(differences)}; use the same settings to resume it, --overwrite to start "
            "again, or another output"
        )
    return before


def run_identity(record: dict[str, Any]) -> dict[str, Any]:
    """Return everything that the result of a run depends on, as plain JSON."""
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
    """Yield the name of each difference, with the old and the new value."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            yield from list_differences(before.get(key), now.get(key), f"{name} {key}".strip())
    elif before != now and name == "features digest":
        yield "the features are not the same as when the run was started (other digest)"
    elif before != now:
        yield f"{name} was {before!r} and is {now!r}"


def read_unfinished(
    path: Place, method: str, storage_options: Options | None = None
) -> RunRecord | None:
    """Read the record of a run to resume; None if the run is complete."""
    out = locate(path, storage_options)
    finish_replacement(out)
    run = RunDirectory(locate_unfinished(out))
    record = run.read_record()
    if record.get("method") != method:
        command = _COMMANDS.get(str(record.get("method")))
        other = "another command" if command is None else f"scrlm {command}"
        raise StoreError(f"the run {path} was written by {other}, not by this command")
    if record.get("status") == COMPLETE:
        return None
    return RunRecord.from_json(record, run.record)


def check_unchanged(
    record: RunRecord, features_at: Location | None, features_path: str | None
) -> None:
    """Raise if the features store, or a link to it, changed during the run.

    `features_path` is its path without links at the start.
    """
    if features_at is None:
        return
    try:
        files = files_of_features(features_at)
        digest = features_digest(features_at, files)
    except MissingError as error:
        raise MissingError(
            f"the features store {record.features.path} was removed during the run, so its rows "
            "cannot be compared with those at the start; restore it, and run the command again"
        ) from error
    same_path = resolve_links(features_at) == features_path
    if not same_path or (digest, files) != (record.features.digest, record.features_written):
        raise UnusableRowsError(
            f"the features store {record.features.path} changed during the run, so the result was "
            "discarded; run the command again when no process writes to the store"
        )


def verify_rewritten_features(execution: Execution, run: OpenRun, features_at: Location) -> None:
    """Verify features whose files were rewritten since the last attempt.

    The manifest contains the digest of each block, so files restored with the same content pass.
    Their new modification times are recorded only after the verification, because the next attempt
    does not verify files with recorded times.
    """
    # only a resumed run has this state, and a resumed run has a directory and a checkpoint
    assert run.directory is not None
    assert run.checkpoint is not None
    execution.emit(
        Note("feature files were rewritten since the last attempt; verifying them first")
    )
    _check_restored(execution, features_at)
    if run.state is RunState.CHECKPOINT_UNTRUSTED:
        _remove_untrusted(run.checkpoint)
        text = (
            "feature files changed, or may have changed, during the previous attempt; its "
            "checkpoint is discarded and everything is recomputed"
        )
        execution.emit(Note(text, warning=True))
    process = {"process": describe_process(os.getpid())}
    run.directory.write_record(run.record.to_json() | process, RUNNING)


def _check_restored(execution: Execution, features_at: Location) -> None:
    # without a manifest, the digest of the files was already compared
    damage = verify_digests(execution, features_at)
    if damage:
        raise StoreError(
            f"block {damage[0].block} of the features store {features_at} has changed since the "
            f"run started: {damage[0].reason}; restore it, or use --overwrite to start again"
        )


def _remove_untrusted(checkpoint: Checkpoint) -> None:
    checkpoint.remove()
    if checkpoint.names():
        raise StoreError(
            f"the checkpoint {checkpoint.location} cannot be removed, and must not be used because "
            "the features changed while it was written; remove it, or use --overwrite to start "
            "again"
        )


def _compare_attempts(before: dict[str, Any], record: RunRecord) -> RunState:
    """Compare the modification times of the features with the record of the last attempt."""
    began, left = before.get(_WRITTEN), before.get(_LEFT)
    if record.features_written == began and left in (None, began):
        return RunState.RESUMED
    return RunState.FEATURES_REWRITTEN if left == began else RunState.CHECKPOINT_UNTRUSTED


def _mtimes_in(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record.get(name) for name in (_WRITTEN, _LEFT)}


def _mark_stopped(
    run: RunDirectory,
    out: Location,
    stored: dict[str, Any],
    record: RunRecord,
    features_at: Location | None,
) -> str:
    """Mark the run as interrupted; return a message on how to resume it.

    `stored` is the record in the directory.
    """
    command = _resume_command(record.method, run, out, features_at)
    digests = _mtimes_in(stored)
    # if the digests differ, this attempt ended before it verified the features: it has computed
    # nothing, and the old digests are kept
    if digests == {_WRITTEN: record.features_written, _LEFT: None} and features_at is not None:
        with suppress(OSError, ValueError):  # without access to the store, it stays None
            digests[_LEFT] = files_of_features(features_at)
    with suppress(OSError, ValueError):  # on a full disk the status remains "running"
        run.write_record(record.to_json() | digests, INTERRUPTED)
    if digests[_LEFT] not in (None, digests[_WRITTEN]):
        return (
            "feature files changed during the run, so its checkpoint cannot be used; "
            f"{command} starts from the beginning"
        )
    return f"a checkpoint is kept; {command} resumes the run"


def _rejects_input(error: BaseException, checkpoint: Checkpoint, resumed: bool) -> bool:
    """Return whether the input is invalid, so that there is nothing to resume.

    Invalid input is detected in the first pass. A store that is damaged later may be repaired, so
    the checkpoint is kept. It is also kept if a later step rejects a setting or a worker's memory.
    """
    if isinstance(error, UnusableRowsError):
        return True
    rejected = isinstance(error, InputError | StoreError)
    if resumed or not rejected or isinstance(error, UnreachableError):
        return False
    with suppress(StoreError):
        names = checkpoint.names()
        passes = [step for name in names for step in (checkpoint / name).names()]
        return len(names) <= 1 and len(passes) <= 1
    return False


def _reject_if_alive(run: RunDirectory, record: dict[str, Any]) -> None:
    """Raise if another process is writing the run: both would remove each other's files."""
    process = record.get("process")
    pid = process.get("pid") if isinstance(process, dict) else None
    if record.get("status") != RUNNING or not isinstance(pid, int) or pid == os.getpid():
        return
    if describe_process(pid) == process:
        raise StoreError(
            f"the run {run.path} is being written by process {pid}; wait for it or stop it"
        )
