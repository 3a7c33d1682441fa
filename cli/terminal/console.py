"""Output of commands: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from scrlm_dask.events import BlockDone, Event, IterationDone, Note, PhaseFinished, PhaseStarted
from scrlm_dask.monitoring.json_log import JsonLines, plain
from scrlm_dask.monitoring.run_state import PhaseState
from scrlm_dask.text import format_bytes, printable, printable_lines

from .progress import RefreshTimer, bars, progress_line
from .signals import EXIT_INTERRUPTED
from .streams import exit_on_write_errors

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.text import Text

EXIT_FAILED = 1
EXIT_INPUT_REJECTED = 3
EXIT_CLUSTER_LOST = 4


class Console:
    """Output of one command: prints progress, notes, results and errors.

    It is also the listener that receives the events of a run.
    """

    def __init__(self, as_json: bool, verbose: bool, log_json: bool = False) -> None:
        self.as_json = as_json
        self.verbose = verbose
        self.performance_report: str | None = None  # path of Dask's report
        self.on_cluster = False  # False: the command uses threads of this process
        self._lines: JsonLines | None = JsonLines(_to_stderr) if log_json else None
        self.interrupted = "nothing was saved"
        self._bars: Progress | None = None
        self._bar: TaskID | None = None
        self._phase, self._timer = PhaseState(), RefreshTimer(0.0)

    def say(self, text: str) -> None:
        """Print a line to stderr."""
        if self._lines is not None:
            self._lines(Note(text))
        elif self._bars is not None:
            self._bars.console.print(
                printable(text), markup=False, emoji=False, highlight=False, soft_wrap=True
            )
        else:
            click.echo(printable(text), err=True)

    def fail(self, text: str) -> None:
        """Print the error that ends the command."""
        if self._lines is not None:
            _to_stderr(json.dumps({"time": time.time(), "event": "Error", "text": text}) + "\n")
        else:
            click.echo(f"Error: {printable(text)}", err=True)

    def result(self, content: dict[str, Any], table: Any) -> None:
        """Print the result: `table` (a Rich renderable), or `content` as JSON with --json."""
        with exit_on_write_errors():
            if self.as_json:
                click.echo(json.dumps(plain(content), allow_nan=False))
            else:
                print_table(table)

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show progress bars on a terminal; without a terminal, lines are printed instead."""
        if self._lines is not None or not sys.stderr.isatty():
            yield
            return
        with bars() as self._bars:
            yield
        self._bars = self._bar = None

    def __call__(self, event: Event) -> None:
        """Print an event, or update the progress bar."""
        if self._lines is not None:
            self._lines(event)
            return
        match event:
            case PhaseStarted():
                self._start_phase(event)
            case BlockDone():
                self._show_block(event)
            case PhaseFinished():
                self._finish_phase(event)
            case IterationDone():
                self._show_iteration(event)
            case Note():
                self.say(f"warning: {event.text}" if event.warning else event.text)

    def _start_phase(self, event: PhaseStarted) -> None:
        again = event.name == self._phase.name  # another iteration resets the bar of its phase
        now = time.monotonic()
        self._phase, self._timer = PhaseState(event.name), RefreshTimer(now)
        self._phase.start(event.blocks, event.rows, now)
        if self._bars is not None and self._bar is not None and again:
            self._bars.reset(self._bar, total=event.rows)
        elif self._bars is not None:
            self._bar = self._bars.add_task(event.name, total=event.rows)
        elif self.verbose:
            self.say(f"{event.name}: {event.rows:,} rows in {event.blocks:,} block(s)")

    def _show_block(self, event: BlockDone) -> None:
        phase, now = self._phase, time.monotonic()
        if event.name != phase.name:
            return  # a late event of an earlier phase
        phase.add_block(event.rows)
        if self._bars is not None and self._bar is not None:
            due = self._timer.redraw_is_due(now)
            self._bars.update(self._bar, completed=phase.all_rows(), refresh=due)
        elif phase.share() < 1.0 and self._timer.line_is_due(now):
            self.say(f"{event.name}: {progress_line(phase, now)}")

    def _finish_phase(self, event: PhaseFinished) -> None:
        if self._bars is not None and self._bar is not None:
            self._bars.update(self._bar, completed=event.rows)
            return
        rate = event.rows / max(event.seconds, 1e-9)
        self.say(
            f"{event.name}: {event.rows:,} rows in {event.seconds:.2f} s ({rate:,.0f} rows/s), "
            f"peak worker memory {format_bytes(event.peak_worker_bytes)}"
        )

    def _show_iteration(self, event: IterationDone) -> None:
        moved = "" if event.moved is None else f", {event.moved:,} rows moved"
        empty = f", {event.empty} empty ({event.reseeded} reseeded)" if event.empty else ""
        sampled = f" on a sample of {event.rows:,} rows" if event.sampled else ""
        self.say(
            f"k-means iteration {event.number}{sampled}: inertia {event.inertia:.6g}, "
            f"shift of centers {event.shift:.2g}{moved}{empty}"
        )


def print_table(table: Any) -> None:
    """Print a Rich renderable to stdout; names in it are neither markup nor control sequences.

    Texts of this program that contain line breaks are `rich.text.Text`, which stays as it is.
    """
    from rich.console import Console as RichConsole

    class Escaping(RichConsole):
        def render_str(self, text: str, **options: Any) -> Text:
            """Escape control characters and line breaks in a string, such as a cell of a table."""
            return super().render_str(printable(text), **options)

    Escaping(file=sys.stdout, highlight=False, markup=False, emoji=False).print(table)


@contextmanager
def exit_on_errors(console: Console) -> Iterator[None]:
    """Turn expected errors into one message and an exit code; -v also prints the traceback."""
    from scrlm_dask.errors import ClusterError, ScrlmError

    def end(error: BaseException, text: str, code: int) -> None:
        if console.verbose:
            click.echo(printable_lines(traceback.format_exc()), err=True, nl=False)
        # The notes of an error describe what is checkpointed and how to resume.
        console.fail("; ".join([text, *getattr(error, "__notes__", ())]))
        raise SystemExit(code)

    try:
        yield
    except ClusterError as error:
        end(error, str(error), EXIT_CLUSTER_LOST)
    except ScrlmError as error:
        end(error, str(error), EXIT_INPUT_REJECTED)
    except (KeyboardInterrupt, click.Abort) as error:
        by = f" by {error}" if str(error) else ""
        kept = f"; {console.interrupted}" if not hasattr(error, "__notes__") else ""
        end(error, f"interrupted{by}{kept}", getattr(error, "code", EXIT_INTERRUPTED))
    except Exception as error:
        if isinstance(error, click.ClickException):
            raise
        # Checked before OSError, because some errors of a lost cluster are also OSErrors.
        if _is_cluster_loss(error, console.on_cluster):
            lost = f"the Dask cluster or too many of its workers were lost ({type(error).__name__})"
            hint = "check that the cluster runs and has enough memory, then run the command again"
            end(error, f"{lost}; {hint}", EXIT_CLUSTER_LOST)
        if isinstance(error, OSError):  # such as a full disk or missing permissions
            end(error, f"{error}; check that the file or disk can be read and written", EXIT_FAILED)
        raise


def _is_cluster_loss(error: Exception, on_cluster: bool) -> bool:
    """Return whether workers or the scheduler were lost.

    Without a cluster, a TimeoutError comes from a disk or an object store.
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
