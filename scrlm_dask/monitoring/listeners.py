"""Listeners of a run: progress in a notebook cell, and events for the dashboard page."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

from scrlm_dask.events import BlockDone, Event, Listener, Note
from scrlm_dask.monitoring.html import progress_html
from scrlm_dask.monitoring.json_log import event_record
from scrlm_dask.monitoring.run_state import RunState
from scrlm_dask.settings import monitoring_enabled
from scrlm_dask.text import one_line

TOPIC = "scrlm"  # Dask topic of all runs; events of blocks use the topic of their run
_UPDATE_SECONDS = 0.5  # between two updates of the same phase


def in_notebook() -> bool:
    """Return whether this process is a Jupyter kernel; a plain IPython shell shows no HTML."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookCell:
    """Listener that shows progress as HTML below the notebook cell."""

    def __init__(self) -> None:
        self._state = RunState("", time.monotonic())
        self._display: Any = import_module("IPython.display")
        self._handle: Any = None
        self._last = -float("inf")
        self._lock = threading.Lock()  # other threads report blocks

    def __call__(self, event: Event) -> None:
        """Update the state and, at a limited rate, the output."""
        now = time.monotonic()
        self._state.apply(event_record(event), now)
        with self._lock:
            if isinstance(event, BlockDone) and now - self._last < _UPDATE_SECONDS:
                return
            self._last = now
            output = self._display.HTML(progress_html(self._state.snapshot(now)))
            if self._handle is None:
                self._handle = self._display.display(output, display_id=True)
            else:
                self._handle.update(output)


def make_publisher(client: Any, run: str, notify: Callable[[Event], None]) -> Listener | None:
    """Add the dashboard page to the scheduler; return a listener that sends the run's events to it.

    Return None if monitoring is disabled or the scheduler cannot import this package. The run then
    continues without the page.
    """
    if not monitoring_enabled():
        return None
    from scrlm_dask.monitoring.dashboard import RunsPlugin

    try:
        client.register_plugin(RunsPlugin())
    except Exception as error:  # unpickling on the scheduler may raise any exception
        notify(Note(f"the dashboard page /scrlm is not available: {one_line(error)}"))
        return None

    def publish(event: Event) -> None:
        # If the scheduler is lost, the run fails elsewhere with a better message. Without this
        # check every event would wait for a connection timeout.
        if client.status != "running":
            return
        with suppress(Exception):
            client.log_event(TOPIC, {"run": run, **event_record(event)})

    return publish
