"""Progress on a terminal: a bar a phase, and a line on the workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scrlm_dask.text import format_bytes, plural

if TYPE_CHECKING:
    from rich.progress import Progress

_LOG_SECONDS = 10.0  # between two lines of one phase in a log
_WORKERS_SECONDS = 2.0  # between two looks at the workers
# A picture costs milliseconds: ten a second, which is usual, would be some percent of a core.
_PICTURES_PER_SECOND = 2.0
_FIRST_PICTURE = 0.05  # seconds from the start of a phase


class PhaseProgress:
    """Rows done of a phase, at what rate, and when a log wants to hear of it."""

    def __init__(self, name: str = "", rows: int = 0) -> None:
        self.name = name
        self._rows = rows
        self._begin = self._last_line = time.monotonic()
        self._next_picture = _FIRST_PICTURE
        self.done = 0

    def advance(self, rows: int) -> None:
        self.done = min(self._rows, self.done + rows)

    def line_is_due(self) -> bool:
        now = time.monotonic()
        due = now - self._last_line >= _LOG_SECONDS and self.done < self._rows
        if due:
            self._last_line = now
        return due

    def picture_is_due(self) -> bool:
        """Soon after the start, and then after twice the time: short phases are seen, too."""
        spent = time.monotonic() - self._begin
        due = spent >= self._next_picture
        if due:
            self._next_picture = 2.0 * spent
        return due

    def text(self) -> str:
        rate = self.done / max(time.monotonic() - self._begin, 1e-9)
        left = (self._rows - self.done) / max(rate, 1e-9)
        share = self.done / max(self._rows, 1)
        return f"{share:.0%}, {rate:,.0f} rows/s, about {left:.0f} s left"


@contextmanager
def bars() -> Iterator[Progress]:
    """A bar a phase while the block runs; below them workers and memory, as they are."""
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
        TextColumn("{task.description:>9}"),
        BarColumn(),
        TaskProgressColumn(),
        RowsPerSecond(),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
        console=RichConsole(stderr=True),
        refresh_per_second=_PICTURES_PER_SECOND,
    )

    def show(text: str) -> None:
        shown.workers = text

    with shown, _looking_at_workers(show):
        try:
            yield shown
        finally:
            shown.refresh()


@contextmanager
def _looking_at_workers(show: Callable[[str], None]) -> Iterator[None]:
    """Ask the scheduler for its workers now and then, in a thread that no run waits for."""
    from scrlm_dask.engine.workers import current_client

    client, over = current_client(), threading.Event()
    if client is None:
        yield
        return

    def look() -> None:
        while not over.wait(_WORKERS_SECONDS):
            try:
                show(workers_line(client.scheduler_info(-1)["workers"].values()))
            except Exception:  # a scheduler that is gone: the run will say so
                return

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(_WORKERS_SECONDS)


def workers_line(workers: Iterable[Any]) -> str:
    """How many there are and how full the fullest is."""
    found = list(workers)
    if not found:
        return "no workers"
    fullest = max(found, key=lambda worker: worker["metrics"].get("memory", 0))
    limit = f" of {format_bytes(fullest['memory_limit'])}" if fullest["memory_limit"] else ""
    threads = plural(sum(worker["nthreads"] for worker in found), "thread")
    used = format_bytes(fullest["metrics"].get("memory", 0))
    return f"{plural(len(found), 'worker')}, {threads}, memory of the fullest {used}{limit}"
