"""What people see: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from scrlm_dask.events import Note
from scrlm_dask.monitoring.json_log import JsonLines, plain
from scrlm_dask.text import format_bytes

from .progress import PhaseProgress, bars
from .signals import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from scrlm_dask.events import Event

EXIT_FAILED = 1
EXIT_INPUT_REFUSED = 3
EXIT_CLUSTER_LOST = 4


class Console:
    """Prints results, notes and progress; the pipeline's listener."""

    def __init__(self, as_json: bool, verbose: bool, log_json: bool = False) -> None:
        self.as_json = as_json
        self.verbose = verbose
        self.performance_report: str | None = None  # where one is wanted
        self.on_cluster = False  # or on its way to one
        self._lines: JsonLines | None = JsonLines(_to_stderr) if log_json else None
        self.interrupted = "nothing was kept"
        self._bars: Progress | None = None
        self._bar: TaskID | None = None
        self._phase = PhaseProgress()

    def say(self, text: str) -> None:
        """A line for people, on stderr."""
        if self._lines is not None:
            self._lines(Note(text))
        elif self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            click.echo(text, err=True)

    def fail(self, text: str) -> None:
        """Why the command ends."""
        if self._lines is not None:
            _to_stderr(json.dumps({"time": time.time(), "event": "Error", "text": text}) + "\n")
        else:
            click.echo(f"Error: {text}", err=True)

    def result(self, content: dict[str, Any], table: Any) -> None:
        """The command's answer: a table for people (a rich renderable), or JSON for programs."""
        if self.as_json:
            click.echo(json.dumps(plain(content), allow_nan=False))
            return
        from rich.console import Console as RichConsole

        # paths and names are shown as they are: brackets in them are no markup
        RichConsole(file=sys.stdout, highlight=False, markup=False).print(table)

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Bars on a terminal, one line a step elsewhere."""
        if self._lines is not None or not sys.stderr.isatty():
            yield
            return
        with bars() as self._bars:
            yield
        self._bars = self._bar = None

    def __call__(self, event: Event) -> None:
        if self._lines is not None:
            self._lines(event)
            return
        handler = getattr(self, f"_on_{type(event).__name__}", None)
        if handler is not None:
            handler(event)

    def _on_PhaseStarted(self, event: Any) -> None:  # noqa: N802 - named after the event
        again = event.name == self._phase.name  # the next iteration: the same bar from the start
        self._phase = PhaseProgress(event.name, event.rows)
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
            due = self._phase.picture_is_due()
            self._bars.update(self._bar, completed=self._phase.done, refresh=due)
        elif self._phase.line_is_due():
            self.say(f"{event.name}: {self._phase.text()}")

    def _on_PhaseFinished(self, event: Any) -> None:  # noqa: N802
        if self._bars is not None and self._bar is not None:
            self._bars.update(self._bar, completed=event.rows)
            return
        rate = event.rows / max(event.seconds, 1e-9)
        self.say(
            f"{event.name}: {event.rows:,} rows in {event.seconds:.2f} s ({rate:,.0f} rows/s), "
            f"peak memory of a worker {format_bytes(event.peak_worker_bytes)}"
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


@contextmanager
def exit_on_errors(console: Console) -> Iterator[None]:
    """Foreseeable errors end as one message and an exit code; -v adds the traceback."""
    from scrlm_dask.errors import ClusterError, ScrlmError

    def end(error: BaseException, text: str, code: int) -> None:
        if console.verbose:
            traceback.print_exc()
        # what was kept of the work, and how to go on with it
        console.fail("; ".join([text, *getattr(error, "__notes__", ())]))
        raise SystemExit(code)

    try:
        yield
    except ClusterError as error:
        end(error, str(error), EXIT_CLUSTER_LOST)
    except ScrlmError as error:
        end(error, str(error), EXIT_INPUT_REFUSED)
    except (KeyboardInterrupt, click.Abort) as error:
        by = f" by {error}" if str(error) else ""
        kept = f"; {console.interrupted}" if not hasattr(error, "__notes__") else ""
        end(error, f"interrupted{by}{kept}", getattr(error, "code", EXIT_INTERRUPTED))
    except Exception as error:
        if isinstance(error, click.ClickException):
            raise
        if _is_cluster_loss(error, console.on_cluster):  # first: some of these are OSErrors, too
            what = type(error).__name__
            end(
                error,
                f"the Dask cluster, or too many of its workers, were lost ({what}); see that it "
                "runs and has memory enough, and run the command again",
                EXIT_CLUSTER_LOST,
            )
        if isinstance(error, OSError):  # no space, no permission, no such device
            end(error, f"{error}; see that it can be read or written", EXIT_FAILED)
        raise


def _is_cluster_loss(error: Exception, on_cluster: bool) -> bool:
    """Dask's own errors for lost workers and schedulers; imported only when something failed.

    That time is over, disks and object stores say, too: where there is no cluster, it is them.
    """
    from distributed import KilledWorker, TimeoutError
    from distributed.client import FutureCancelledError, FuturesCancelledError
    from distributed.comm import CommClosedError

    cancelled = FutureCancelledError | FuturesCancelledError
    if isinstance(error, CommClosedError | KilledWorker | cancelled):
        return True
    return on_cluster and isinstance(error, TimeoutError)


def _to_stderr(line: str) -> None:
    click.echo(line, err=True, nl=False)
