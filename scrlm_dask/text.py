"""Format sizes, counts, lists and errors for messages and tables; hide secrets.

Control characters are escaped.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote

# Control characters (C0, DEL and C1), line separators, marks and overrides of the direction of
# text, and surrogates, which stand for undecodable bytes in file names and cannot be printed.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

_QUERY = re.compile(r"(?<=\S)\?[\w%&=.~-]\S*")
_AFTER_URLS = "'\"])>,;:."  # characters that may follow a URL in a sentence
# A text may be escaped or encoded repeatedly; %25 is an encoded %.
_BACKSLASHES = r"(?:\\|%(?:25)*5[Cc]){1,64}"
_SHORTEST_HIDDEN = 4  # characters; to replace shorter values would change too much of a message


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


def hide_values(text: str, values: Iterable[str]) -> str:
    """Replace values by ***, also if some of their characters are percent-encoded or escaped.

    The lines of a value are also replaced one by one, and percent-encoded values also in decoded
    form. Values of fewer than four characters are not replaced, because they are parts of words and
    numbers.

    >>> hide_values("403, url='http://host/x?sig=a%2Bb%3D%3D'", ["a+b=="])
    "403, url='http://host/x?sig=***'"
    """
    lines = {line for value in values for line in (value, *map(str.strip, value.splitlines()))}
    parts = lines | {unquote(line, errors="surrogateescape") for line in lines}
    hidden = sorted((part for part in parts if len(part) >= _SHORTEST_HIDDEN), key=len)
    return re.sub("|".join(map(_in_any_form, reversed(hidden))), "***", text) if hidden else text


def hide_queries(text: str) -> str:
    """Replace the queries of URLs by ***, because they may contain tokens.

    >>> hide_queries("GET https://host/x.zarr?sig=token failed")
    'GET https://host/x.zarr?*** failed'
    """
    return _QUERY.sub(_hide_query, text)


def _hide_query(match: re.Match[str]) -> str:
    end = len(match[0].rstrip(_AFTER_URLS))
    return f"?***{match[0][end:]}"


def _in_any_form(value: str) -> str:
    """Return a pattern that matches a value however a library quotes it."""
    pieces = re.findall(r"\\+|[^\\]", value)
    return "".join(_BACKSLASHES if piece[0] == "\\" else _any_form(piece) for piece in pieces)


def _any_form(character: str) -> str:
    """Return a pattern of a character: unchanged, in a URL, in HTML, in JSON and in a `repr`."""
    escaped = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    encoded = character.encode("utf-8", escaped)
    texts = {character, html.escape(character), f"\\{character}"}
    texts |= {json.dumps(character)[1:-1], character.encode("unicode_escape").decode()}
    if not character.isascii():
        texts.add("".join(f"\\x{byte:02x}" for byte in encoded))
    if character == " ":
        texts.add("+")
    patterns = {re.escape(text).replace(r"\\", _BACKSLASHES) for text in texts}
    patterns.add(f"(?i:{''.join(f'%(?:25)*{byte:02x}' for byte in encoded)})")
    return f"(?:{'|'.join(sorted(patterns))})"
