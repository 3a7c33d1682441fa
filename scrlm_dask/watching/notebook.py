"""Progress in the cell of a notebook that runs something."""

from __future__ import annotations

import sys
import threading
import time
from importlib import import_module
from typing import Any

from scrlm_dask.events import BlockDone, Event
from scrlm_dask.watching.cells import progress_html
from scrlm_dask.watching.lines import as_record
from scrlm_dask.watching.state import RunState

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
        self._state.hear(as_record(event), now)
        with self._lock:
            if isinstance(event, BlockDone) and now - self._last < _SECONDS:
                return
            self._last = now
            picture = self._display.HTML(progress_html(self._state.snapshot(now)))
            if self._handle is None:
                self._handle = self._display.display(picture, display_id=True)
            else:
                self._handle.update(picture)
