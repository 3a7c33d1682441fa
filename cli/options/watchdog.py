"""Timeouts of long commands: until the first worker connects, and until the next block is done."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from scrlm_dask.settings import WORKERS_SETTING

from ..terminal.console import EXIT_CLUSTER_LOST
from ..terminal.signals import raise_in_main
from .parsing import parse_seconds
from .shared import option_group

_DUMP_SECONDS = 5.0
# Number of workers that may die while they compute a block before Dask considers the block as the
# cause. It is higher than Dask's default, because workers on preempted nodes die as well.
_FAILURES_SETTING, _ALLOWED_FAILURES = "distributed.scheduler.allowed-failures", 5


watchdog_options = option_group(
    click.option(
        "--stall-timeout",
        metavar="DURATION",
        default="1h",
        show_default=True,
        callback=parse_seconds,
        help="Exit with code 4 if no block finishes within this time (0: no timeout).",
    ),
    click.option(
        "--wait-workers",
        metavar="DURATION",
        callback=parse_seconds,
        help="Maximum time to wait for the first worker (default: 25s for an existing scheduler, "
        "1h for a job queue).",
    ),
)


@dataclass(eq=False)
class StallWatchdog:
    """Listener that forwards events and stops the command if no event arrives in time."""

    stall_seconds: float  # 0: no timeout
    wait_seconds: float | None  # timeout for the first worker
    _last: float = field(init=False)  # time of the last event
    _listener: Callable[[Any], None] = field(init=False)

    def __call__(self, event: Any) -> None:
        """Forward an event and restart the timeout."""
        self._last = time.monotonic()
        self._listener(event)

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Set Dask's config for the cluster that is started or connected to inside the context."""
        import dask

        configured = dask.config.get(_FAILURES_SETTING, None)
        # Keep a higher limit if the user has configured one.
        higher = isinstance(configured, int) and configured > _ALLOWED_FAILURES
        settings = {_FAILURES_SETTING: float(configured if higher else _ALLOWED_FAILURES)}
        if self.wait_seconds is not None:
            settings[WORKERS_SETTING] = self.wait_seconds
        with dask.config.set(settings):
            yield

    @contextmanager
    def watching(self, listener: Callable[[Any], None], out: str) -> Iterator[None]:
        """Stop the command if no block finishes in time; write the cluster state to `out` first."""
        from scrlm_dask.engine.workers import current_client

        self._listener, self._last = listener, time.monotonic()
        over, client = threading.Event(), current_client()  # other threads may not know the client
        if self.stall_seconds > 0 and threading.current_thread() is threading.main_thread():
            threading.Thread(target=self._watch, args=(over, out, client), daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _watch(self, over: threading.Event, out: str, client: Any | None) -> None:
        from scrlm_dask.errors import ClusterError

        while not over.wait(min(1.0, self.stall_seconds / 4)):
            idle = time.monotonic() - self._last
            if idle > self.stall_seconds:
                state = _write_state(out, client)
                error = ClusterError(
                    f"no block finished within {idle:.3g} s (--stall-timeout); {state}"
                )
                error.code = EXIT_CLUSTER_LOST  # type: ignore[attr-defined]
                if not over.is_set():
                    raise_in_main(error)
                return


def _write_state(out: str, client: Any | None) -> str:
    """Write the scheduler's state to a file; return a message with its path or the problem."""
    if client is None:
        return "the threads of this process are blocked by a read or compute a very large block"
    written: list[Path] = []
    writer = threading.Thread(target=_dump, args=(client, out, written), daemon=True)
    writer.start()
    writer.join(_DUMP_SECONDS)
    if not written:
        return "the scheduler does not respond to a request for its state"
    return f"the state of the cluster is in {written[0]}"


def _dump(client: Any, out: str, written: list[Path]) -> None:
    """Write the cluster state to a file, then append the file to `written`."""
    from scrlm_dask.engine.failures import cluster_state

    with suppress(Exception):  # a failing cluster may raise any exception
        text = json.dumps(cluster_state(client), indent=2, default=str)
        written.append(_save_state(out, text))


def _save_state(out: str, text: str) -> Path:
    """Write a file in the run directory, or a private temporary file if the run is remote."""
    from scrlm_dask.storage.locations import locate
    from scrlm_dask.storage.outputs import find_aside

    if Path(out).is_dir():
        aside = find_aside(out)  # an earlier run in the directory is not changed
        file = Path(out if aside is None else aside.url) / "cluster-state.json"
        locate(file).write_text(text)  # a symbolic link in the run is replaced, not followed
        return file
    handle, name = tempfile.mkstemp(prefix="scrlm-cluster-state-", suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    return Path(name)
