"""Checkpoints of passes, in groups of consecutive blocks, and of named values.

A group is a complete subtree of the reduction tree. Dividing a pass into groups, or loading some of
them from an earlier attempt, therefore does not change a bit of the result. The task that reduces a
group also saves it on its worker: no task waits for another group, and no group is sent to the
client.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

import dask
from dask.delayed import Delayed

from scrlm_dask.engine.tree_reduce import tree_reduce
from scrlm_dask.engine.workers import compute
from scrlm_dask.errors import StoreError
from scrlm_dask.events import Listener, Note
from scrlm_dask.settings import checkpoint_seconds
from scrlm_dask.storage.checkpoints import Checkpoint, Kinds

MAX_GROUPS = 32

# returns True if the outputs that a range of blocks wrote still exist
OutputsValid = Callable[[range], bool]

_T = TypeVar("_T")


@dataclass(frozen=True)
class SavedGroups:
    """Checkpoint of a pass: the folder of its groups, and the types that it may contain."""

    folder: Checkpoint
    checkpoint_types: Kinds  # the dataclasses that parts consist of
    outputs_valid: OutputsValid | None = None
    blocks_per_part: int = 1
    n_blocks: int | None = None  # of the pass; None: one block per part

    def blocks_of(self, parts: range) -> range:
        """Return the positions of the blocks that the given parts were computed from."""
        if self.n_blocks is None:
            return parts
        size = self.blocks_per_part
        return range(parts.start * size, min(parts.stop * size, self.n_blocks))

    def output_file(self, part: int) -> str:
        """Return the name of the file of the per-block outputs of a part."""
        size = self.blocks_per_part
        return f"block.{part:06d}" if size == 1 else f"batch.{size}.{part:06d}"


@dataclass(frozen=True)
class GroupedReduction:
    """Tasks of a checkpointed pass: some groups are computed and saved, others are loaded."""

    total: Delayed
    per_block_outputs: list[Delayed]
    reused_blocks: list[int]  # positions of the blocks whose groups are loaded
    damaged: list[int]  # numbers of the groups that failed their checks


@dataclass
class CheckpointScope:
    """The checkpoints of a run; without a folder nothing is saved or loaded.

    Repeated steps are numbered. A run executes the same steps in the same order each time, so a
    resumed run finds each step under the same name. Steps inside `load_or_compute` are numbered
    separately, so that skipping them does not change the names of later steps.
    """

    folder: Checkpoint | None
    listener: Listener
    # number of blocks that were loaded, by pass; 1 for a loaded value
    reused: dict[str, int] = field(default_factory=dict)
    _steps: Counter[str] = field(default_factory=Counter)
    _last_saved: float = -float("inf")

    def next_groups(
        self,
        name: str,
        checkpoint_types: Kinds | None,
        outputs_valid: OutputsValid | None = None,
        input_digest: str = "",
    ) -> SavedGroups | None:
        """Return where to save the groups of the next pass of this name; None: do not save them.

        Groups computed from other inputs have another `input_digest` and are not loaded.
        """
        self._steps[name] += 1
        parts = (name, str(self._steps[name]), input_digest)
        return self.groups(
            "-".join(part for part in parts if part), checkpoint_types, outputs_valid
        )

    def groups(
        self,
        name: str,
        checkpoint_types: Kinds | None,
        outputs_valid: OutputsValid | None = None,
    ) -> SavedGroups | None:
        """Return where to save groups under exactly this name; None: do not save them."""
        if self.folder is None or checkpoint_types is None:
            return None
        return SavedGroups(self.folder / name, checkpoint_types, outputs_valid)

    def reduce(
        self,
        parts: Sequence[Delayed],
        combine: Callable[[Any, Any], Any],
        name: str,
        fan_in: int,
        saved: SavedGroups | None,
        per_block_outputs: Sequence[Delayed] = (),
    ) -> GroupedReduction:
        """Combine the parts; checkpoint them in groups if `saved` is given."""
        if saved is None:
            total = tree_reduce(parts, combine, name, fan_in)
            return GroupedReduction(total, list(per_block_outputs), [], [])
        reduction = reduce_in_groups(parts, combine, name, fan_in, saved, per_block_outputs)
        if reduction.reused_blocks:
            self.reused[name] = self.reused.get(name, 0) + len(reduction.reused_blocks)
        for number in reduction.damaged:
            self._warn_damaged(f"group {number} of the pass {name}")
        return reduction

    def load_or_compute(self, name: str, checkpoint_types: Kinds, compute: Callable[[], _T]) -> _T:
        """Load the value from an earlier attempt, or compute and save it."""
        if self.folder is None:
            return compute()
        value: _T | None = self.load(name, checkpoint_types)
        if value is None:
            with self._inside(name):
                value = compute()
            self.save(name, value)
        return value

    def load(self, name: str, checkpoint_types: Kinds) -> Any | None:
        """Load a value from an earlier attempt; return None if it is missing or damaged."""
        if self.folder is None or name not in self.folder.names():
            return None
        try:
            value = self.folder.load(name, checkpoint_types)
        except StoreError:
            self._warn_damaged(name)
            return None
        self.reused[name] = 1
        return value

    def save(self, name: str, value: Any) -> None:
        """Save a value under a name; do nothing without a folder."""
        if self.folder is not None:
            self.folder.make()
            self.folder.save(name, value)

    def delete(self, *names: str) -> None:
        """Delete saved values and folders by name."""
        if self.folder is not None and names:
            self.folder.remove(*names)

    def names(self) -> set[str]:
        """Return the names of the saved values and folders."""
        return set() if self.folder is None else self.folder.names()

    def is_due(self) -> bool:
        """Return whether the checkpoint interval has passed; if so, restart it."""
        now = time.monotonic()
        due = self.folder is not None and now - self._last_saved >= checkpoint_seconds()
        if due:
            self._last_saved = now
        return due

    @contextmanager
    def _inside(self, name: str) -> Iterator[None]:
        """Use a separate folder and separate step numbers in a `with` block."""
        before = self.folder, self._steps
        if self.folder is not None:
            self.folder, self._steps = self.folder / f"{name}-steps", Counter()
        try:
            yield
        finally:
            self.folder, self._steps = before

    def _warn_damaged(self, name: str) -> None:
        text = f"the checkpoint of {name} is damaged; its content is computed again"
        self.listener(Note(text, warning=True))


def group_size(n_parts: int, fan_in: int) -> int:
    """Return the number of blocks per group, for at most MAX_GROUPS groups.

    It is the smallest such power of `fan_in`.
    """
    size = 1
    while -(-n_parts // size) > MAX_GROUPS:
        size *= fan_in
    return size


def reduce_in_groups(
    parts: Sequence[Delayed],
    combine: Callable[[Any, Any], Any],
    name: str,
    fan_in: int,
    saved: SavedGroups,
    per_block_outputs: Sequence[Delayed] = (),
) -> GroupedReduction:
    """Combine the parts with the same result as `tree_reduce`, in groups of blocks.

    Intact groups of an earlier attempt are loaded. Other groups are computed, and saved with their
    per-block outputs.
    """
    size = group_size(len(parts), fan_in)
    groups = [range(i, min(i + size, len(parts))) for i in range(0, len(parts), size)]
    sound, damaged = _sound_groups(groups, saved, with_outputs=bool(per_block_outputs))
    saved.folder.make()
    token, outputs = uuid4().hex, list(per_block_outputs)
    save = dask.delayed(_save, pure=False)
    totals = []
    for number, blocks in enumerate(groups):
        if number in sound:
            totals.append(_load_task(name, token, number, saved, _group_file(number)))
            for i in blocks if outputs else ():
                outputs[i] = _load_task(name, token, i, saved, saved.output_file(i))
            continue
        merged = tree_reduce(parts[blocks.start : blocks.stop], combine, name, fan_in)
        files = {saved.output_file(i): outputs[i] for i in blocks} if outputs else {}
        key = (f"{name}-save-{token}", number)
        totals.append(save(saved.folder, _group_file(number), merged, files, dask_key_name=key))
    reused = [i for number in sorted(sound) for i in saved.blocks_of(groups[number])]
    return GroupedReduction(tree_reduce(totals, combine, name, fan_in), outputs, reused, damaged)


def load_per_block(saved: SavedGroups, n_parts: int, name: str) -> list[Delayed] | None:
    """Return tasks that load the per-block outputs of a pass; None if one is missing or damaged."""
    files = [saved.output_file(i) for i in range(n_parts)]
    if not set(files) <= saved.folder.names():
        return None
    if not all(
        _check([[file] for file in files], [range(i, i + 1) for i in range(n_parts)], saved)
    ):
        return None
    token = uuid4().hex
    return [_load_task(name, token, i, saved, file) for i, file in enumerate(files)]


def _sound_groups(
    groups: list[range], saved: SavedGroups, with_outputs: bool
) -> tuple[set[int], list[int]]:
    """Return the numbers of the intact saved groups, and the numbers of the damaged groups."""
    names = saved.folder.names()
    present = [number for number in range(len(groups)) if _group_file(number) in names]
    files = [
        [_group_file(number), *(map(saved.output_file, groups[number]) if with_outputs else ())]
        for number in present
    ]
    checked = _check(files, [groups[number] for number in present], saved)
    answers = dict(zip(present, checked, strict=True))
    return {n for n, ok in answers.items() if ok}, [n for n, ok in answers.items() if not ok]


def _check(files: list[list[str]], blocks: list[range], saved: SavedGroups) -> tuple[bool, ...]:
    """Return, for each set of files, whether the files and the outputs of its blocks are intact.

    The workers check them, one task per set.
    """
    token, check = uuid4().hex, dask.delayed(_is_sound, pure=False)
    tasks = [
        check(saved, names, saved.blocks_of(numbers), dask_key_name=(f"check-saved-{token}", i))
        for i, (names, numbers) in enumerate(zip(files, blocks, strict=True))
    ]
    answers: tuple[bool, ...] = compute(*tasks)
    return answers


def _load_task(name: str, token: str, number: int, saved: SavedGroups, file: str) -> Delayed:
    """Return a task that loads a file; Dask runs it again if a worker is lost."""
    kind = file.partition(".")[0]
    load = dask.delayed(_load, pure=False)
    key = (f"{name}-load-{kind}-{token}", number)
    return load(saved.folder, file, saved.checkpoint_types, dask_key_name=key)


def _group_file(number: int) -> str:
    return f"group.{number:06d}"


def _save(folder: Checkpoint, name: str, part: Any, outputs: dict[str, Any]) -> Any:
    for file, value in outputs.items():
        folder.save(file, value)
    folder.save(name, part)  # last: the group file marks that all outputs are saved
    return part


def _load(folder: Checkpoint, name: str, checkpoint_types: Kinds) -> Any:
    return folder.load(name, checkpoint_types)


def _is_sound(saved: SavedGroups, names: list[str], blocks: range) -> bool:
    whole = all(saved.folder.is_sound(name) for name in names)
    return whole and (saved.outputs_valid is None or saved.outputs_valid(blocks))
