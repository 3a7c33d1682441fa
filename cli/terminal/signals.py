"""Signals that ask a command to stop: it leaves what is done in order, and soon.

SIGTERM and SIGUSR1 are what batch systems send before they take the machine away, SIGINT is Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
_CODES = {
    signal.SIGINT: EXIT_INTERRUPTED,
    signal.SIGTERM: EXIT_TERMINATED,
    signal.SIGUSR1: EXIT_TERMINATED,
}
_AGAIN_SECONDS = 0.05
_GRACE_SECONDS = 15.0  # whatever hangs then: batch systems kill soon after they have warned


class Stopped(KeyboardInterrupt):
    """Somebody asked the command to stop. Raised in the main thread, wherever that is."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = _CODES[signal.Signals(number)]


def _stop_message(error: BaseException) -> str:
    """A signal's own words are its name only."""
    return f"interrupted by {error}" if isinstance(error, Stopped) else str(error)


class _Requests:
    """What was asked so far: the first signal is obeyed, of the others only a second Ctrl-C."""

    def __init__(self) -> None:
        self.stopping = self.leaving = False
        self.error: BaseException | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.stopping:
            if number == signal.SIGINT:
                click.echo("Error: stopped at once", err=True)
                os._exit(EXIT_INTERRUPTED)
            return
        self.stopping = True
        if self.error is None:
            self.error = Stopped(number)
        if not self.leaving:
            self.leaving = True
            self._leave_later(getattr(self.error, "code", EXIT_TERMINATED), self.error)
        raise self.error

    def unraisable(self, unheard: Any) -> None:
        """Raised inside a callback of C code, where nobody hears it: again, a little later."""
        error = self.error
        if unheard.exc_value is not error or error is None:
            sys.__unraisablehook__(unheard)
            return
        self.stopping = False
        _later(_AGAIN_SECONDS, lambda: raise_in_main(error))

    def _leave_later(self, code: int, error: BaseException) -> None:
        """Leave after a while even if a worker or a disk does not answer: what is kept is on disk.

        A process that outlives the command, and has more to do, is not left.
        """

        def leave() -> None:
            if _requests is not self and not _process_ends():
                return
            said = "; ".join([_stop_message(error), *getattr(error, "__notes__", ())])
            click.echo(f"Error: {said}; left without waiting any longer", err=True)
            os._exit(code)

        _later(_GRACE_SECONDS, leave)


_requests: _Requests | None = None  # of the command that signals are heard for
_changing = threading.Lock()


@contextmanager
def handle_signals() -> Iterator[None]:
    """Signals raise `Stopped` inside; only where they can be heard, which is the main thread."""
    global _requests
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    requests = _requests = _Requests()
    before = {number: signal.signal(number, requests) for number in _CODES}
    hook, sys.unraisablehook = sys.unraisablehook, requests.unraisable
    try:
        yield
    finally:
        requests.stopping = True  # too late to be raised
        with _changing:
            _requests = None
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_in_main(error: BaseException) -> None:
    """Raise an error in the main thread, whatever it waits for there, as long as it is heard."""
    ident = threading.main_thread().ident
    assert ident is not None
    with _changing:
        if _requests is None:
            return  # the signal would end a process that goes on without the command
        _requests.error = error
        signal.pthread_kill(ident, signal.SIGUSR1)


def _later(seconds: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def _process_ends() -> bool:
    """Whether Python only waits for threads any more: then pools take no work."""
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(int)
    except RuntimeError:
        return True
    return False
