"""Combine parts in a tree whose shape depends only on their number and the fan-in.

The order in which blocks finish therefore does not affect the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any
from uuid import uuid4

import dask
from dask.delayed import Delayed

FAN_IN = 8
_LARGE_PART_BYTES = 2**20


def tree_reduce(
    parts: Sequence[Delayed],
    combine: Callable[[Any, Any], Any],
    name: str,
    fan_in: int = FAN_IN,
) -> Delayed:
    """Combine the parts in their order, `fan_in` at a time, level by level."""
    token = uuid4().hex
    level = 0
    while len(parts) > 1:
        parts = [
            # not a list of parts, for which Dask would search the whole graph once per node
            dask.delayed(_combine, pure=False)(
                combine,
                *parts[i : i + fan_in],
                dask_key_name=(f"{name}-merge-{token}", level, i),
            )
            for i in range(0, len(parts), fan_in)
        ]
        level += 1
    return parts[0]


def combine_parts(
    parts: Iterable[Any], combine: Callable[[Any, Any], Any], fan_in: int = FAN_IN
) -> Any:
    """Combine parts in this process, in the tree of `tree_reduce`.

    Parts are combined as soon as possible: fewer than `fan_in` parts per level stay in memory.
    """
    levels: list[list[Any]] = []
    for part in parts:
        _add_part(levels, 0, part, combine, fan_in)
    carried: list[Any] = []
    for waiting in levels:
        together = waiting + carried
        carried = [_combine(combine, *together)] if together else []
    return carried[0]


def _add_part(
    levels: list[list[Any]],
    level: int,
    part: Any,
    combine: Callable[[Any, Any], Any],
    fan_in: int,
) -> None:
    if level == len(levels):
        levels.append([])
    levels[level].append(part)
    if len(levels[level]) == fan_in:
        full, levels[level] = levels[level], []
        _add_part(levels, level + 1, _combine(combine, *full), combine, fan_in)


def fan_in_for(part_bytes: int) -> int:
    """Return the fan-in for parts of this size; large parts are combined in pairs.

    With a small fan-in, fewer parts are in memory while they wait to be combined. `part_bytes` must
    depend only on the shape of the data, because the last bits of the result depend on the fan-in.
    """
    return 2 if part_bytes > _LARGE_PART_BYTES else FAN_IN


def _combine(combine: Callable[[Any, Any], Any], *parts: Any) -> Any:
    return reduce(combine, parts)
