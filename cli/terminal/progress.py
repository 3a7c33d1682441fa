"""Progress on a terminal: one bar per phase, and a line about the workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scrlm_dask.monitoring.run_state import PhaseState
from scrlm_dask.text import format_bytes, plural

if TYPE_CHECKING:
    from rich.progress import Progress

_LOG_SECONDS = 10.0  # between two lines of one phase in a log
_WORKERS_SECONDS = 2.0  # between two requests to the scheduler
# Drawing takes milliseconds; Rich's default, ten times per second, uses several percent of a core.
_REDRAWS_PER_SECOND = 2.0
_FIRST_REDRAW = 0.05  # seconds from the start of a phase


@dataclass
class RefreshTimer:
    """Timer that decides when to print a line about a phase or to redraw its bar."""

    began: float
    last_line: float = 0.0  # seconds since the start of the phase
    next_redraw: float = _FIRST_REDRAW

    def line_is_due(self, now: float) -> bool:
        """Return whether to print a line now; at most one line is printed per interval."""
        due = now - self.began - self.last_line >= _LOG_SECONDS
        if due:
            self.last_line = now - self.began
        return due

    def redraw_is_due(self, now: float) -> bool:
        """Return whether to redraw the bar now: soon after the start, then at doubling times.

        The first redraws are early, so that short phases are visible.
        """
        due = now - self.began >= self.next_redraw
        if due:
            self.next_redraw = 2.0 * (now - self.began)
        return due


def progress_line(phase: PhaseState, now: float) -> str:
    """Return the progress, rate and remaining time of a phase as text."""
    left = phase.left(now) or 0.0
    return f"{phase.share():.0%}, {phase.rate(now):,.0f} rows/s, about {left:.0f} s left"


@contextmanager
def bars() -> Iterator[Progress]:
    """Show one bar per phase inside the context, and the workers and their memory below."""
    from rich.console import Console as RichConsole
    from rich.console import RenderableType
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class RowsPerSecond(TextColumn):
        def __init__(self) -> None:
            super().__init__("")

        def render(self, task: Any) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.0f} rows/s" if speed else "", style="cyan")

    class Bars(Progress):
        workers = ""

        def get_renderables(self) -> Iterable[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            if self.workers:
                yield Text(self.workers, style="dim")

    shown = Bars(
        TextColumn("{task.description:>9}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        RowsPerSecond(),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
        console=RichConsole(stderr=True),
        refresh_per_second=_REDRAWS_PER_SECOND,
    )

    def show(text: str) -> None:
        shown.workers = text

    with shown, _poll_workers(show):
        try:
            yield shown
        finally:
            shown.refresh()


@contextmanager
def _poll_workers(show: Callable[[str], None]) -> Iterator[None]:
    """Update the line about the workers every few seconds, in a thread of its own."""
    from scrlm_dask.engine.workers import current_client, scheduler_workers

    client, over = current_client(), threading.Event()
    if client is None:
        yield
        return

    def poll() -> None:
        while not over.wait(_WORKERS_SECONDS):
            try:
                show(workers_line(scheduler_workers(client).values()))
            except Exception:  # a lost scheduler also makes the run itself fail
                return

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    try:
        yield
    finally:
        over.set()
        poller.join(_WORKERS_SECONDS)


def workers_line(workers: Iterable[Any]) -> str:
    """Return the number of workers and the highest memory use of a worker as text."""
    listed = list(workers)
    if not listed:
        return "no workers"
    fullest = max(listed, key=lambda worker: worker["metrics"].get("memory", 0))
    limit = f" of {format_bytes(fullest['memory_limit'])}" if fullest["memory_limit"] else ""
    threads = plural(sum(worker["nthreads"] for worker in listed), "thread")
    used = format_bytes(fullest["metrics"].get("memory", 0))
    return f"{plural(len(listed), 'worker')}, {threads}, highest worker memory {used}{limit}"
