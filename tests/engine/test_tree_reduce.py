"""The tree reduction of the parts of blocks."""

from __future__ import annotations

from functools import reduce
from typing import Any

import dask
import dask.array as da
import pytest
from backends import backend
from dask.highlevelgraph import HighLevelGraph
from hypothesis import given, settings
from hypothesis import strategies as st

from scrlm_dask.engine.tree_reduce import FAN_IN, fan_in_for, tree_reduce


def pair(a: Any, b: Any) -> Any:
    return f"({a} {b})"


def reduced(n_parts: int, fan_in: int) -> Any:
    parts = [dask.delayed(str(i)) for i in range(n_parts)]
    with backend("one thread"):
        return tree_reduce(parts, pair, "test", fan_in).compute()


def test_order_by_hand() -> None:
    assert reduced(1, 2) == "0"
    assert reduced(5, 2) == "(((0 1) (2 3)) 4)"
    assert reduced(5, 3) == "(((0 1) 2) (3 4))"


@settings(max_examples=5)
@given(n_parts=st.integers(1, 30), fan_in=st.sampled_from([2, 3, 8]))
def test_equals_a_plain_loop_over_levels(n_parts: int, fan_in: int) -> None:
    level = [str(i) for i in range(n_parts)]
    while len(level) > 1:
        level = [reduce(pair, level[i : i + fan_in]) for i in range(0, len(level), fan_in)]
    assert reduced(n_parts, fan_in) == level[0]


def test_reductions_of_the_same_name_are_independent() -> None:
    first, second = (
        tree_reduce([dask.delayed(text) for text in texts], pair, "same") for texts in ("ab", "cd")
    )
    with backend("one thread"):
        assert dask.compute(first, second) == ("(a b)", "(c d)")


def test_large_parts_are_merged_in_pairs() -> None:
    assert fan_in_for(2**20) == FAN_IN == 8
    assert fan_in_for(2**20 + 1) == 2


def test_building_a_tree_does_not_search_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of the graph for each node takes time that grows with the square of the parts."""
    parts = list(da.zeros((64, 1), chunks=(1, 1)).to_delayed().ravel())
    searches: list[object] = []
    cull = HighLevelGraph.cull

    def counted(graph: HighLevelGraph, keys: Any) -> HighLevelGraph:
        searches.append(keys)
        return cull(graph, keys)

    monkeypatch.setattr(HighLevelGraph, "cull", counted)
    total = tree_reduce(parts, pair, "test")
    assert searches == []
    with backend("one thread"):
        assert total.compute().count("0.") == 64
