"""A pass in groups of consecutive blocks, whose merged parts are kept while the run is unfinished.

A group is a whole subtree of the merge tree, so neither cutting a pass into groups nor taking some
of them from an earlier attempt changes a bit. The task that has merged a group saves it, where it
is: no worker waits for another group, and the client sees none of it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

import dask
from dask.delayed import Delayed

from scrlm_dask.engine.tree_reduce import tree_reduce
from scrlm_dask.errors import StoreError
from scrlm_dask.events import Listener, Note
from scrlm_dask.settings import checkpoint_seconds
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
class GroupedReduction:
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
) -> GroupedReduction:
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
                others[i] = _loading(name, token, i, saved, _per_block(i))
            continue
        merged = tree_reduce(parts[blocks.start : blocks.stop], combine, name, fan_in)
        key = (f"{name}-save-{token}", number)
        here = {_per_block(i): beside[i] for i in blocks} if beside else {}
        saving = dask.delayed(_save, pure=False)
        groups.append(saving(saved.folder, _group(number), merged, here, dask_key_name=key))
    taken = [i for number in sorted(sound) for i in cuts[number]]
    return GroupedReduction(tree_reduce(groups, combine, name, fan_in), others, taken, damaged)


def saved_per_block(saved: Saved, n_parts: int, name: str) -> list[Delayed] | None:
    """What the blocks of a whole pass gave beside their parts; None if it is not all there."""
    files = [_per_block(i) for i in range(n_parts)]
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
        [_group(number), *([_per_block(i) for i in cuts[number]] if with_beside else ())]
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


def _per_block(block: int) -> str:
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


_T = TypeVar("_T")


class CheckpointScope:
    """The names of what is kept, in the order in which a run comes to it; or nothing is kept.

    A run does the same things in the same order each time, so that a pass has the name that it had
    in the attempt before. What happens inside of `remember` has names of its own, which no later
    pass gets when it is skipped.
    """

    def __init__(self, checkpoint: Checkpoint | None, listener: Listener) -> None:
        self.taken: dict[str, int] = {}  # blocks, or values, that an earlier attempt had done
        self._folder = checkpoint
        self._listener = listener
        self._steps: Counter[str] = Counter()
        self._last_kept = -float("inf")

    def step(
        self, name: str, kinds: Kinds | None, check: Check | None = None, of: str = ""
    ) -> Saved | None:
        """Where the next pass of this name keeps its groups; None if it does not.

        Groups that were computed from something else than `of` are none of its own.
        """
        self._steps[name] += 1
        words = (name, str(self._steps[name]), of)
        return self.place("-".join(word for word in words if word), kinds, check)

    def place(self, name: str, kinds: Kinds | None, check: Check | None = None) -> Saved | None:
        """Where groups are kept under a name of the caller's own."""
        if self._folder is None or kinds is None:
            return None
        return Saved(self._folder / name, kinds, check)

    def reduce(
        self,
        parts: Sequence[Delayed],
        combine: Callable[[Any, Any], Any],
        name: str,
        fan_in: int,
        saved: Saved | None,
        beside: Sequence[Delayed] = (),
    ) -> GroupedReduction:
        """The parts as one, in groups that are saved where that is wanted."""
        if saved is None:
            return GroupedReduction(tree_reduce(parts, combine, name, fan_in), list(beside), [], [])
        found = reduce_in_groups(parts, combine, name, fan_in, saved, beside)
        if found.taken:
            self.taken[name] = self.taken.get(name, 0) + len(found.taken)
        for number in found.damaged:
            self._warn(f"group {number} of the pass {name}")
        return found

    def remember(self, name: str, kinds: Kinds, compute: Callable[[], _T]) -> _T:
        """What `compute` gave in an earlier attempt; else it is computed, and kept."""
        if self._folder is None:
            return compute()
        value: _T | None = self.recall(name, kinds)
        if value is None:
            with self.inside(name):
                value = compute()
            self.keep(name, value)
        return value

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Names of a part of the run, apart from those of all others."""
        before = self._folder, self._steps
        if self._folder is not None:
            self._folder, self._steps = self._folder / f"{name}-steps", Counter()
        try:
            yield
        finally:
            self._folder, self._steps = before

    def recall(self, name: str, kinds: Kinds) -> Any | None:
        """A value of an earlier attempt; None if there is none that can be believed."""
        if self._folder is None or name not in self._folder.names():
            return None
        try:
            value = self._folder.load(name, kinds)
        except StoreError:
            self._warn(name)
            return None
        self.taken[name] = 1
        return value

    def keep(self, name: str, value: Any) -> None:
        if self._folder is not None:
            self._folder.make()
            self._folder.save(name, value)

    def names(self) -> set[str]:
        """What is kept here already."""
        return set() if self._folder is None else self._folder.names()

    def forget(self, *names: str) -> None:
        if self._folder is not None and names:
            self._folder.remove(*names)

    def is_due(self) -> bool:
        """Whether work that comes again and again should be kept this time."""
        now = time.monotonic()
        due = self._folder is not None and now - self._last_kept >= checkpoint_seconds()
        if due:
            self._last_kept = now
        return due

    def _warn(self, what: str) -> None:
        text = f"{what}, as it was saved, is damaged; it is computed again from what came before"
        self._listener(Note(text, warning=True))
