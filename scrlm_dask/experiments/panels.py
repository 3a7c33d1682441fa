"""A panel of the paper's region figures: where runs succeeded, and where theory says they must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Point:
    """A cell of the grid. `success` is None where it could not be run or was not asked for."""

    x: float
    y: float
    success: bool | None
    inside: bool  # the panel's bounds, which are on y alone
    promised: bool  # by all of Corollary 7, which also asks for numbers that a panel does not show


@dataclass(frozen=True)
class Panel:
    """A grid of points, y against x, and the theoretical bounds on y alone at each x."""

    name: str
    title: str
    x_label: str
    y_label: str
    points: tuple[Point, ...]
    bounds: tuple[dict[float, float], ...]  # x -> y, a line each
    log_y: bool = True

    @property
    def xs(self) -> list[float]:
        return sorted({point.x for point in self.points})

    @property
    def ys(self) -> list[float]:
        return sorted({point.y for point in self.points})

    def column(self, x: float) -> list[Point]:
        """The points over x, from below."""
        return sorted((point for point in self.points if point.x == x), key=lambda p: p.y)


@dataclass(frozen=True)
class Limit:
    """What is enough in theory, what was enough on the grid, and theory over that."""

    x: float
    theory: float
    observed: float | None  # None: not even the largest of the grid
    at_least: bool = False  # the least of the grid was enough: the factor may be larger

    @property
    def factor(self) -> float | None:
        return None if self.observed is None else self.theory / self.observed


@dataclass(frozen=True)
class Tightness:
    """By which factor a bound asks for more than was needed, over the columns of a panel.

    Columns in which not even the largest of the grid was enough are not counted.
    """

    least: float
    median: float
    most: float
    counted: int
    columns: int
    open_from: float | None = None  # the least factor that may be larger

    def is_at_least(self, value: float) -> bool:
        """Whether one of the three may be larger: a factor up to it may be."""
        return self.open_from is not None and self.open_from <= value


def least_enough(column: Sequence[Point]) -> float | None:
    """The least y from which on all of a column, from below, succeeded."""
    enough = None
    for point in reversed(column):
        if not point.success:
            break
        enough = point.y
    return enough


def limits(panel: Panel) -> list[Limit]:
    """A limit for each column, against the first of the panel's bounds."""
    return [_limit(panel.bounds[0], panel.column(x)) for x in panel.xs]


def _limit(bound: dict[float, float], column: Sequence[Point]) -> Limit:
    enough, lowest = least_enough(column), column[0]
    return Limit(lowest.x, bound[lowest.x], enough, at_least=enough == lowest.y)


def tightness(found: Sequence[Limit]) -> Tightness | None:
    """None where no column of the grid succeeded."""
    factors = [limit.factor for limit in found if limit.factor is not None]
    if not factors:
        return None
    unsure = (limit.factor for limit in found if limit.at_least and limit.factor is not None)
    return Tightness(
        min(factors),
        median(factors),
        max(factors),
        len(factors),
        len(found),
        min(unsure, default=None),
    )


def broken_promises(panel: Panel) -> list[Point]:
    """Points where theory promises success and there was none."""
    return [point for point in panel.points if point.promised and point.success is False]


@dataclass(frozen=True)
class Stretch:
    """Neighbouring points of a column that all succeeded, from `low` to `high`."""

    x: float
    low: float
    high: float


def widest_stretch(column: Sequence[Point]) -> Stretch | None:
    """The widest of a column, from below; the first where two are as wide."""
    stretches: list[Stretch] = []
    for k, point in enumerate(column):
        if point.success and k and column[k - 1].success:
            stretches[-1] = Stretch(point.x, stretches[-1].low, point.y)
        elif point.success:
            stretches.append(Stretch(point.x, point.y, point.y))
    return max(stretches, key=lambda s: s.high - s.low, default=None)
