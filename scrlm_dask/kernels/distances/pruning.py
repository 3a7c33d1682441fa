"""How far centers lie from each other: a row near enough to one cannot be nearer to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.distances.points import (
    LARGEST_SQ_NORM,
    Axes,
    MappedRows,
    Points,
    Tile,
    map_like,
    map_rows,
    move_origin,
    prepare_points,
    tile_rows,
    tiles,
    underflow,
    with_coordinates,
    with_products,
)
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.distances.projections import (
    DENSE,
    AxisFrame,
    ProjectedPoints,
    ProjectedRows,
    Subspace,
    principal_axes,
    project_block,
    project_points,
)

MOST_CENTERS = 4096  # more are rarely worth all distances between them


_ROWS = 128


def half_center_distances(centers: Points) -> NDArray[np.float64] | None:
    """Half the distance (k,) of each center to the next one, or a little less.

    By the triangle inequality a row closer than that to a center is farther from every other. None
    where there are too many centers, or some too large for float32.
    """
    k, p = centers.mapped.shape
    if k > MOST_CENTERS or not centers.sq_norms.max(initial=0.0) < LARGEST_SQ_NORM:
        return None
    least = np.empty(k)
    for start in range(0, k, _ROWS):
        here = slice(start, min(start + _ROWS, k))
        products = (centers.mapped[here] @ centers.mapped.T).astype(np.float64)
        sq_sums = centers.sq_norms[here, None] + centers.sq_norms
        sq_distances = (1.0 - centers.error_factor) * sq_sums - 2.0 * products
        sq_distances[np.arange(here.stop - start), np.arange(start, here.stop)] = np.inf
        least[here] = sq_distances.min(axis=1, initial=np.inf)
    return np.asarray(0.5 * np.sqrt(np.maximum(least - underflow(p), 0.0)))


Prune: TypeAlias = int | Literal["auto"]  # axes of the shadows; 0: none are cast


# how many points may be near each of some rows, as their shadows say
Survivors: TypeAlias = Callable[[MappedRows, ProjectedRows, ProjectedPoints], NDArray[np.int64]]


# with one more coordinate each, products are quick
_AXES_LADDER = (15, 23, 31, 47, 63, 95, 127, 191, 255)


MOST_AXES = _AXES_LADDER[-1]


# Where rows spread alike in all directions axes are worth no more than features, and cost more.
_FEATURES_LADDER = (0.05, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8)  # shares of all features


_MULTIPLE = 16


_LEAST_POINTS, _LEAST_FEATURES = 64, 48


TRIED_ROWS = _TRIED_ROWS = 64


_LEAST_ROWS = 16 * _TRIED_ROWS  # of a block, or trying would cost more than it saves


_THEN = ", then "  # between a glance and the cut that follows it


_GLANCES = (Subspace(15), Subspace(31), Subspace(15, principal=True), Subspace(31, principal=True))


# Costs in units of a multiply-add inside a matrix product (measured, see benchmarks/RESULTS.md):
_LOOK = 22  # to look at a pair's product


_SHORT_PRODUCT = 18  # to write a product of few terms, beside the terms


_FINISH = 7.0  # a feature of a pair that is finished by itself


_GAIN = 0.9  # shadows must cost less than this share of the whole products


@dataclass(frozen=True)
class Pruned:
    """What the shadows left to do: a mergeable part."""

    cuts: dict[str, int] = field(default_factory=dict)  # blocks by their cut
    pairs: int = 0  # rows times points
    finished: int = 0  # pairs that were finished one by one
    dense: int = 0  # pairs that were finished by whole products

    def record(self) -> dict[str, Any]:
        total = max(self.pairs, 1)
        return {
            "blocks": dict(sorted(self.cuts.items())),
            "pairs": self.pairs,
            "finished_share": self.finished / total,
            "dense_share": self.dense / total,
        }


def along_axes(pruned: Pruned) -> bool:
    """Whether rows were projected on principal axes."""
    return any("principal" in cuts for cuts in pruned.cuts)  # as `Cut` calls them


def at_a_glance(pruned: Pruned) -> bool:
    """Whether some block was seen at a glance first."""
    return any(_THEN in cuts for cuts in pruned.cuts)


def merge_pruned(a: Pruned, b: Pruned) -> Pruned:
    cuts = {cut: a.cuts.get(cut, 0) + b.cuts.get(cut, 0) for cut in a.cuts | b.cuts}
    return Pruned(cuts, a.pairs + b.pairs, a.finished + b.finished, a.dense + b.dense)


def prepare_with_axes(
    raw: NDArray[Any], affine: AffineMap, frame: AxisFrame | None = None
) -> Points:
    """`prepare_points`, with principal axes if there are so many that pruning may pay.

    Axes of points that were not far from these will do, too, and save the time to find them.
    """
    points = prepare_points(raw, affine)
    k, p = points.mapped.shape
    if k < _LEAST_POINTS or p < _LEAST_FEATURES:
        return points
    if frame is None:
        frame = AxisFrame(principal_axes(points.mapped, min(MOST_AXES, p // 2)), points.shift)
    coordinates = points.mapped @ frame.directions
    if not np.isfinite(coordinates).all():
        return points
    return replace(points, axes=Axes(frame.directions, coordinates, frame.origin))


def points_frame(points: Points) -> AxisFrame | None:
    """The axes of some points, for others that come of them."""
    return None if points.axes is None else AxisFrame(points.axes.directions, points.axes.origin)


def prepare_centers(
    raw: NDArray[Any], affine: AffineMap, frame: AxisFrame | None = None, glance: bool = True
) -> Points:
    """`prepare_with_axes` for points that many rows will be labelled by, if asked at a glance."""
    centers = prepare_with_axes(raw, affine, frame)
    if centers.axes is None or not glance:
        return centers
    return replace(centers, half_gaps=half_center_distances(centers))


@dataclass(frozen=True)
class Subspaces:
    """What a block is seen along: first at a glance, unless that is of no axes, then properly."""

    cut: Subspace
    glance: Subspace = DENSE

    def __str__(self) -> str:
        return f"{self.glance}{_THEN}{self.cut}" if self.glance.n_axes else str(self.cut)


def choose_subspaces(
    block: NDArray[Any],
    points: Points,
    prune: Prune,
    work: Work,
    glance: QuickCheck | None = None,
    held: NDArray[np.float32] | None = None,
) -> Subspaces:
    """The cheapest cuts for a block (rows, p), or the one that is asked for."""
    if len(points.mapped) < _FINISH:  # more rows than that would be gone through twice
        return Subspaces(DENSE)
    if prune != "auto":
        return Subspaces(_requested_subspace(points, prune))
    if points.axes is None or len(block) < _LEAST_ROWS:
        return Subspaces(DENSE)
    tried = _tried_rows(block, points, held)
    if not (tried.sq_norms < LARGEST_SQ_NORM).all():
        return Subspaces(DENSE)  # whoever goes through the rows will say which one is bad
    if glance is None or points.half_gaps is None:
        return Subspaces(_cheapest_subspace(tried, points, work.survivors))
    first, left = _cheapest_quick_check(tried, points, glance)
    cut = _cheapest_subspace(tried.take(left), points, work.survivors) if len(left) else DENSE
    if 0 < cut.n_axes <= 2 * first.n_axes:
        return Subspaces(cut)  # as good as a glance by itself
    return Subspaces(cut, first)


def _tried_rows(
    block: NDArray[Any], points: Points, held: NDArray[np.float32] | None
) -> MappedRows:
    step = len(block) // _TRIED_ROWS
    tried = map_like(block[::step], points)
    if held is None:
        return tried
    return with_coordinates(tried, held[::step], move_origin(points, held.shape[1]))


def _cheapest_quick_check(
    tried: MappedRows, points: Points, glance: QuickCheck
) -> tuple[Subspace, NDArray[np.int64]]:
    """The glance that saves most if all else is dense, and the rows that it leaves.

    No axes, and all rows, if none saves anything.
    """
    k, p = points.mapped.shape
    dense = float(k * (p + _LOOK))
    best, rest, least = DENSE, np.arange(len(tried.raw)), _GAIN * dense
    for cut in (cut for cut in _GLANCES if cut.n_axes < p):
        looking = subspace_cost(cut, np.zeros(1, np.int64), k, p, _n_kept(tried))
        if looking < least:
            seen = project_block(tried, project_points(points, cut))
            left = np.flatnonzero(~glance.is_settled(tried, seen))
            cost = looking + dense * len(left) / len(tried.raw)
            if cost < least:
                best, rest, least = cut, left, cost
    return best, rest


def _cheapest_subspace(tried: MappedRows, points: Points, survivors: Survivors) -> Subspace:
    k, p = points.mapped.shape
    best, least = DENSE, _GAIN * k * (p + _LOOK)
    none, n_held = np.zeros(1, np.int64), _n_kept(tried)
    for ladder in _ladders(points):
        finishes: dict[int, float] = {}  # by place on the ladder
        for i in _by_halves(len(ladder)):
            # what a longer one leaves open nearly every shorter one does, too
            finish = max((finishes[j] for j in finishes if j > i), default=0.0)
            if subspace_cost(ladder[i], none, k, p, n_held) + finish >= least:
                continue
            shadows = project_points(points, ladder[i])
            counts = survivors(tried, project_block(tried, shadows), shadows)
            cost = subspace_cost(ladder[i], counts, k, p, n_held)
            finishes[i] = finish_cost(counts, k, p)
            if cost < least:
                best, least = ladder[i], cost
    return best


def _by_halves(n: int) -> Iterator[int]:
    """Numbers below n, each once: the middle one, the last, those between, and then the lower."""
    if n > 0:
        middle = n // 2
        yield middle
        if middle < n - 1:
            yield n - 1
            yield from (middle + 1 + i for i in _by_halves(n - middle - 2))
        yield from _by_halves(middle)


def _n_kept(rows: MappedRows) -> int:
    return 0 if rows.coordinates is None else rows.coordinates.shape[1]


def subspace_cost(
    cut: Subspace, survivors: NDArray[np.int64], n_points: int, n_features: int, n_held: int = 0
) -> float:
    """Cost of a row, from how many points survive for each of some rows.

    Along `n_held` axes rows need not be projected.
    """
    projection = cut.n_axes * n_features if cut.principal and cut.n_axes > n_held else 0
    looking = n_points * (cut.n_axes + _SHORT_PRODUCT + _LOOK)
    return projection + looking + finish_cost(survivors, n_points, n_features)


def finish_cost(survivors: NDArray[np.int64], n_points: int, n_features: int) -> float:
    """What of a row's cost is spent on those that survive, one by one or by whole products."""
    finish = np.where(
        survivors > max_possible_points(n_points),
        float(n_points * (n_features + _LOOK)),
        survivors * (_FINISH * n_features),
    )
    return float(finish.mean())


def max_possible_points(n_points: int) -> int:
    """A row with more of them is cheaper to finish by whole products."""
    return int(n_points / _FINISH)


class Work(Protocol):
    """What a pass does with a block, row by row; `prune_block` goes through it."""

    def survivors(
        self, rows: MappedRows, seen: ProjectedRows, shadows: ProjectedPoints
    ) -> NDArray[np.int64]:
        """How many points may matter to each row, as far as the shadows say."""

    def add(self, tile: Tile) -> None:
        """Do rows by their whole products."""

    def add_near(
        self, rows: MappedRows, seen: ProjectedRows, shadows: ProjectedPoints
    ) -> tuple[NDArray[np.int64], int]:
        """Do rows by the pairs that their shadows leave open.

        Returns the rows with too many of them, which are left, and the number of pairs done.
        """


class QuickCheck(Protocol):
    """Work of which shadows along a few axes may be enough for some rows."""

    def is_settled(self, rows: MappedRows, seen: ProjectedRows) -> NDArray[np.bool_]:
        """Which of the rows are."""

    def settle(self, rows: MappedRows, seen: ProjectedRows) -> NDArray[np.int64]:
        """Do those rows; returns the others, by their place among the rows."""


def prune_block(
    block: NDArray[Any],
    points: Points,
    prune: Prune,
    work: Work,
    glance: QuickCheck | None = None,
    held: NDArray[np.float32] | None = None,
) -> Pruned:
    """Do the work on a block (rows, p) in the cheapest way; says what was left to do.

    `held` (rows, q) are coordinates that `project_rows` gave for points with the same axes.
    """
    held = held if points.axes is not None else None
    cuts = choose_subspaces(block, points, prune, work, glance, held)
    n_points = len(points.mapped)
    pairs = len(block) * n_points
    if cuts == Subspaces(DENSE):
        for tile in tiles(block, points):
            work.add(tile)
        return Pruned({str(cuts): 1}, pairs, 0, pairs)
    glanced, shadows = (project_points(points, cut) for cut in (cuts.glance, cuts.cut))
    hard, finished = _DenseRows(points), 0
    products = np.empty((min(tile_rows(n_points), len(block)), n_points), np.float32)
    for rows in map_rows(block, points, held):
        which = np.arange(len(rows.raw))
        if glance is not None and cuts.glance.n_axes:
            which = glance.settle(rows, project_block(rows, glanced, out=products))
        if cuts.cut.n_axes:
            seen = project_block(rows, shadows, which, products)
            which, count = work.add_near(rows, seen, shadows)
            finished += count
        for tile in hard.add(rows, which):
            work.add(tile)
    for tile in hard.rest():
        work.add(tile)
    return Pruned({str(cuts): 1}, pairs, finished, hard.total * n_points)


class _DenseRows:
    """Rows that too many points may be near to, until there are enough for a whole product."""

    def __init__(self, points: Points) -> None:
        self._points = points
        self._kept: list[MappedRows] = []
        self._height = tile_rows(len(points.mapped))
        self.total = 0

    def add(self, rows: MappedRows, which: NDArray[np.int64]) -> Iterator[Tile]:
        """Keep some of the rows; gives a tile when one is full."""
        if len(which) == 0:
            return
        self._kept.append(rows.take(which))
        self.total += len(which)
        if sum(len(kept.raw) for kept in self._kept) >= self._height:
            joined = _joined(self._kept)
            order = np.arange(len(joined.raw))
            self._kept = [joined.take(order[self._height :])]
            yield with_products(joined.take(order[: self._height]), self._points)

    def rest(self) -> Iterator[Tile]:
        """The rows that still wait, as a tile."""
        if self._kept:
            kept, self._kept = self._kept, []
            yield with_products(_joined(kept), self._points)


def _joined(parts: list[MappedRows]) -> MappedRows:
    return MappedRows(
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.raw for part in parts]),
        np.concatenate([part.inv_norms for part in parts]),
        np.concatenate([part.sq_norms for part in parts]),
        np.concatenate([part.mapped for part in parts]),
    )


def _requested_subspace(points: Points, n_axes: int) -> Subspace:
    most = points.mapped.shape[1]
    if points.axes is None:
        return Subspace(min(n_axes, most))
    return Subspace(min(n_axes, points.axes.directions.shape[1]), principal=n_axes > 0)


def _ladders(points: Points) -> Iterator[list[Subspace]]:
    """Cuts that may be tried, each longer than the one before it and along the same axes."""
    if points.axes is None:
        return
    p, most = points.axes.directions.shape
    yield [Subspace(n, principal=True) for n in _AXES_LADDER if n <= most]
    widths = sorted({max(1, round(share * p / _MULTIPLE)) for share in _FEATURES_LADDER})
    yield [Subspace(_MULTIPLE * width - 1) for width in widths if _MULTIPLE * width <= p]
