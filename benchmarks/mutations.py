"""Hypothesis strategies for damaged files: changed bytes, and changed values in JSON.

A strategy draws a list of changes, which `change_bytes` and `change_json` apply to the content of a
file. Hypothesis can therefore print a change and reduce it to a minimal one.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

Change = tuple[Any, ...]  # the kind of a change and its arguments
Changes = st.SearchStrategy[list[Change]]
EXTREMES: tuple[Any, ...] = (
    *(0, -1, 1, 2, 7, 2**31, 2**63, 2**64, 10**15, -(2**63), 1e308, float("nan"), float("inf")),
    *(None, True, "", "x", "\x1b[31m", "float64", "|O", ">f2", "../..", [], {}, [0], [[]], {"": 0}),
)
_NUMBERS = (0, 1, 2, 127, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
_DEEP = 100_000
_MOST_CHANGES = 3
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**40) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


def byte_changes(size: int, focus: tuple[int, int] | None = None) -> Changes:
    """Return a strategy for one to three changes of `size` bytes, most of them within `focus`."""
    everywhere = st.integers(0, max(0, size - 1))
    at = everywhere
    if focus is not None:
        inside = st.integers(max(0, focus[0]), max(0, min(focus[1], size) - 1))
        at = st.one_of(inside, inside, inside, inside, everywhere)
    flip = st.tuples(st.just("flip"), at, st.integers(0, 7))
    byte = st.tuples(st.just("byte"), at, st.sampled_from((0, 1, 127, 128)) | st.integers(0, 255))
    number = st.tuples(
        st.just("number"),
        at,
        st.sampled_from((2, 4, 8)),
        st.sampled_from(_NUMBERS) | st.integers(0, 2**64 - 1),
    )
    change = st.one_of(
        *(flip, flip, byte, byte, number, number),
        st.tuples(st.just("truncate"), at),
        st.tuples(st.just("insert"), at, st.binary(min_size=1, max_size=8)),
        st.tuples(st.just("delete"), at, st.sampled_from((1, 4, 8))),
        st.tuples(st.just("repeat"), at, st.sampled_from((1, 8, 64))),
    )
    return st.lists(change, min_size=1, max_size=_MOST_CHANGES)


def change_bytes(data: bytes, changes: list[Change]) -> bytes:
    """Return the data with these changes."""
    content = bytearray(data)
    for kind, at, *arguments in changes:
        at = min(at, max(0, len(content) - 1))
        if kind == "truncate":
            del content[at:]
        elif kind == "insert":
            content[at:at] = arguments[0]
        elif kind == "delete":
            del content[at : at + arguments[0]]
        elif kind == "repeat":
            content[at:at] = content[at : at + arguments[0]]
        elif kind == "number":
            size, value = arguments
            content[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")
        elif content:
            content[at] = arguments[0] if kind == "byte" else content[at] ^ 1 << arguments[0]
    return bytes(content)


def json_changes(data: bytes) -> Changes:
    """Return a strategy for one to three changes of a JSON text; a tenth are changes of bytes."""
    entry = st.integers(0, max(0, len(_entries(json.loads(data))) - 1))
    values = st.tuples(st.just("set"), entry, st.sampled_from(EXTREMES) | JSON_VALUES)
    change = st.one_of(
        *(values, values, values),
        st.tuples(st.just("drop"), entry),
        st.tuples(st.just("rename"), entry, st.sampled_from(("name", "shape", "x"))),
        st.tuples(st.just("wrap"), entry),
        st.tuples(st.just("number"), entry, st.integers(0, 5)),
    )
    several = st.lists(change, min_size=1, max_size=_MOST_CHANGES)
    nested = st.sampled_from(("lists", "objects")).map(lambda kind: [("nest", kind)])
    of_bytes = byte_changes(len(data)).map(lambda changes: [("bytes", changes)])
    # Numbers below 100 select the kind, because nested values take long.
    return st.integers(0, 99).flatmap(
        lambda kind: several if kind < 87 else of_bytes if kind < 97 else nested
    )


def change_json(data: bytes, changes: list[Change]) -> bytes:
    """Return the JSON text with these changes."""
    content = json.loads(data)
    for kind, argument, *more in changes:
        if kind == "bytes":
            return change_bytes(data, argument)
        if kind == "nest":
            return _nest(data, argument)
        entries = _entries(content)
        if entries:
            _change_entry(*entries[argument % len(entries)], kind, *more)
    return json.dumps(content).encode()


def _nest(data: bytes, kind: str) -> bytes:
    """Replace a value by 100 000 nested lists or objects."""
    if kind == "lists":
        return data.replace(b"[", b"[" * _DEEP, 1)
    return data.replace(b": 2", b": " + b'{"a":' * _DEEP + b"2" + b"}" * _DEEP, 1)


def _entries(content: Any) -> list[tuple[Any, Any]]:
    """Return every container and key of a JSON value, including nested ones."""
    keys = content.keys() if isinstance(content, dict) else range(len(content))
    here = [(content, key) for key in keys]
    nested = (content[key] for key in keys)
    return here + [
        entry for value in nested if isinstance(value, dict | list) for entry in _entries(value)
    ]


def _change_entry(holder: Any, key: Any, kind: str, argument: Any = None) -> None:
    value = holder[key]
    if kind == "drop":
        holder.pop(key)
    elif kind == "rename" and isinstance(holder, dict):
        holder[key + "x" if argument == "x" else argument] = holder.pop(key)
    elif kind == "wrap":
        holder[key] = [value]
    elif kind == "number" and isinstance(value, int | float):
        others = (value + 1, value - 1, value * 2, -value, value + 0.5, str(value))
        holder[key] = others[argument]
    elif kind == "set":
        holder[key] = argument
