"""Resume runs that were stopped.

The record of an unfinished run names its settings and its features. The same command resumes it
from its checkpoint; another command is rejected with the differences.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from uuid import uuid4

import psutil

from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.workers import check_paths_visible
from scrlm_dask.errors import InputError, StoreError, UnreachableError, UnusableRowsError
from scrlm_dask.events import Note
from scrlm_dask.passes.digests import check_digests_pass
from scrlm_dask.runs.record import RunRecord
from scrlm_dask.storage.checkpoints import CHECKPOINT, Checkpoint
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.outputs import check_not_inside, discard
from scrlm_dask.storage.run_directory import COMPLETE, INTERRUPTED, RUNNING, RunDirectory
from scrlm_dask.storage.store_info import describe_store, features_digest, features_mtimes_digest

_COMMANDS = {"scrlm": "fit", "k-means": "kmeans"}
# In the record: modification times of the features' files when the attempt began, and when it
# ended. An attempt that was killed left no second digest.
_WRITTEN, _LEFT = "features_written", "features_left"
_BITS = ("scrlm-dask", "numpy", "numba", "scipy")  # other versions of these may give other bits


class RunState(Enum):
    """The state of a run directory when it was opened, and whether its checkpoint can be used."""

    NEW = "new"
    RESUMED = "resumed"
    # The features' files were rewritten after the last attempt ended: verify their digests.
    FEATURES_REWRITTEN = "features rewritten"
    # They were, or may have been, rewritten during that attempt: discard its checkpoint as well.
    CHECKPOINT_UNTRUSTED = "checkpoint untrusted"


REWRITTEN = (RunState.FEATURES_REWRITTEN, RunState.CHECKPOINT_UNTRUSTED)


@dataclass(frozen=True)
class OpenRun:
    """A run that is being written. Without an output it has a record only."""

    record: RunRecord
    directory: RunDirectory | None = None
    checkpoint: Checkpoint | None = None
    state: RunState = RunState.NEW


@contextmanager
def open_directory(
    out: Location | None, overwrite: bool, record: RunRecord, features_at: Location | None
) -> Iterator[OpenRun]:
    """Create or resume the run directory at `out`, and clean up if the run ends early.

    Rejected input leaves no directory. After any other error the checkpoint stays, and the record
    says that the run is unfinished.
    """
    if out is None:
        yield OpenRun(record)
        return
    check_not_inside(out, record.features.path)
    run, keeps = RunDirectory(out), record.is_resumable
    before = find_unfinished(run, record, overwrite or not keeps)
    attempts = 1 if before is None else before.get("attempts", 1) + 1
    record = replace(record, attempts=attempts, attempt=uuid4().hex)
    checkpoint = Checkpoint(run.location / CHECKPOINT)
    state = RunState.NEW if before is None else _compare_attempts(before, record)
    # keep the old digests until the rewritten files have been verified
    digests = _mtimes_in(before) if before is not None and state in REWRITTEN else {}
    content = record.to_json() | {"process": _describe_process(os.getpid())} | digests
    run.begin(overwrite, content) if before is None else run.write_record(content, RUNNING)
    try:
        check_paths_visible(run.record)
        yield OpenRun(record, run, checkpoint if keeps else None, state)
    except BaseException as error:
        stored = run.record_of(str(record.attempt))
        if stored is None:
            raise  # another process has taken over the directory
        if stored["status"] == COMPLETE:
            checkpoint.remove()
            raise  # a listener failed after the end
        if not keeps or _rejects_input(error, checkpoint, resumed=before is not None):
            discard(out)
        else:
            error.add_note(_mark_stopped(run, stored, record, features_at))
        raise
    checkpoint.remove()


def check_still_owner(run: RunDirectory, record: RunRecord) -> None:
    """Raise if another process has started a run in the directory since."""
    if run.record_of(str(record.attempt)) is None:
        raise StoreError(
            f"the run {run.path} was begun anew by another process meanwhile, whose files are left "
            "alone; choose another output"
        )


def _resume_hint(method: str, out: Place) -> str:
    return f"`scrlm {_COMMANDS[method]} --resume {out}`, or the same command again, goes on"


def find_unfinished(run: RunDirectory, record: RunRecord, overwrite: bool) -> dict[str, Any] | None:
    """Return the stored record if the run is unfinished; raise if its settings differ.

    With `overwrite` no run is resumed, but one that another process is writing still raises.
    """
    if not run.record.is_file():
        return None
    try:
        before = run.read_record()
    except StoreError:
        return None  # not a run, or broken: clearing the output reports it
    _reject_if_alive(run, before)
    unfinished = before.get("status") in (RUNNING, INTERRUPTED)
    if overwrite or not unfinished or "asked" not in before:
        return None
    differences = list(list_differences(run_identity(before), run_identity(record.to_json())))
    if differences:
        raise StoreError(
            f"the unfinished run {run.path} was asked something else: {'; '.join(differences)}. "
            "Ask the same to go on with it, --overwrite to begin anew, or choose another output"
        )
    return before


def run_identity(record: dict[str, Any]) -> dict[str, Any]:
    """Return everything that the bits of a run depend on, as plain JSON."""
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
    """Describe each difference by its name and both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {**before, **now}:
            yield from list_differences(before.get(key), now.get(key), f"{name} {key}".strip())
    elif before != now:
        yield f"{name} was {before!r} and is {now!r}"


def read_unfinished(
    path: Place, method: str, storage_options: Options | None = None
) -> RunRecord | None:
    """Read the record of a run to resume; None if the run is complete."""
    run = RunDirectory(locate(path, storage_options))
    record = run.read_record()
    if record.get("method") != method:
        other = _COMMANDS.get(str(record.get("method")), "another command")
        raise StoreError(f"the run {path} was not written by this command, but by {other}")
    if record.get("status") == COMPLETE:
        return None
    try:
        return RunRecord.from_json(record)
    except (KeyError, TypeError) as error:
        raise StoreError(
            f"the run {path} does not say what it was asked ({error!r}); give the whole command "
            "with --overwrite"
        ) from error


def check_unchanged(record: RunRecord, features_at: Location | None) -> None:
    """Raise if the features store was written to during the run."""
    if features_at is None:
        return
    if (
        features_digest(features_at) != record.features.digest
        or features_mtimes_digest(features_at) != record.features_written
    ):
        raise UnusableRowsError(
            f"the features store {record.features.path} changed during the run, which therefore "
            "has no result; run the command again when nobody writes to the store"
        )


def verify_rewritten_features(execution: Execution, run: OpenRun, features_at: Location) -> None:
    """Verify features whose files were rewritten since the last attempt.

    The manifest has the digest of each block, so a restored chunk passes. The new modification
    times are recorded only then: the next attempt would not verify them again.
    """
    # only runs that can be resumed have this state, and these have both
    assert run.directory is not None
    assert run.checkpoint is not None
    execution.emit(Note("files of the features were written since: they are compared first"))
    _check_restored(execution, features_at)
    if run.state is RunState.CHECKPOINT_UNTRUSTED:
        _remove_untrusted(run.checkpoint)
        text = (
            "files of the features were written while an attempt read them, or nobody can tell "
            "that they were not, so what it kept is not trusted: everything is computed again"
        )
        execution.emit(Note(text, warning=True))
    process = {"process": _describe_process(os.getpid())}
    run.directory.write_record(run.record.to_json() | process, RUNNING)


def _check_restored(execution: Execution, features_at: Location) -> None:
    store = describe_store(features_at)
    if store.manifest is None:  # its digest is that of its files, which are the same then
        return
    where = store.location, store.features, store.manifest.block_rows
    damage = check_digests_pass(execution, *where, has_digests=True)
    if damage:
        raise StoreError(
            f"block {damage[0].block} of the features store {store.location} {damage[0].reason}: "
            "it is not what it was when the run began; restore it, or begin anew with --overwrite"
        )


def _remove_untrusted(checkpoint: Checkpoint) -> None:
    checkpoint.remove()
    if checkpoint.names():
        raise StoreError(
            f"{checkpoint.location} cannot be removed, and must not be used: the features were "
            "written while it was; remove it, or begin anew with --overwrite"
        )


def _compare_attempts(before: dict[str, Any], record: RunRecord) -> RunState:
    """Compare the features' modification times with those that the last attempt recorded."""
    began, left = before.get(_WRITTEN), before.get(_LEFT)
    if record.features_written == began and left in (None, began):
        return RunState.RESUMED
    return RunState.FEATURES_REWRITTEN if left == began else RunState.CHECKPOINT_UNTRUSTED


def _mtimes_in(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record.get(name) for name in (_WRITTEN, _LEFT)}


def _mark_stopped(
    run: RunDirectory,
    stored: dict[str, Any],
    record: RunRecord,
    features_at: Location | None,
) -> str:
    """Mark the run as interrupted; return what the user should know about it.

    `stored` is its record as the directory has it.
    """
    way = _resume_hint(record.method, run.path)
    digests = _mtimes_in(stored)
    # else this attempt ended before it verified the features, and computed nothing
    if digests == {_WRITTEN: record.features_written, _LEFT: None} and features_at is not None:
        with suppress(OSError, ValueError):  # an unreachable store leaves no second digest
            digests[_LEFT] = features_mtimes_digest(features_at)
    with suppress(OSError, ValueError):  # a full disk: it still says "running"
        run.write_record(record.to_json() | digests, INTERRUPTED)
    if digests[_LEFT] not in (None, digests[_WRITTEN]):
        return (
            "files of the features were written meanwhile, so that nothing that was computed can "
            f"be trusted: {way}, from the beginning"
        )
    return f"what is done is kept: {way}"


def _rejects_input(error: BaseException, checkpoint: Checkpoint, resumed: bool) -> bool:
    """Return whether the input is at fault, so that there is nothing to resume.

    Damage shows in the first pass. A store that is damaged later may be repaired, and the
    checkpoint is worth keeping until then; also if the memory of a worker or a setting is rejected.
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
    """Raise if another process is writing the run: each would remove the other's files."""
    process = record.get("process") or {}
    pid = process.get("pid")
    if record.get("status") != RUNNING or not isinstance(pid, int) or pid == os.getpid():
        return
    if _describe_process(pid) == process:
        raise StoreError(
            f"the run {run.path} is being written by the process {pid}; wait for it, or stop it"
        )


def _describe_process(pid: int) -> dict[str, Any]:
    """Return host, number and start time of a process: the system reuses numbers."""
    host = {"host": socket.gethostname()}
    try:
        return host | {"pid": pid, "began": round(psutil.Process(pid).create_time())}
    except psutil.Error:
        return host
