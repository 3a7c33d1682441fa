"""What a run keeps of its work, by name: groups of its passes, and values that took a while."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import dask
from dask.delayed import Delayed

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import Listener, Note
from scrlm_dask.passes.groups import Check, Grouped, Saved, reduce_in_groups
from scrlm_dask.passes.trees import tree_reduce
from scrlm_dask.storage.checkpoints import Checkpoint, Kinds

# Dask's setting, in a file or as DASK_SCRLM__CHECKPOINT_SECONDS: an iteration of k-means that
# begins sooner than this after the last one that was kept is not kept, since it is soon repeated
_SETTING, _SECONDS = "scrlm.checkpoint-seconds", 5.0

_T = TypeVar("_T")


class Keeper:
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
    ) -> Grouped:
        """The parts as one, in groups that are saved where that is wanted."""
        if saved is None:
            return Grouped(tree_reduce(parts, combine, name, fan_in), list(beside), [], [])
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
        due = self._folder is not None and now - self._last_kept >= _interval()
        if due:
            self._last_kept = now
        return due

    def _warn(self, what: str) -> None:
        text = f"{what}, as it was saved, is damaged; it is computed again from what came before"
        self._listener(Note(text, warning=True))


def _interval() -> float:
    value = dask.config.get(_SETTING, _SECONDS)
    if not isinstance(value, int | float) or value < 0:
        raise InputError(f"Dask's setting {_SETTING} is {value!r}; give a number of seconds")
    return float(value)
