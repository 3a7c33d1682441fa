"""Format sizes, counts, lists and errors for messages and tables; escape control characters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# Control characters (C0, DEL and C1), line separators, marks and overrides of the direction of
# text, and surrogates, which stand for undecodable bytes in file names and cannot be printed.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""Escape the characters by which a name could control the terminal or imitate other output.

    >>> print(printable("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return _UNPRINTABLE.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Apply `printable` to each line of a text."""
    return "\n".join(map(printable, text.split("\n")))


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def format_bytes(n_bytes: float) -> str:
    """Return a size in decimal units, such as 64.0 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"


def plural(number: int, word: str) -> str:
    """Return a count with its noun: 1 row, 2,000 rows."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def shorten(text: str, most: int = 80) -> str:
    """Return a text for a message, cut to `most` characters.

    >>> shorten("a long text", 6)
    'a long...'
    """
    return text if len(text) <= most else f"{text[:most]}..."


def quoted(value: Any) -> str:
    """Return the representation of a value from a file for a message; long values are cut."""
    return shorten(repr(value))


def first_few(items: Sequence[Any], most: int = 5, *, total: bool = True) -> str:
    """List up to `most` items; if there are more, add "..." and, with `total`, the total number."""
    shown = ", ".join(str(item) for item in items[:most])
    if len(items) <= most:
        return shown
    return f"{shown}, ... ({len(items):,} in all)" if total else f"{shown}, ..."


def one_line(error: BaseException) -> str:
    """Return the type and the message of an error on one line."""
    return ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))


def first_line(error: BaseException, most: int | None = None) -> str:
    """Return the type of an error and the first line of its message, cut to `most` characters."""
    return ": ".join(
        [type(error).__name__, *(x[:most] for x in str(error).strip().splitlines()[:1])]
    )


def repeated(name: str, times: int) -> str:
    """Return the name of a phase, followed by "x N" if the phase runs N > 1 times."""
    return name if times == 1 else f"{name} x {times}"
