"""What people see: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import math
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from scrlm_dask.events import Event

EXIT_FAILED = 1
EXIT_INPUT_REFUSED = 3
EXIT_CLUSTER_LOST = 4
EXIT_INTERRUPTED = 130

_LOG_SECONDS = 10.0  # between two lines of one phase in a log


class Console:
    """Prints results, notes and progress; the pipeline's listener."""

    def __init__(self, as_json: bool, verbose: bool) -> None:
        self.as_json = as_json
        self.verbose = verbose
        self.interrupted = "nothing was kept"
        self._bars: Progress | None = None
        self._bar: TaskID | None = None
        self._phase = _PhaseProgress()

    def say(self, text: str) -> None:
        """A line for people, on stderr."""
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(text, err=True)

    def result(self, content: dict[str, Any], table: Any) -> None:
        """The command's answer: a table for people (a rich renderable), or JSON for programs."""
        if self.as_json:
            click.echo(json.dumps(_plain(content), allow_nan=False))
            return
        from rich.console import Console as RichConsole

        RichConsole(file=sys.stdout, highlight=False).print(table)

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Bars on a terminal, one line a step elsewhere."""
        if not sys.stderr.isatty():
            yield
            return
        with _bars() as self._bars:
            try:
                yield
            finally:
                self._bars.refresh()
        self._bars = self._bar = None

    def __call__(self, event: Event) -> None:
        handler = getattr(self, f"_on_{type(event).__name__}")
        handler(event)

    def _on_PhaseStarted(self, event: Any) -> None:  # noqa: N802 - named after the event
        again = event.name == self._phase.name  # the next iteration: the same bar from the start
        self._phase = _PhaseProgress(event.name, event.rows)
        if self._bars is not None and self._bar is not None and again:
            self._bars.reset(self._bar, total=event.rows)
        elif self._bars is not None:
            self._bar = self._bars.add_task(event.name, total=event.rows)
        elif self.verbose:
            self.say(f"{event.name}: {event.rows:,} rows in {event.blocks:,} block(s)")

    def _on_BlockDone(self, event: Any) -> None:  # noqa: N802
        if event.name != self._phase.name:
            return  # a late word from a phase that is over
        self._phase.advance(event.rows)
        if self._bars is not None and self._bar is not None:
            self._bars.update(self._bar, completed=self._phase.done)
        elif self._phase.line_is_due():
            self.say(f"{event.name}: {self._phase.text()}")

    def _on_PhaseFinished(self, event: Any) -> None:  # noqa: N802
        if self._bars is not None and self._bar is not None:
            self._bars.update(self._bar, completed=event.rows)
            return
        rate = event.rows / max(event.seconds, 1e-9)
        self.say(
            f"{event.name}: {event.rows:,} rows in {event.seconds:.2f} s ({rate:,.0f} rows/s), "
            f"peak memory of a worker {size(event.peak_worker_bytes)}"
        )

    def _on_IterationDone(self, event: Any) -> None:  # noqa: N802
        moved = "" if event.moved is None else f", {event.moved:,} rows moved"
        empty = f", {event.empty} empty ({event.reseeded} reseeded)" if event.empty else ""
        sampled = f" on a sample of {event.rows:,} rows" if event.sampled else ""
        self.say(
            f"k-means iteration {event.number}{sampled}: inertia {event.inertia:.6g}, centers "
            f"shifted by {event.shift:.2g}{moved}{empty}"
        )

    def _on_Note(self, event: Any) -> None:  # noqa: N802
        self.say(f"warning: {event.text}" if event.warning else event.text)


class _PhaseProgress:
    """Rows done of a phase, at what rate, and when a log wants to hear of it."""

    def __init__(self, name: str = "", rows: int = 0) -> None:
        self.name = name
        self._rows = rows
        self._begin = self._last_line = time.monotonic()
        self.done = 0

    def advance(self, rows: int) -> None:
        self.done = min(self._rows, self.done + rows)

    def line_is_due(self) -> bool:
        now = time.monotonic()
        due = now - self._last_line >= _LOG_SECONDS and self.done < self._rows
        if due:
            self._last_line = now
        return due

    def text(self) -> str:
        rate = self.done / max(time.monotonic() - self._begin, 1e-9)
        left = (self._rows - self.done) / max(rate, 1e-9)
        share = self.done / max(self._rows, 1)
        return f"{share:.0%}, {rate:,.0f} rows/s, about {left:.0f} s left"


def _bars() -> Progress:
    from rich.console import Console as RichConsole
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

    return Progress(
        TextColumn("{task.description:>9}"),
        BarColumn(),
        TaskProgressColumn(),
        RowsPerSecond(),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
        console=RichConsole(stderr=True),
    )


@contextmanager
def failures(console: Console) -> Iterator[None]:
    """Foreseeable errors end as one message and an exit code; -v adds the traceback."""
    from scrlm_dask.errors import ClusterError, ScrlmError

    def end(text: str, code: int) -> None:
        if console.verbose:
            traceback.print_exc()
        click.echo(f"Error: {text}", err=True)
        raise SystemExit(code)

    try:
        yield
    except ClusterError as error:
        end(str(error), EXIT_CLUSTER_LOST)
    except ScrlmError as error:
        end(str(error), EXIT_INPUT_REFUSED)
    except (KeyboardInterrupt, click.Abort):
        end(f"interrupted; {console.interrupted}", EXIT_INTERRUPTED)
    except Exception as error:
        if isinstance(error, click.ClickException):
            raise
        if _is_cluster_loss(error):  # first: some of these are OSErrors, too
            what = type(error).__name__
            end(
                f"the Dask cluster, or too many of its workers, were lost ({what}); see that it "
                "runs and has memory enough, and run the command again",
                EXIT_CLUSTER_LOST,
            )
        if isinstance(error, OSError):  # no space, no permission, no such device
            end(f"{error}; see that the output can be written", EXIT_FAILED)
        raise


def _is_cluster_loss(error: Exception) -> bool:
    """Dask's own errors for lost workers and schedulers; imported only when something failed."""
    from distributed import KilledWorker, TimeoutError
    from distributed.client import FutureCancelledError
    from distributed.comm import CommClosedError

    return isinstance(error, CommClosedError | KilledWorker | TimeoutError | FutureCancelledError)


def size(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
