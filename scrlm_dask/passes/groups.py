"""A pass in groups of consecutive blocks, whose merged parts are kept while the run is unfinished.

A group is a whole subtree of the merge tree, so neither cutting a pass into groups nor taking some
of them from an earlier attempt changes a bit. The task that has merged a group saves it, where it
is: no worker waits for another group, and the client sees none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import dask
from dask.delayed import Delayed

from scrlm_dask.passes.trees import tree_reduce
from scrlm_dask.storage.checkpoints import Checkpoint, Kinds

MOST_GROUPS = 32

Check = Callable[[range], bool]  # whether what some blocks wrote elsewhere is still there


@dataclass(frozen=True)
class Saved:
    """Where a pass keeps its groups, and what is known of them."""

    folder: Checkpoint
    kinds: Kinds  # that parts are made of
    check: Check | None = None


@dataclass(frozen=True)
class Grouped:
    """A pass as tasks: some groups are computed and saved, others are there already."""

    total: Delayed
    beside: list[Delayed]  # what each block gives beside its part
    taken: list[int]  # positions of the blocks whose groups are there
    damaged: list[int]  # numbers of the groups that cannot be believed


def group_size(n_parts: int, fan_in: int) -> int:
    """Blocks of a group: the least power of the fan-in that gives few groups."""
    size = 1
    while -(-n_parts // size) > MOST_GROUPS:
        size *= fan_in
    return size


def reduce_in_groups(
    parts: Sequence[Delayed],
    combine: Callable[[Any, Any], Any],
    name: str,
    fan_in: int,
    saved: Saved,
    beside: Sequence[Delayed] = (),
) -> Grouped:
    """`tree_reduce` by groups. `beside` is one small array a block, kept with the groups, too."""
    size = group_size(len(parts), fan_in)
    cuts = [range(i, min(i + size, len(parts))) for i in range(0, len(parts), size)]
    sound, damaged = _sound_groups(cuts, saved, with_beside=bool(beside))
    saved.folder.make()
    token, others = uuid4().hex, list(beside)
    groups = []
    for number, blocks in enumerate(cuts):
        if number in sound:
            groups.append(_loading(name, token, number, saved, _group(number)))
            for i in blocks if beside else ():
                others[i] = _loading(name, token, i, saved, _beside(i))
            continue
        merged = tree_reduce(parts[blocks.start : blocks.stop], combine, name, fan_in)
        key = (f"{name}-save-{token}", number)
        here = {_beside(i): beside[i] for i in blocks} if beside else {}
        saving = dask.delayed(_save, pure=False)
        groups.append(saving(saved.folder, _group(number), merged, here, dask_key_name=key))
    taken = [i for number in sorted(sound) for i in cuts[number]]
    return Grouped(tree_reduce(groups, combine, name, fan_in), others, taken, damaged)


def saved_beside(saved: Saved, n_parts: int, name: str) -> list[Delayed] | None:
    """What the blocks of a whole pass gave beside their parts; None if it is not all there."""
    files = [_beside(i) for i in range(n_parts)]
    if not set(files) <= saved.folder.names():
        return None
    token, looking = uuid4().hex, dask.delayed(_is_sound, pure=False)
    checks = [
        looking(saved, [file], range(i, i + 1), dask_key_name=(f"check-saved-{token}", i))
        for i, file in enumerate(files)
    ]
    if not all(dask.compute(*checks)):
        return None
    return [_loading(name, token, i, saved, file) for i, file in enumerate(files)]


def _loading(name: str, token: str, number: int, saved: Saved, file: str) -> Delayed:
    """A task: whoever loses what it loaded loads it again."""
    kind = file.partition(".")[0]
    load = dask.delayed(_load, pure=False)
    key = (f"{name}-load-{kind}-{token}", number)
    return load(saved.folder, file, saved.kinds, dask_key_name=key)


def _sound_groups(cuts: list[range], saved: Saved, with_beside: bool) -> tuple[set[int], list[int]]:
    """Numbers of the groups that are there and whole, and of those that are only there."""
    names = saved.folder.names()
    found = [number for number in range(len(cuts)) if _group(number) in names]
    files = [
        [_group(number), *([_beside(i) for i in cuts[number]] if with_beside else ())]
        for number in found
    ]
    token = uuid4().hex
    looking = dask.delayed(_is_sound, pure=False)
    checks = [
        looking(saved, names, cuts[number], dask_key_name=(f"check-saved-{token}", number))
        for number, names in zip(found, files, strict=True)
    ]
    answers = dict(zip(found, dask.compute(*checks), strict=True))
    return {n for n, yes in answers.items() if yes}, [n for n, yes in answers.items() if not yes]


def _group(number: int) -> str:
    return f"group.{number:06d}"


def _beside(block: int) -> str:
    return f"block.{block:06d}"


def _save(folder: Checkpoint, name: str, part: Any, beside: dict[str, Any]) -> Any:
    for file, value in beside.items():
        folder.save(file, value)
    folder.save(name, part)  # last: a group that is there is there with all that belongs to it
    return part


def _load(folder: Checkpoint, name: str, kinds: Kinds) -> Any:
    return folder.load(name, kinds)


def _is_sound(saved: Saved, names: list[str], blocks: range) -> bool:
    whole = all(saved.folder.is_sound(name) for name in names)
    return whole and (saved.check is None or saved.check(blocks))
