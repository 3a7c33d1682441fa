"""Progress in the cell of a notebook that runs something."""

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

_SECONDS = 0.5  # between two pictures of the same phase


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this, which shows HTML; a plain IPython does not."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookCell:
    """A listener that keeps one picture below the cell up to date."""

    def __init__(self) -> None:
        self._state = RunState("", time.time())
        self._display: Any = import_module("IPython.display")
        self._handle: Any = None
        self._last = 0.0
        self._lock = threading.Lock()  # blocks are told by other threads

    def __call__(self, event: Event) -> None:
        now = time.time()
        self._state.hear(event_record(event), now)
        with self._lock:
            if isinstance(event, BlockDone) and now - self._last < _SECONDS:
                return
            self._last = now
            picture = self._display.HTML(progress_html(self._state.snapshot(now)))
            if self._handle is None:
                self._handle = self._display.display(picture, display_id=True)
            else:
                self._handle.update(picture)


TOPIC = "scrlm"  # under which runs tell their events; blocks come under the topic of their run


def make_publisher(client: Any, run: str, say: Callable[[Event], None]) -> Listener | None:
    """See that the scheduler has the page, and give the listener that tells it of this run.

    A scheduler that cannot have it, as it has not this package, is no reason to fail.
    """
    if not monitoring_enabled():
        return None
    from scrlm_dask.monitoring.dashboard import RunsPlugin

    try:
        client.register_plugin(RunsPlugin())
    except Exception as error:  # whatever loading it there raised
        say(Note(f"no page /scrlm on this scheduler: {type(error).__name__}: {error}"))
        return None

    def publish(event: Event) -> None:
        # a scheduler that is gone ends the run in its own way, not in that of its watchers
        with suppress(Exception):
            client.log_event(TOPIC, {"run": run, **event_record(event)})

    return publish
