"""Pruning: skip most pairs of rows and points, without changing results.

A block is projected onto few axes. Lower bounds on distances rule out most pairs; only the
remaining pairs are finished, that is, computed with all features. A quick check labels a row that
is nearer to a center than half of the center's distance to the nearest other center. The cheapest
method is chosen for each block by trying a few of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.distances import projections
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

MOST_CENTERS = 4096  # with more, computing all distances between centers rarely pays
_ROWS = 128


def half_center_distances(centers: Points) -> NDArray[np.float64] | None:
    """Return half the distance (k,) of each center to the nearest other one, or slightly less.

    By the triangle inequality, a row closer to a center than this half distance is farther from all
    other centers.
    Returns None if there are too many centers, or values too large for float32.
    """
    k, p = centers.mapped.shape
    if k > MOST_CENTERS or not centers.sq_norms.max(initial=0.0) < LARGEST_SQ_NORM:
        return None
    least = np.empty(k)
    for start in range(0, k, _ROWS):
        span = slice(start, min(start + _ROWS, k))
        products = (centers.mapped[span] @ centers.mapped.T).astype(np.float64)
        sq_sums = centers.sq_norms[span, None] + centers.sq_norms
        sq_distances = (1.0 - centers.error_factor) * sq_sums - 2.0 * products
        sq_distances[np.arange(span.stop - start), np.arange(start, span.stop)] = np.inf
        least[span] = sq_distances.min(axis=1, initial=np.inf)
    return np.asarray(0.5 * np.sqrt(np.maximum(least - underflow(p), 0.0)))


Prune: TypeAlias = int | Literal["auto"]  # number of axes to project onto; 0: no projection
# Counts the points that may be near each row, according to projections.
PossiblePoints: TypeAlias = Callable[
    [MappedRows, projections.ProjectedRows, projections.ProjectedPoints], NDArray[np.int64]
]
# Numbers of axes; with the additional coordinate, multiples of 8, for which products are fast.
_AXES_LADDER = (15, 23, 31, 47, 63, 95, 127, 191, 255)
MOST_AXES = _AXES_LADDER[-1]
# If rows spread equally in all directions, principal axes cost more than features and save no more.
_FEATURES_LADDER = (0.05, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8)  # shares of all features
_MULTIPLE = 16
_LEAST_POINTS, _LEAST_FEATURES = 64, 48
TRIED_ROWS = _TRIED_ROWS = 64
_LEAST_ROWS = 16 * _TRIED_ROWS  # per block; with fewer, trying subspaces costs more than it saves
_THEN = ", then "  # between a quick check and the subspace that follows it
_QUICK_CHECKS = (
    projections.Subspace(15),
    projections.Subspace(31),
    projections.Subspace(15, principal=True),
    projections.Subspace(31, principal=True),
)
# Costs in units of a multiply-add inside a matrix product (measured, see benchmarks/RESULTS.md):
_LOOK = 22  # comparing the product of a pair
_SHORT_PRODUCT = 18  # writing a product of few terms, in addition to the terms
_FINISH = 7.0  # per feature of a pair that is finished individually
_GAIN = 0.9  # projections must cost less than this share of the cost of full products


@dataclass(frozen=True)
class Pruned:
    """Counts of all pairs, and of pairs that pruning did not rule out: a mergeable part.

    The field names are part of the checkpoint format.
    """

    cuts: dict[str, int] = field(
        default_factory=dict
    )  # number of blocks by the name of their subspaces
    pairs: int = 0  # rows times points
    finished: int = 0  # pairs that were finished individually
    dense: int = 0  # pairs that were finished by full products

    def record(self) -> dict[str, Any]:
        """Return the counts and shares for the record of a run."""
        total = max(self.pairs, 1)
        return {
            "blocks": dict(sorted(self.cuts.items())),
            "pairs": self.pairs,
            "finished_share": self.finished / total,
            "dense_share": self.dense / total,
        }


def along_axes(pruned: Pruned) -> bool:
    """Return whether rows were projected onto principal axes."""
    return any("principal" in name for name in pruned.cuts)  # see `Subspace.__str__`


def used_quick_check(pruned: Pruned) -> bool:
    """Return whether rows of some block were labelled by a quick check."""
    return any(_THEN in name for name in pruned.cuts)


def merge_pruned(a: Pruned, b: Pruned) -> Pruned:
    """Add up the counts of two parts."""
    blocks = {name: a.cuts.get(name, 0) + b.cuts.get(name, 0) for name in a.cuts | b.cuts}
    return Pruned(blocks, a.pairs + b.pairs, a.finished + b.finished, a.dense + b.dense)


def prepare_with_axes(
    raw: NDArray[Any], affine: AffineMap, frame: projections.AxisFrame | None = None
) -> Points:
    """Prepare points, with principal axes if there are enough points for pruning to pay.

    `frame` has the axes of earlier points that were close to these; reusing the axes saves time.
    """
    points = prepare_points(raw, affine)
    k, p = points.mapped.shape
    if k < _LEAST_POINTS or p < _LEAST_FEATURES:
        return points
    if frame is None:
        frame = projections.AxisFrame(
            projections.principal_axes(points.mapped, min(MOST_AXES, p // 2)), points.shift
        )
    coordinates = points.mapped @ frame.directions
    if not np.isfinite(coordinates).all():
        return points
    return replace(points, axes=Axes(frame.directions, coordinates, frame.origin))


def points_frame(points: Points) -> projections.AxisFrame | None:
    """Return the axes of points, to be reused for points derived from them."""
    return (
        None
        if points.axes is None
        else projections.AxisFrame(points.axes.directions, points.axes.origin)
    )


def prepare_centers(
    raw: NDArray[Any],
    affine: AffineMap,
    frame: projections.AxisFrame | None = None,
    quick_check: bool = True,
) -> Points:
    """Prepare centers for labelling many rows, with half distances if `quick_check`."""
    centers = prepare_with_axes(raw, affine, frame)
    if centers.axes is None or not quick_check:
        return centers
    return replace(centers, half_distances=half_center_distances(centers))


@dataclass(frozen=True)
class Subspaces:
    """The main subspace of a block, and the subspace of its quick check.

    There is no quick check if its subspace has 0 axes.
    """

    main: projections.Subspace
    quick_check: projections.Subspace = projections.DENSE

    def __str__(self) -> str:
        return (
            f"{self.quick_check}{_THEN}{self.main}" if self.quick_check.n_axes else str(self.main)
        )


def choose_subspaces(
    block: NDArray[Any],
    points: Points,
    prune: Prune,
    work: Work,
    quick_check: QuickCheck | None = None,
    coordinates: NDArray[np.float32] | None = None,
) -> Subspaces:
    """Return the cheapest subspaces for a block (rows, p), or the subspace requested by `prune`."""
    if len(points.mapped) < _FINISH:  # nearly all rows would be finished by full products
        return Subspaces(projections.DENSE)
    if prune != "auto":
        return Subspaces(_requested_subspace(points, prune))
    if points.axes is None or len(block) < _LEAST_ROWS:
        return Subspaces(projections.DENSE)
    tried = _tried_rows(block, points, coordinates)
    if not (tried.sq_norms < LARGEST_SQ_NORM).all():
        return Subspaces(projections.DENSE)  # the bad row is reported when it is processed
    if quick_check is None or points.half_distances is None:
        return Subspaces(_cheapest_subspace(tried, points, work.count_possible_points))
    first, left = _cheapest_quick_check(tried, points, quick_check)
    main = projections.DENSE
    if len(left):
        main = _cheapest_subspace(tried.take(left), points, work.count_possible_points)
    if 0 < main.n_axes <= 2 * first.n_axes:
        return Subspaces(main)  # the main subspace is about as cheap as the quick check
    return Subspaces(main, first)


def _tried_rows(
    block: NDArray[Any], points: Points, coordinates: NDArray[np.float32] | None
) -> MappedRows:
    step = len(block) // _TRIED_ROWS
    tried = map_like(block[::step], points)
    if coordinates is None:
        return tried
    return with_coordinates(tried, coordinates[::step], move_origin(points, coordinates.shape[1]))


def _cheapest_quick_check(
    tried: MappedRows, points: Points, quick_check: QuickCheck
) -> tuple[projections.Subspace, NDArray[np.int64]]:
    """Return the subspace of the quick check that saves most, and the tried rows that it leaves.

    The cost assumes that rows not labelled by the quick check are finished by full products.
    Returns `DENSE` and all rows if no quick check saves anything.
    """
    k, p = points.mapped.shape
    dense = float(k * (p + _LOOK))
    best, rest, least = projections.DENSE, np.arange(len(tried.raw)), _GAIN * dense
    for subspace in (subspace for subspace in _QUICK_CHECKS if subspace.n_axes < p):
        looking = subspace_cost(subspace, np.zeros(1, np.int64), k, p, _n_known(tried))
        if looking < least:
            seen = projections.project_block(tried, projections.project_points(points, subspace))
            left = np.flatnonzero(~quick_check.is_certain(tried, seen))
            cost = looking + dense * len(left) / len(tried.raw)
            if cost < least:
                best, rest, least = subspace, left, cost
    return best, rest


def _cheapest_subspace(
    tried: MappedRows, points: Points, count_possible: PossiblePoints
) -> projections.Subspace:
    k, p = points.mapped.shape
    best, least = projections.DENSE, _GAIN * k * (p + _LOOK)
    none, n_known = np.zeros(1, np.int64), _n_known(tried)
    for ladder in _ladders(points):
        finishes: dict[int, float] = {}  # cost of finishing, by position on the ladder
        for i in _by_halves(len(ladder)):
            # A shorter projection rules out hardly any pair that a longer one does not rule out, so
            # the cost of finishing after a longer one is a lower bound.
            finish = max((finishes[j] for j in finishes if j > i), default=0.0)
            if subspace_cost(ladder[i], none, k, p, n_known) + finish >= least:
                continue
            projected = projections.project_points(points, ladder[i])
            counts = count_possible(tried, projections.project_block(tried, projected), projected)
            cost = subspace_cost(ladder[i], counts, k, p, n_known)
            finishes[i] = finish_cost(counts, k, p)
            if cost < least:
                best, least = ladder[i], cost
    return best


def _by_halves(n: int) -> Iterator[int]:
    """Yield 0..n-1 in this order: middle, last, the numbers between them, then the lower half."""
    if n > 0:
        middle = n // 2
        yield middle
        if middle < n - 1:
            yield n - 1
            yield from (middle + 1 + i for i in _by_halves(n - middle - 2))
        yield from _by_halves(middle)


def _n_known(rows: MappedRows) -> int:
    return 0 if rows.coordinates is None else rows.coordinates.shape[1]


def subspace_cost(
    subspace: projections.Subspace,
    possible_points: NDArray[np.int64],
    n_points: int,
    n_features: int,
    n_known: int = 0,
) -> float:
    """Return the mean cost per row of projecting onto a subspace and finishing the possible points.

    `possible_points` (rows,) has the number of possible points of some rows. The coordinates of
    rows along the first `n_known` axes are precomputed.
    """
    projection = (
        subspace.n_axes * n_features if subspace.principal and subspace.n_axes > n_known else 0
    )
    looking = n_points * (subspace.n_axes + _SHORT_PRODUCT + _LOOK)
    return projection + looking + finish_cost(possible_points, n_points, n_features)


def finish_cost(possible_points: NDArray[np.int64], n_points: int, n_features: int) -> float:
    """Return the mean cost per row of finishing its possible points by the cheaper method."""
    finish = np.where(
        possible_points > max_possible_points(n_points),
        float(n_points * (n_features + _LOOK)),
        possible_points * (_FINISH * n_features),
    )
    return float(finish.mean())


def max_possible_points(n_points: int) -> int:
    """Return the number of possible points per row beyond which full products are cheaper."""
    return int(n_points / _FINISH)


class Work(Protocol):
    """The work of a pass on the rows of a block; `prune_block` calls these methods."""

    def count_possible_points(
        self,
        rows: MappedRows,
        seen: projections.ProjectedRows,
        projected: projections.ProjectedPoints,
    ) -> NDArray[np.int64]:
        """Count the points that may matter to each row, according to its projection."""

    def add(self, tile: Tile) -> None:
        """Process the rows of a tile by their full products with all points."""

    def add_near(
        self,
        rows: MappedRows,
        seen: projections.ProjectedRows,
        projected: projections.ProjectedPoints,
    ) -> tuple[NDArray[np.int64], int]:
        """Process rows; finish only the pairs that their projections do not rule out.

        Returns the positions of rows with too many such pairs, which are not processed, and the
        number of finished pairs.
        """


class QuickCheck(Protocol):
    """Quick check: projections onto a few axes complete the work for some rows."""

    def is_certain(self, rows: MappedRows, seen: projections.ProjectedRows) -> NDArray[np.bool_]:
        """Return which rows (rows,) the projections can complete."""

    def assign_if_certain(
        self, rows: MappedRows, seen: projections.ProjectedRows
    ) -> NDArray[np.int64]:
        """Process the rows that `is_certain` selects; return the positions of the other rows."""


def prune_block(
    block: NDArray[Any],
    points: Points,
    prune: Prune,
    work: Work,
    quick_check: QuickCheck | None = None,
    coordinates: NDArray[np.float32] | None = None,
) -> Pruned:
    """Process a block (rows, p) by the cheapest method; return the counts of its pairs.

    `coordinates` (rows, q) come from `project_rows` for points with the same axes.
    """
    coordinates = coordinates if points.axes is not None else None
    chosen = choose_subspaces(block, points, prune, work, quick_check, coordinates)
    n_points = len(points.mapped)
    pairs = len(block) * n_points
    if chosen == Subspaces(projections.DENSE):
        for tile in tiles(block, points):
            work.add(tile)
        return Pruned({str(chosen): 1}, pairs, 0, pairs)
    quick, projected = (
        projections.project_points(points, s) for s in (chosen.quick_check, chosen.main)
    )
    dense, finished = _DenseRows(points), 0
    products = np.empty((min(tile_rows(n_points), len(block)), n_points), np.float32)
    for rows in map_rows(block, points, coordinates):
        which = np.arange(len(rows.raw))
        if quick_check is not None and chosen.quick_check.n_axes:
            which = quick_check.assign_if_certain(
                rows, projections.project_block(rows, quick, out=products)
            )
        if chosen.main.n_axes:
            seen = projections.project_block(rows, projected, which, products)
            which, count = work.add_near(rows, seen, projected)
            finished += count
        for tile in dense.add(rows, which):
            work.add(tile)
    for tile in dense.rest():
        work.add(tile)
    return Pruned({str(chosen): 1}, pairs, finished, dense.total * n_points)


class _DenseRows:
    """Buffer of rows with too many possible points, until they fill a tile of full products."""

    def __init__(self, points: Points) -> None:
        self._points = points
        self._kept: list[MappedRows] = []
        self._height = tile_rows(len(points.mapped))
        self.total = 0

    def add(self, rows: MappedRows, which: NDArray[np.int64]) -> Iterator[Tile]:
        """Keep some of the rows; yield a tile when one is full."""
        if len(which) == 0:
            return
        self._kept.append(rows.take(which))
        self.total += len(which)
        if sum(len(kept.raw) for kept in self._kept) >= self._height:
            joined = _concatenate(self._kept)
            order = np.arange(len(joined.raw))
            self._kept = [joined.take(order[self._height :])]
            yield with_products(joined.take(order[: self._height]), self._points)

    def rest(self) -> Iterator[Tile]:
        """Yield the remaining rows as a tile."""
        if self._kept:
            kept, self._kept = self._kept, []
            yield with_products(_concatenate(kept), self._points)


def _concatenate(parts: list[MappedRows]) -> MappedRows:
    return MappedRows(
        np.concatenate([part.positions for part in parts]),
        np.concatenate([part.raw for part in parts]),
        np.concatenate([part.inv_norms for part in parts]),
        np.concatenate([part.sq_norms for part in parts]),
        np.concatenate([part.mapped for part in parts]),
    )


def _requested_subspace(points: Points, n_axes: int) -> projections.Subspace:
    most = points.mapped.shape[1]
    if points.axes is None:
        return projections.Subspace(min(n_axes, most))
    return projections.Subspace(min(n_axes, points.axes.directions.shape[1]), principal=n_axes > 0)


def _ladders(points: Points) -> Iterator[list[projections.Subspace]]:
    """Yield lists of subspaces to try; each subspace contains the one before it."""
    if points.axes is None:
        return
    p, most = points.axes.directions.shape
    yield [projections.Subspace(n, principal=True) for n in _AXES_LADDER if n <= most]
    widths = sorted({max(1, round(share * p / _MULTIPLE)) for share in _FEATURES_LADDER})
    yield [
        projections.Subspace(_MULTIPLE * width - 1) for width in widths if _MULTIPLE * width <= p
    ]
