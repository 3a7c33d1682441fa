"""Run Lloyd iterations of k-means over the features until a stopping rule applies."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.config import LloydConfig
from scrlm_dask.engine.checkpointing import CheckpointScope, SavedGroups
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import Features
from scrlm_dask.events import IterationDone
from scrlm_dask.kernels.distances import pruning
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.kmeans.lloyd import LloydPart, inertia, move_centers, relative_shift
from scrlm_dask.passes import lloyd
from scrlm_dask.pipeline.results import report_sizes
from scrlm_dask.planning.work import SAMPLE_ITERATIONS, block_samples

# Iterations on a sample stop when the relative decrease of the inertia is at most this.
_SAMPLE_TOL = 0.01
# After a quick check that did not help, only every N-th iteration tries it again, because the
# centers may be farther apart by then.
_QUICK_CHECK_AGAIN = 4


@dataclass(frozen=True)
class Refinement:
    """State and result of k-means: the current centers and the history of the iterations."""

    centers: NDArray[np.float64]  # (k, p) in input units
    iterations: tuple[IterationDone, ...] = ()
    stopped: str = ""  # the stopping rule that applied
    pruned: pruning.Pruned = field(default_factory=pruning.Pruned)
    stage: int = 0  # each stage uses a larger sample of blocks; the last one uses all blocks
    turn: int = 0  # number of iterations in this stage

    def record(self) -> dict[str, Any]:
        """Return the entry of `run.json`, with None for infinity, which JSON does not have."""
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
    prune: pruning.Prune,
    seed: int,
    began: float,
    weights: da.Array | None = None,
) -> Refinement:
    """Run k-means from centers (k, p): on growing samples if configured, then on all blocks.

    `began` is `time.perf_counter()` at the start of the run; `max_seconds` counts from this time.
    """
    loop = _Loop(
        execution,
        features,
        affine,
        sq_radius,
        prune,
        weights,
        config,
        began,
        tuple(block_samples(features.n_blocks, config.sample, seed)),
        centers,
    )
    return execution.checkpoints.load_or_compute("refined", STATE_TYPES, loop.run_all)


@dataclass
class _Loop:
    """The loop of Lloyd iterations, and its state between two iterations."""

    execution: Execution
    features: Features
    affine: AffineMap
    sq_radius: float
    prune: pruning.Prune
    weights: da.Array | None
    config: LloydConfig
    began: float
    samples: tuple[list[int], ...]
    first: NDArray[np.float64]  # initial centers (k, p)
    state: Refinement = field(init=False)
    frame: Delayed | None = None  # axes of the initial centers, used in all iterations
    coordinates: da.Array | None = None  # coordinates of all rows along `frame`, once persisted
    projecting: bool = False  # whether the previous iteration projected rows
    quick_check: bool = True  # whether the quick check helped in the previous iteration

    def run_all(self) -> Refinement:
        """Run all stages: on samples, then on all blocks. Resume from a checkpoint, if any."""
        self.state = Refinement(self.first)
        labels = self._resume()
        for stage in range(self.state.stage, len(self.samples) + 1):
            if stage > self.state.stage:
                self.state, labels = replace(self.state, stage=stage, turn=0, stopped=""), None
            self._run(self._blocks(stage), labels)
        return self.state

    def _blocks(self, stage: int) -> list[int] | None:
        return self.samples[stage] if stage < len(self.samples) else None

    def _run(self, blocks: list[int] | None, labels: da.Array | None) -> None:
        """Iterate on the given blocks (None: all) until a stopping rule applies."""
        most = self.config.max_iter if blocks is None else SAMPLE_ITERATIONS
        inertia_tol = self.config.inertia_tol if blocks is None else _SAMPLE_TOL
        while not self.state.stopped:
            if self.state.turn == most:
                self._stop(f"max_iter: {most} iterations are done")
            elif self._out_of_time():
                self._stop(f"max_seconds: {self.config.max_seconds:g} s have passed")
            else:
                before = self.state.iterations[-1].inertia if self.state.turn else math.inf
                due = self.execution.checkpoints.is_due()
                labels = self._iterate(blocks, labels, due)
                done = self.state.iterations[-1]
                self.execution.emit(done)
                self._stop(_reason(done, before, self.config.tol, inertia_tol))
                if due:
                    save_iteration(self.execution.checkpoints, self.state)

    def _stop(self, reason: str) -> None:
        self.state = replace(self.state, stopped=reason)

    def _resume(self) -> da.Array | None:
        """Restore the newest intact checkpoint of an earlier attempt; return its labels, if any."""
        for state in load_iterations(self.execution.checkpoints):
            saved = self._saved(len(state.iterations))
            labels = None
            if saved is not None and not state.stopped:
                labels = lloyd.load_labels(saved, self.features, self._blocks(state.stage))
            if labels is not None or state.stopped:
                self.state = state
                self.frame = lloyd.make_frame(lloyd.send_centers(self.first, self.affine))
                return labels
        return None

    def _saved(self, number: int) -> SavedGroups | None:
        return self.execution.checkpoints.groups(step_name(number), lloyd.LLOYD.checkpoint_types)

    def _iterate(self, blocks: list[int] | None, previous: da.Array | None, due: bool) -> da.Array:
        begin, state = time.perf_counter(), self.state
        number = len(state.iterations) + 1
        check = self.prune == "auto" and (self.quick_check or number % _QUICK_CHECK_AGAIN == 1)
        centers = lloyd.send_centers(state.centers, self.affine, self.frame, check)
        if self.frame is None:
            self.frame = lloyd.make_frame(centers)
        if self.projecting and self.coordinates is None and self.features.coordinate_axes:
            self.coordinates = lloyd.persist_coordinates(
                self.execution, self.features, centers, self.features.coordinate_axes
            )
        step = lloyd.lloyd_pass(
            self.execution,
            self.features,
            centers,
            self.sq_radius,
            n_clusters=len(state.centers),
            prune=self.prune,
            weights=self.weights,
            previous=previous,
            blocks=blocks,
            coordinates=self.coordinates if blocks is None else None,
            saved=self._saved(number) if due else None,
        )
        self.projecting = blocks is None and pruning.along_axes(step.part.pruned)
        self.quick_check = pruning.used_quick_check(step.part.pruned)
        moved = move_centers(
            state.centers, step.part, self.affine.unit_length, reseed=blocks is None
        )
        done = IterationDone(
            number=number,
            rows=step.part.sums.n_rows,
            sampled=blocks is not None,
            inertia=inertia(step.part.sums, self.sq_radius),
            shift=self._shift(moved.centers, step.part),
            moved=step.part.moved if previous is not None else None,
            empty=moved.empty,
            reseeded=moved.reseeded,
            seconds=time.perf_counter() - begin,
        )
        report_sizes(self.execution, step.part.sums, self.sq_radius)
        self.state = replace(
            state,
            centers=moved.centers,
            iterations=(*state.iterations, done),
            pruned=pruning.merge_pruned(state.pruned, step.part.pruned),
            turn=state.turn + 1,
        )
        return step.labels

    def _shift(self, after: NDArray[np.float64], part: LloydPart) -> float:
        mass = float(part.sums.masses.sum())
        mean_sq = float(part.sums.sq_distances.sum()) / mass if mass > 0.0 else 0.0
        return relative_shift(self.state.centers, after, self.affine.scale, mean_sq)

    def _out_of_time(self) -> bool:
        limit = self.config.max_seconds
        return limit is not None and time.perf_counter() - self.began >= limit


STATE_TYPES = (Refinement, IterationDone, pruning.Pruned)


_SAVED = "iteration."  # prefix of checkpoint names, followed by the iteration number


def step_name(number: int) -> str:
    """Return the name under which the groups of blocks of an iteration are checkpointed."""
    return f"kmeans-step-{number}"


def save_iteration(checkpoints: CheckpointScope, state: Refinement) -> None:
    """Checkpoint the state after an iteration; keep also the previous one as a fallback."""
    checkpoints.save(f"{_SAVED}{len(state.iterations):06d}", state)
    for number in _saved_numbers(checkpoints)[:-2]:
        checkpoints.delete(f"{_SAVED}{number:06d}", step_name(number))


def load_iterations(checkpoints: CheckpointScope) -> Iterator[Refinement]:
    """Yield the states in the intact checkpoints of an earlier attempt, newest first."""
    for number in reversed(_saved_numbers(checkpoints)):
        state: Refinement | None = checkpoints.load(f"{_SAVED}{number:06d}", STATE_TYPES)
        if state is not None:
            yield state


def _saved_numbers(checkpoints: CheckpointScope) -> list[int]:
    names = [name for name in checkpoints.names() if name.startswith(_SAVED)]
    return sorted(int(name.removeprefix(_SAVED)) for name in names)


def _reason(done: IterationDone, before: float, tol: float, inertia_tol: float) -> str:
    """Return the stopping rule that applies after this iteration, or an empty string."""
    if done.reseeded:
        return ""  # rows have not been compared with the reseeded centers yet
    if done.moved == 0:
        return "converged: no row changed its cluster"
    if done.shift <= tol:
        return f"tol: the relative shift of the centers was {done.shift:.2g}"
    # An increase of the inertia beyond the tolerance does not stop the loop. It can happen in
    # spherical k-means: a center of zeros is equally far from all rows. When it gets a direction,
    # it becomes farther from some rows.
    if math.isfinite(before) and abs(before - done.inertia) <= inertia_tol * before:
        share = (before - done.inertia) / before if before > 0.0 else 0.0
        return f"inertia_tol: the relative decrease of the inertia was {share:.2g}"
    return ""
