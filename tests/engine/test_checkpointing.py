"""Checkpoints of passes, in groups of blocks, and of named values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import pytest
from backends import backend
from hypothesis import given
from hypothesis import strategies as st

from scrlm_dask.engine.checkpointing import (
    MAX_GROUPS,
    CheckpointScope,
    SavedGroups,
    group_size,
    load_per_block,
    reduce_in_groups,
)
from scrlm_dask.engine.tree_reduce import tree_reduce
from scrlm_dask.events import Note
from scrlm_dask.storage.checkpoints import Checkpoint
from scrlm_dask.storage.locations import locate


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with backend("one thread"):
        yield


@given(st.integers(1, 5000), st.sampled_from([2, 8]))
def test_groups_are_whole_subtrees(n_parts: int, fan_in: int) -> None:
    size = group_size(n_parts, fan_in)
    assert -(-n_parts // size) <= MAX_GROUPS
    assert size == 1 or -(-n_parts // (size // fan_in)) > MAX_GROUPS
    while size > 1:
        assert size % fan_in == 0
        size //= fan_in


def test_groups_do_not_change_the_merge_order() -> None:
    """The order of merging, written as text, does not depend on groups."""
    parts = [dask.delayed(str(i)) for i in range(300)]

    def merged(a: str, b: str) -> str:
        return f"({a} {b})"

    size = group_size(300, 8)
    groups = [tree_reduce(parts[i : i + size], merged, "a") for i in range(0, 300, size)]
    assert size == 64
    assert tree_reduce(groups, merged, "b").compute() == tree_reduce(parts, merged, "c").compute()


@dataclass(frozen=True)
class Order:
    """The order in which parts are combined, as text."""

    text: str


def combine(a: Order, b: Order) -> Order:
    return Order(f"({a.text} {b.text})")


class Parts:
    """One task per block; `computed` lists the calls."""

    def __init__(self, n_parts: int) -> None:
        self.computed: list[int] = []
        self.tasks = [dask.delayed(self.part)(i) for i in range(n_parts)]

    def part(self, i: int) -> Order:
        self.computed.append(i)
        return Order(str(i))


def scope(path: Path) -> tuple[CheckpointScope, list[Any]]:
    events: list[Any] = []
    return CheckpointScope(Checkpoint(locate(path)), events.append), events


N = 70  # with a fan-in of 2 and at most 32 groups, this makes groups of 4 blocks
GROUP = 4


def reduced(path: Path, n_parts: int = N) -> tuple[str, Parts, CheckpointScope, list[Any]]:
    parts, (here, events) = Parts(n_parts), scope(path)
    saved = here.next_groups("loss", (Order,))
    total = here.reduce(parts.tasks, combine, "loss", 2, saved).total.compute()
    return total.text, parts, here, events


def test_second_attempt_reuses_all_groups(tmp_path: Path) -> None:
    assert group_size(N, 2) == GROUP
    first, parts, here, _ = reduced(tmp_path)
    assert sorted(parts.computed) == list(range(N))
    assert here.reused == {}
    alone = Parts(N)
    assert first == tree_reduce(alone.tasks, combine, "alone", 2).compute().text
    again, parts, here, events = reduced(tmp_path)
    assert again == first
    assert parts.computed == []
    assert here.reused == {"loss": N}
    assert events == []


@pytest.mark.parametrize("damage", [b"", b"not a checkpoint"])
def test_missing_or_damaged_group_is_recomputed(tmp_path: Path, damage: bytes) -> None:
    first, *_ = reduced(tmp_path)
    third = sorted((tmp_path / "loss-1").iterdir())[2]
    assert third.name == "group.000002"
    third.write_bytes(damage) if damage else third.unlink()
    again, parts, here, events = reduced(tmp_path)
    assert again == first
    assert sorted(parts.computed) == list(range(2 * GROUP, 3 * GROUP))
    assert here.reused == {"loss": N - GROUP}
    warnings = [event.text for event in events if isinstance(event, Note) and event.warning]
    assert len(warnings) == bool(damage)
    assert all("group 2" in text and "loss" in text for text in warnings)


def test_groups_with_missing_outputs_are_recomputed(tmp_path: Path) -> None:
    folder = Checkpoint(locate(tmp_path)) / "assign"
    for valid, expected in ((True, list(range(6))), (True, []), (False, [2])):
        parts = Parts(6)
        saved = SavedGroups(folder, (Order,), lambda blocks, valid=valid: valid or 2 not in blocks)
        found = reduce_in_groups(parts.tasks, combine, "assign", 2, saved)
        assert found.total.compute().text == "(((0 1) (2 3)) (4 5))"
        assert sorted(parts.computed) == expected


def test_outputs_of_blocks_are_saved_with_their_group(tmp_path: Path) -> None:
    saved = SavedGroups(Checkpoint(locate(tmp_path)) / "step", (Order,))
    saved.folder.make()
    assert load_per_block(saved, 5, "step") is None
    parts = Parts(5)
    outputs = [dask.delayed(Order)(f"output {i}") for i in range(5)]
    reduce_in_groups(parts.tasks, combine, "step", 2, saved, outputs).total.compute()
    loaded = load_per_block(saved, 5, "step")
    assert loaded is not None
    assert [value.text for value in dask.compute(*loaded)] == [f"output {i}" for i in range(5)]
    assert load_per_block(saved, 6, "step") is None
    others = [dask.delayed(Order)("other") for _ in range(5)]
    again = reduce_in_groups(parts.tasks, combine, "step", 2, saved, others)
    found = dask.compute(*again.per_block_outputs)
    assert [value.text for value in found] == [f"output {i}" for i in range(5)]


def test_repeated_passes_are_numbered(tmp_path: Path) -> None:
    here, _ = scope(tmp_path)
    names = [("step", ""), ("step", "abc"), ("loss", "")]
    groups = [here.next_groups(name, (Order,), input_digest=digest) for name, digest in names]
    found = [saved.folder for saved in groups if saved is not None]
    folder = Checkpoint(locate(tmp_path))
    assert found == [folder / "step-1", folder / "step-2-abc", folder / "loss-1"]
    assert here.next_groups("step", None) is None


def test_values_are_computed_once(tmp_path: Path) -> None:
    computed = []

    def compute() -> Order:
        computed.append(1)
        return Order("value")

    for attempt in range(2):
        here, _ = scope(tmp_path)
        assert here.load("centers", (Order,)) == (Order("value") if attempt else None)
        assert here.load_or_compute("centers", (Order,), compute) == Order("value")
        assert "centers" in here.names()
    assert computed == [1]
    assert here.reused == {"centers": 1}
    here.delete("centers")
    assert "centers" not in here.names()


def test_damaged_value_is_recomputed(tmp_path: Path) -> None:
    scope(tmp_path)[0].save("centers", Order("value"))
    (tmp_path / "centers").write_bytes(b"nothing")
    here, events = scope(tmp_path)
    assert here.load_or_compute("centers", (Order,), lambda: Order("new")) == Order("new")
    (note,) = events
    assert note.warning
    assert "centers" in note.text
    assert here.reused == {}


def test_nested_steps_are_numbered_separately(tmp_path: Path) -> None:
    names = []

    def compute() -> Order:
        names.append(here.next_groups("loss", (Order,)))
        return Order("value")

    for _ in range(2):  # the second attempt skips the steps inside
        here, _ = scope(tmp_path)
        here.load_or_compute("start", (Order,), compute)
        names.append(here.next_groups("loss", (Order,)))
    folder = Checkpoint(locate(tmp_path))
    inside, after, again = (saved.folder for saved in names if saved is not None)
    assert inside == folder / "start-steps" / "loss-1"
    assert after == again == folder / "loss-1"


def test_no_checkpoints_without_a_folder() -> None:
    here = CheckpointScope(None, lambda event: None)
    assert here.next_groups("loss", (Order,)) is None
    assert here.load_or_compute("centers", (Order,), lambda: Order("new")) == Order("new")
    here.save("centers", Order("new"))
    here.delete("centers")
    assert here.load("centers", (Order,)) is None
    assert here.names() == set()
    assert not here.is_due()


def test_checkpoints_are_due_at_intervals(tmp_path: Path) -> None:
    here, _ = scope(tmp_path)
    with dask.config.set({"scrlm.checkpoint-seconds": 3600}):
        assert here.is_due()
        assert not here.is_due()
    with dask.config.set({"scrlm.checkpoint-seconds": 0}):
        assert here.is_due()
        assert here.is_due()
