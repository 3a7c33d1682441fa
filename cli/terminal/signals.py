"""Handle signals: stop the command with usable checkpoints, and exit within seconds.

Batch systems send SIGTERM or SIGUSR1 before they kill a job; Ctrl-C sends SIGINT.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import click

from scrlm_dask.text import printable

EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
_CODES = {
    signal.SIGINT: EXIT_INTERRUPTED,
    signal.SIGTERM: EXIT_TERMINATED,
    signal.SIGUSR1: EXIT_TERMINATED,
}
_RAISE_AGAIN_SECONDS = 0.05
_GRACE_SECONDS = 15.0  # batch systems kill the process soon after the signal


class SignalInterrupt(KeyboardInterrupt):
    """Raised in the main thread when a signal stops the command."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = _CODES[signal.Signals(number)]


def _stop_message(error: BaseException) -> str:
    return f"interrupted by {error}" if isinstance(error, SignalInterrupt) else str(error)


@dataclass(eq=False)
class _SignalHandler:
    """Signal handler that raises on the first signal and exits at once on a second Ctrl-C."""

    stopping: bool = False
    exiting: bool = False
    error: BaseException | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.stopping:
            if number == signal.SIGINT:
                click.echo("Error: stopped immediately by a second interrupt", err=True)
                os._exit(EXIT_INTERRUPTED)
            return
        self.stopping = True
        if self.error is None:
            self.error = SignalInterrupt(number)
        if not self.exiting:
            self.exiting = True
            self._exit_after_grace(getattr(self.error, "code", EXIT_TERMINATED), self.error)
        raise self.error

    def unraisable(self, lost: Any) -> None:
        """Raise the error again a little later: Python ignores errors in callbacks of C code."""
        error = self.error
        if lost.exc_value is not error or error is None:
            sys.__unraisablehook__(lost)
            return
        self.stopping = False
        _start_timer(_RAISE_AGAIN_SECONDS, lambda: raise_in_main(error))

    def _exit_after_grace(self, code: int, error: BaseException) -> None:
        """Exit after a while even if a worker or a disk does not respond.

        The run can be resumed, because checkpoints are already on disk. If the command has ended
        and the process continues with other work, the process does not exit.
        """

        def leave() -> None:
            if _handler is not self and not _process_ends():
                return
            text = "; ".join([_stop_message(error), *getattr(error, "__notes__", ())])
            click.echo(f"Error: {printable(text)}; exited without waiting any longer", err=True)
            os._exit(code)

        _start_timer(_GRACE_SECONDS, leave)


_handler: _SignalHandler | None = None  # handler of the running command
_handler_lock = threading.Lock()


@contextmanager
def handle_signals() -> Iterator[None]:
    """Raise `SignalInterrupt` on a signal inside the context; no-op outside the main thread."""
    global _handler
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    current = _handler = _SignalHandler()
    before = {number: signal.signal(number, current) for number in _CODES}
    hook, sys.unraisablehook = sys.unraisablehook, current.unraisable
    try:
        yield
    finally:
        current.stopping = True  # ignore signals that arrive now
        with _handler_lock:
            _handler = None
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_in_main(error: BaseException) -> None:
    """Raise an error in the main thread, even if it is blocked; no-op if no command runs there."""
    ident = threading.main_thread().ident
    assert ident is not None
    with _handler_lock:
        if _handler is None:
            return  # without a handler, the signal would end the process
        _handler.error = error
        signal.pthread_kill(ident, signal.SIGUSR1)


def _start_timer(seconds: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def _process_ends() -> bool:
    """Return whether the interpreter is shutting down; a thread pool then rejects new work."""
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(int)
    except RuntimeError:
        return True
    return False
