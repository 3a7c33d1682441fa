"""Standard streams that are closed, or that do not accept more text: a full disk, a closed pipe."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, cast

import click


class _Messages:
    """Stderr without write errors: a message that is lost must not end a long run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()


def prepare_streams() -> None:
    """Discard the output to streams that are closed, and ignore write errors of stderr.

    Streams that the caller has replaced stay as they are.
    """
    # A file or socket must not get the descriptor of a closed stream: libraries write to it.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stdout is None:
        sys.stdout = _null_stream()
    if sys.stderr is None:
        sys.stderr = _null_stream()
    elif sys.stderr is sys.__stderr__:
        sys.stderr = cast(TextIO, _Messages(sys.stderr))


@contextmanager
def exit_on_write_errors() -> Iterator[None]:
    """Exit with code 1 if stdout does not accept text; the body must raise no other OSErrors.

    A closed pipe, such as that of `head`, needs no message.
    """
    try:
        yield
    except OSError as error:
        _discard_stdout()
        if error.errno == errno.EPIPE:
            raise SystemExit(1) from error
        text = f"the output cannot be written to stdout: {error}; files of the command are complete"
        raise click.ClickException(text) from error


def _null_stream() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def _discard_stdout() -> None:
    """Send buffered text to the null device; Python would try to write it again at exit."""
    with suppress(OSError), Path(os.devnull).open("w") as null:
        os.dup2(null.fileno(), sys.stdout.fileno())
