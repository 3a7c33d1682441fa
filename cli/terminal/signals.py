"""Stop a command on a signal: checkpoints stay usable, and the process exits soon.

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

EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
_CODES = {
    signal.SIGINT: EXIT_INTERRUPTED,
    signal.SIGTERM: EXIT_TERMINATED,
    signal.SIGUSR1: EXIT_TERMINATED,
}
_RAISE_AGAIN_SECONDS = 0.05
_GRACE_SECONDS = 15.0  # batch systems kill soon after the signal


class SignalInterrupt(KeyboardInterrupt):
    """A signal that stops the command; raised in the main thread."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = _CODES[signal.Signals(number)]


def _stop_message(error: BaseException) -> str:
    return f"interrupted by {error}" if isinstance(error, SignalInterrupt) else str(error)


@dataclass(eq=False)
class _SignalHandler:
    """Raise on the first signal; ignore further ones, but exit at once on a second Ctrl-C."""

    stopping: bool = False
    exiting: bool = False
    error: BaseException | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.stopping:
            if number == signal.SIGINT:
                click.echo("Error: stopped at once", err=True)
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
        """Raise the error again shortly afterwards: an exception in a C callback is lost."""
        error = self.error
        if lost.exc_value is not error or error is None:
            sys.__unraisablehook__(lost)
            return
        self.stopping = False
        _start_timer(_RAISE_AGAIN_SECONDS, lambda: raise_in_main(error))

    def _exit_after_grace(self, code: int, error: BaseException) -> None:
        """Exit even if a worker or a disk does not answer: checkpoints are on disk.

        Do not exit a process that outlives the command.
        """

        def leave() -> None:
            if _handler is not self and not _process_ends():
                return
            text = "; ".join([_stop_message(error), *getattr(error, "__notes__", ())])
            click.echo(f"Error: {text}; left without waiting any longer", err=True)
            os._exit(code)

        _start_timer(_GRACE_SECONDS, leave)


_handler: _SignalHandler | None = None  # of the running command
_handler_lock = threading.Lock()


@contextmanager
def handle_signals() -> Iterator[None]:
    """Raise `SignalInterrupt` on signals inside; does nothing outside of the main thread."""
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
        current.stopping = True  # too late to be raised
        with _handler_lock:
            _handler = None
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_in_main(error: BaseException) -> None:
    """Raise an error in the main thread, even if that waits, while a command runs there."""
    ident = threading.main_thread().ident
    assert ident is not None
    with _handler_lock:
        if _handler is None:
            return  # the signal would end a process that outlives the command
        _handler.error = error
        signal.pthread_kill(ident, signal.SIGUSR1)


def _start_timer(seconds: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def _process_ends() -> bool:
    """Return whether the interpreter only waits for threads: then pools reject work."""
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(int)
    except RuntimeError:
        return True
    return False
