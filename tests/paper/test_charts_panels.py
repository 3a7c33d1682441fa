"""Regions of success and tightness of bounds, on grids small enough to count by hand."""

from __future__ import annotations

import pytest

from scrlm_dask.paper.charts import (
    Limit,
    Panel,
    Point,
    Stretch,
    Tightness,
    find_broken_promises,
    find_least_enough,
    find_limits,
    find_widest_stretch,
    measure_tightness,
)
from scrlm_dask.paper.framework import doubling, steps


def column(x: float, *successes: bool | None) -> list[Point]:
    """Return points (x, y) for y = 1, 2, 4, ...; y >= 4 is inside the bound, y >= 8 promised."""
    return [
        Point(x, 2.0**k, success, 2.0**k >= 4, 2.0**k >= 8) for k, success in enumerate(successes)
    ]


def make_panel(*columns: list[Point]) -> Panel:
    points = tuple(point for some in columns for point in some)
    return Panel("p vs N", "", "N", "p", points, ({10.0: 64.0, 20.0: 96.0, 30.0: 128.0},))


def test_tightness_by_hand() -> None:
    panel = make_panel(
        column(10, False, True, True, True),  # from 2 on: 64 / 2
        column(20, True, False, True, True),  # a success below a failure is not counted: 96 / 4
        column(30, True, True, True, False),  # the largest y failed, so the limit is unknown
    )
    assert find_limits(panel) == [Limit(10, 64, 2), Limit(20, 96, 4), Limit(30, 128, None)]
    assert [limit.factor for limit in find_limits(panel)] == [32, 24, None]
    assert measure_tightness(find_limits(panel)) == Tightness(24, 28, 32, counted=2, columns=3)
    assert find_broken_promises(panel) == [Point(30, 8, False, True, True)]


def test_factor_is_a_lower_bound_if_the_smallest_value_succeeds() -> None:
    panel = make_panel(
        column(10, True, True),  # the limit is 1 or less: the factor is at least 64
        column(20, False, True),  # 96 / 2
        column(30, False, True),  # 128 / 2
    )
    assert [limit.at_least for limit in find_limits(panel)] == [True, False, False]
    found = measure_tightness(find_limits(panel))
    assert found == Tightness(48, 64, 64, counted=3, columns=3, open_from=64)
    assert [found.is_at_least(value) for value in (48, 64)] == [False, True]


def test_bound_on_y_alone_promises_nothing() -> None:
    panel = make_panel(column(10, False, False, False, True))
    assert [point.inside for point in panel.points] == [False, False, True, True]
    assert find_broken_promises(panel) == []


def test_grid_without_success_has_no_factor() -> None:
    assert measure_tightness(find_limits(make_panel(column(10, False, False, False)))) is None


def test_missing_runs_do_not_count_as_success() -> None:
    assert find_least_enough(column(10, None, None, True, True)) == 4
    assert find_broken_promises(make_panel(column(10, None, None, None, None))) == []


@pytest.mark.parametrize(
    ("successes", "found"),
    [
        ((False, True, True, False), Stretch(5, 2, 4)),
        ((True, False, True, True), Stretch(5, 4, 8)),
        ((False, False, True, False), Stretch(5, 4, 4)),
        ((False, False, False, False), None),
    ],
)
def test_widest_stretch(successes: tuple[bool, ...], found: Stretch | None) -> None:
    assert find_widest_stretch(column(5, *successes)) == found


def test_axes() -> None:
    assert doubling(32, 256) == (32, 64, 128, 256)
    assert steps(4, 16, 2**0.5) == (4, 6, 8, 11, 16)
    assert steps(8, 20, 2.0) == (8, 16)
