"""Lloyd iterations over a features store until a rule says stop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.config import LloydConfig
from scrlm_dask.events import IterationDone
from scrlm_dask.kernels.lloyd import LloydPart, inertia, move_centers, relative_shift
from scrlm_dask.kernels.preprocessing import AffineMap
from scrlm_dask.kernels.sampling import Purpose, stream
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.features import Features
from scrlm_dask.passes.lloyd import lloyd_pass, send_centers

# A sample has said what it can when the inertia falls by less than this share, and at the latest
# after so many iterations.
_SAMPLE_TOL, _SAMPLE_ITERATIONS = 0.01, 10


@dataclass(frozen=True)
class Refinement:
    """Refined centers, and how they came about."""

    centers: NDArray[np.float64]  # (k, p) in input units
    iterations: tuple[IterationDone, ...] = ()
    stopped: str = ""  # the rule that ended it

    def record(self) -> dict[str, Any]:
        """For `run.json`: JSON has no infinity, null stands for it."""
        rows = [asdict(iteration) for iteration in self.iterations]
        for row in rows:
            row["shift"] = row["shift"] if math.isfinite(row["shift"]) else None
        return {"iterations": rows, "stopped": self.stopped}


def refine(
    execution: Execution,
    features: Features,
    centers: NDArray[np.float64],
    affine: AffineMap,
    config: LloydConfig,
    *,
    sq_radius: float,
    seed: int,
    began: float,
    weights: da.Array | None = None,
) -> Refinement:
    """k-means from centers (k, p), first on growing samples of blocks if asked, then on all.

    `began` is when the run began, by the performance counter: `max_seconds` count from there.
    """
    loop = _Loop(execution, features, affine, sq_radius, weights, config, centers, began)
    for blocks in _samples(features.n_blocks, config.sample, seed):
        loop.run(blocks, _SAMPLE_ITERATIONS, tol=config.tol, inertia_tol=_SAMPLE_TOL)
    loop.run(None, config.max_iter, tol=config.tol, inertia_tol=config.inertia_tol)
    return Refinement(loop.centers, tuple(loop.iterations), loop.stopped)


@dataclass
class _Loop:
    """The state that goes from one iteration to the next."""

    execution: Execution
    features: Features
    affine: AffineMap
    sq_radius: float
    weights: da.Array | None
    config: LloydConfig
    centers: NDArray[np.float64]
    began: float
    iterations: list[IterationDone] = field(default_factory=list)
    stopped: str = ""

    def run(self, blocks: list[int] | None, most: int, tol: float, inertia_tol: float) -> None:
        """Iterate over the blocks, at most so often."""
        before, labels = math.inf, None
        for _ in range(most):
            if self._out_of_time():
                self.stopped = f"max_seconds: {self.config.max_seconds:g} s are over"
                return
            done, labels = self._iterate(blocks, labels)
            self.iterations.append(done)
            self.execution.tell(done)
            self.stopped = _reason(done, before, tol, inertia_tol)
            if self.stopped:
                return
            before = done.inertia
        self.stopped = f"max_iter: {most} iterations are done"

    def _iterate(
        self, blocks: list[int] | None, previous: da.Array | None
    ) -> tuple[IterationDone, da.Array]:
        begin = time.perf_counter()
        step = lloyd_pass(
            self.execution,
            self.features,
            send_centers(self.centers, self.affine),
            self.sq_radius,
            n_clusters=len(self.centers),
            weights=self.weights,
            previous=previous,
            blocks=blocks,
        )
        moved = move_centers(
            self.centers, step.part, self.affine.unit_length, reseed=blocks is None
        )
        value = inertia(step.part.sums, self.sq_radius)
        done = IterationDone(
            number=len(self.iterations) + 1,
            rows=step.part.sums.n_rows,
            sampled=blocks is not None,
            inertia=value,
            shift=self._shift(moved.centers, step.part),
            moved=step.part.moved if previous is not None else None,
            empty=moved.empty,
            reseeded=moved.reseeded,
            seconds=time.perf_counter() - begin,
        )
        self.centers = moved.centers
        return done, step.labels

    def _shift(self, after: NDArray[np.float64], part: LloydPart) -> float:
        mass = float(part.sums.masses.sum())
        mean_sq = float(part.sums.sq_distances.sum()) / mass if mass > 0.0 else 0.0
        return relative_shift(self.centers, after, self.affine.scale, mean_sq)

    def _out_of_time(self) -> bool:
        limit = self.config.max_seconds
        return limit is not None and time.perf_counter() - self.began >= limit


def _reason(done: IterationDone, before: float, tol: float, inertia_tol: float) -> str:
    """Which rule says that this was the last iteration; empty if none does."""
    if done.reseeded:
        return ""  # centers that were just put elsewhere have not been heard yet
    if done.moved == 0:
        return "converged: no row changed its cluster"
    if done.shift <= tol:
        return f"tol: the centers moved by {done.shift:.2g} of the rows' distance to them"
    # a row of zeros as a center of spherical k-means serves all rows alike until it gets a
    # direction, and then some worse: that is no end
    if math.isfinite(before) and abs(before - done.inertia) <= inertia_tol * before:
        share = (before - done.inertia) / before if before > 0.0 else 0.0
        return f"inertia_tol: the inertia fell by {share:.2g} of itself"
    return ""


def _samples(n_blocks: int, share: float | None, seed: int) -> Iterator[list[int]]:
    """Growing random samples of whole blocks, each within the next, up to but not all of them."""
    if share is None:
        return
    order = stream(seed, Purpose.BLOCK_SAMPLE).permutation(n_blocks)
    size = math.ceil(share * n_blocks)
    while size < n_blocks:
        yield sorted(int(i) for i in order[:size])
        size *= 2
