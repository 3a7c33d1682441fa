"""Seeded mutations of files for `benchmarks.fuzz`: damaged bytes, and extreme values in JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

EXTREMES: tuple[Any, ...] = (
    *(0, -1, 1, 2, 7, 2**31, 2**63, 2**64, 10**15, -(2**63), 1e308, float("nan"), float("inf")),
    *(None, True, "", "x", "\x1b[31m", "float64", "|O", ">f2", "../..", [], {}, [0], [[]], {"": 0}),
)
_NUMBERS = (0, 1, 2, 127, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)
_DEEP = 100_000
_MOST_CHANGES = 3


def mutate_bytes(data: bytes, rng: random.Random, focus: tuple[int, int] | None = None) -> bytes:
    """Return the data with one to three changes; most of them are within the range `focus`."""
    content = bytearray(data)
    for _ in range(rng.randint(1, _MOST_CHANGES)):
        low, high = focus if focus is not None and rng.random() < 0.8 else (0, len(content))
        high = min(high, len(content))
        at = rng.randrange(low, high) if low < high else 0
        rng.choice(_BYTE_CHANGES)(content, at, rng)
    return bytes(content)


def _flip(content: bytearray, at: int, rng: random.Random) -> None:
    if content:
        content[at] ^= 1 << rng.randrange(8)


def _set(content: bytearray, at: int, rng: random.Random) -> None:
    if content:
        content[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))


def _number(content: bytearray, at: int, rng: random.Random) -> None:
    """Overwrite an integer of 2, 4 or 8 bytes."""
    size = rng.choice((2, 4, 8))
    value = rng.choice(_NUMBERS) % 2 ** (8 * size)
    content[at : at + size] = value.to_bytes(size, "little")


def _truncate(content: bytearray, at: int, rng: random.Random) -> None:
    del content[at:]


def _insert(content: bytearray, at: int, rng: random.Random) -> None:
    content[at:at] = rng.randbytes(rng.choice((1, 4, 8)))


def _delete(content: bytearray, at: int, rng: random.Random) -> None:
    del content[at : at + rng.choice((1, 4, 8))]


def _repeat(content: bytearray, at: int, rng: random.Random) -> None:
    content[at:at] = content[at : at + rng.choice((1, 8, 64))]


_BYTE_CHANGES: tuple[Callable[[bytearray, int, random.Random], None], ...] = (
    *(_flip, _flip, _set, _set, _number, _number, _truncate, _insert, _delete, _repeat),
)


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """Return the JSON text with one to three values replaced, removed, renamed or nested."""
    if rng.random() < 0.1:
        return mutate_bytes(data, rng)
    content = json.loads(data)
    for _ in range(rng.randint(1, _MOST_CHANGES)):
        holder, key = rng.choice(_entries(content) or [(None, None)])
        if holder is not None:
            _change_entry(holder, key, rng)
    text = json.dumps(content)
    if rng.random() < 0.02:
        text = text.replace("[", "[" * _DEEP, 1)
    elif rng.random() < 0.02:
        text = text.replace(": 2", ": " + '{"a":' * _DEEP + "2" + "}" * _DEEP, 1)
    return text.encode()


def _entries(content: Any) -> list[tuple[Any, Any]]:
    """Return every container and key of a JSON value, including nested ones."""
    keys = content.keys() if isinstance(content, dict) else range(len(content))
    here = [(content, key) for key in keys]
    nested = (content[key] for key in keys)
    return here + [
        entry for value in nested if isinstance(value, dict | list) for entry in _entries(value)
    ]


def _change_entry(holder: Any, key: Any, rng: random.Random) -> None:
    value = holder[key]
    change = rng.random()
    if change < 0.15:
        holder.pop(key)
    elif change < 0.25 and isinstance(holder, dict):
        holder[rng.choice(("name", "shape", str(key) + "x"))] = holder.pop(key)
    elif change < 0.35:
        holder[key] = [value]
    elif change < 0.5 and isinstance(value, int | float):
        holder[key] = rng.choice((value + 1, value - 1, value * 2, -value, value + 0.5, str(value)))
    else:
        holder[key] = rng.choice(EXTREMES)
