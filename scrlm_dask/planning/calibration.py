"""Measure the speed of this machine with the kernels of a fit, in one thread, for about 2 s.

Rows of the store serve as candidates, and candidates that the extraction picks serve as centers.
The first call of each kernel is not counted, because it compiles or loads the kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.config import ResolvedConfig
from scrlm_dask.engine.features import Features
from scrlm_dask.engine.threads import pinned_threads
from scrlm_dask.errors import NonFiniteRowError
from scrlm_dask.kernels.distances import preprocessing
from scrlm_dask.kernels.distances.assignment import assign_and_sum
from scrlm_dask.kernels.distances.points import Points, squared_radius
from scrlm_dask.kernels.distances.pruning import points_frame, prepare_centers, prepare_with_axes
from scrlm_dask.kernels.kmeans.lloyd import lloyd_part
from scrlm_dask.kernels.scrlm.extraction import Extraction, extract_centers
from scrlm_dask.kernels.scrlm.loss import Losses, LossPart, loss_part, losses_of
from scrlm_dask.kernels.scrlm.polish import polish_part
from scrlm_dask.kernels.scrlm.theory import PAPER_RHO

# Seconds for each measurement, most for the loss, which dominates the time of a fit.
_SECONDS = {"survey": 0.1, "loss": 0.5, "polish": 0.2, "kmeans-step": 0.3, "assign": 0.3}
_READ_COPIES = 2  # copies of a block while it is read
_LEAST_READS = 3  # minimum number of timed reads, unless one of the next two limits is exceeded
_READ_SECONDS, _READ_BYTES = 0.5, 256 * 10**6
_FEW_ROWS = 1024  # rows of the smaller of two measurements; fewer rows are not pruned
_LEAST_SECONDS = 0.02  # a shorter measurement is repeated
_TIMES = 2  # repetitions of the larger measurement
_MOST_EXTRACTED = 2048
_SCAN_LOSSES = 3.0  # time per row of a scan, relative to a loss pass with as many candidates


@dataclass(frozen=True)
class ReadRate:
    """Speed of reads: seconds per byte, and the CPU seconds among them."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Rate:
    """Speed of a phase: seconds of one thread per row, per block, and once per execution."""

    row: float = 0.0
    block: float = 0.0  # in addition to the time of its rows
    once: float = 0.0  # before the first block: map candidates or centers and compute axes


@dataclass(frozen=True)
class Calibration:
    """Measured speeds of this machine, and the time the measurement took."""

    read: ReadRate
    rates: dict[str, Rate]  # by phase
    seconds: float  # time of the whole calibration
    first_seconds: float  # part of `seconds`: first calls of kernels and first reads
    load_seconds: float  # part of `first_seconds`: loading kernels, as every new worker does
    rows: int  # rows that were read
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Sample:
    """The blocks that the calibration has read, and the speed of the reads."""

    blocks: list[NDArray[Any]]
    starts: list[int]  # their first row numbers
    read: ReadRate

    @property
    def n_rows(self) -> int:
        return sum(map(len, self.blocks))

    @property
    def measured(self) -> tuple[NDArray[Any], int]:
        """Return the largest block, on which kernels are measured, and its first row number."""
        return max(zip(self.blocks, self.starts, strict=True), key=lambda pair: len(pair[0]))

    def spread(self, size: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return `size` rows, evenly spread over all blocks, and their ascending row numbers."""
        picks = np.arange(size) * self.n_rows // size
        ends = np.cumsum([len(block) for block in self.blocks])
        rows, numbers = [], []
        for block, start, end in zip(self.blocks, self.starts, ends, strict=True):
            here = picks[(picks >= end - len(block)) & (picks < end)] - (end - len(block))
            rows.append(preprocessing.native_float(block[here]))
            numbers.append(start + here)
        return np.concatenate(rows), np.concatenate(numbers)


@dataclass
class _Stopwatch:
    """Total time of first calls, which do not count as measurements."""

    first_seconds: float = 0.0
    load_seconds: float = 0.0  # part of `first_seconds`: loading kernels
    notes: list[str] = field(default_factory=list)

    def first(self, run: Callable[[], object]) -> None:
        self.first_seconds += _run_timed(run)[0]

    def load(self, run: Callable[[], object]) -> None:
        before = self.first_seconds
        self.first(run)
        self.load_seconds += self.first_seconds - before


def calibrate(features: Features, config: ResolvedConfig, n_clusters: int) -> Calibration:
    """Measure the speed of each phase of a fit with this config and number of clusters."""
    begin, watch = time.perf_counter(), _Stopwatch()
    sampled, config = config.asked.samples, _with_rho(config)
    with pinned_threads():
        sample = _read_sample(features, config.n_candidates, watch)
        try:
            rates = _measure_phases(features, sample, config, n_clusters, watch)
        except NonFiniteRowError as error:
            row = sample.measured[1] + error.row
            raise error.named(f"row {row} of {features.label}") from error
    if sampled:
        rates["scan"] = _scale(rates.pop("loss"), _SCAN_LOSSES)
        rates.pop("extract")
    seconds = time.perf_counter() - begin
    first, load, notes = watch.first_seconds, watch.load_seconds, tuple(watch.notes)
    return Calibration(sample.read, rates, seconds, first, load, sample.n_rows, notes)


def _with_rho(config: ResolvedConfig) -> ResolvedConfig:
    """Return the config with greedy extraction and with the paper's rho if none is given."""
    asked = config.asked
    rho = PAPER_RHO if isinstance(asked.rho, str) else asked.rho
    robust = asked.robust is not False or not asked.most_iterations
    settled = replace(
        asked,
        rho=rho,
        extraction="greedy",
        robust=robust,
        preprocess=asked.first_preprocess,
        refine=asked.refine.settle(asked.most_iterations),
        outlier_share=None,
    )
    return replace(config, asked=settled)


def _read_sample(features: Features, n_rows: int, watch: _Stopwatch) -> _Sample:
    """Read blocks spread over the store, until there are `n_rows` rows for the candidates.

    The first read is not timed. If there is only one block, it is read again, from the page
    cache of the system. The rate is the median over the timed reads.
    """

    def read(number: int) -> NDArray[Any]:
        block = features.read([number])
        return np.asarray(block.compute(scheduler="synchronous"))

    first, *others = _spread_blocks(features.n_blocks)
    took, block = _run_timed(lambda: read(first))
    watch.first_seconds += took
    found, rates, seconds = {first: block}, [], 0.0
    for number in others or [first]:
        # Workers reuse their memory, but this process would allocate new pages for each block,
        # which may be slow. Allocate them before the read is timed.
        watch.first(lambda: np.ones(_READ_COPIES * block.nbytes, np.uint8))  # noqa: B023
        cpu_before = time.process_time()
        took, block = _run_timed(lambda number=number: read(number))  # type: ignore[misc]
        cpu = min(time.process_time() - cpu_before, took)
        found[number] = block
        rates.append(ReadRate(took / block.nbytes, cpu / block.nbytes))
        seconds += took
        enough = sum(map(len, found.values())) >= n_rows and len(rates) >= _LEAST_READS
        n_bytes = sum(block.nbytes for block in found.values())
        if enough or seconds > _READ_SECONDS or n_bytes > _READ_BYTES:
            break
    numbers = sorted(found)
    starts = [number * features.block_rows for number in numbers]
    rate = sorted(rates, key=lambda rate: rate.seconds)[len(rates) // 2]
    return _Sample([found[number] for number in numbers], starts, rate)


def _spread_blocks(n_blocks: int) -> list[int]:
    """Return block numbers without repetition, in an order that starts with distant blocks."""
    step = 1 << max(0, n_blocks - 1).bit_length()
    order: list[int] = []
    while step >= 1:
        order += [i for i in range(0, n_blocks, step) if i not in order[-n_blocks:]]
        if len(order) >= min(n_blocks, 64):
            break
        step //= 2
    return order


def _measure_phases(
    features: Features,
    sample: _Sample,
    config: ResolvedConfig,
    n_clusters: int,
    watch: _Stopwatch,
) -> dict[str, Rate]:
    asked = config.asked
    block, start = sample.measured
    affine, survey = _measure_survey(block, config, watch)
    n = min(config.n_candidates, sample.n_rows)
    if n < config.n_candidates:
        watch.notes.append(
            f"the loss was measured with only {n} candidates, the number of rows that were read, "
            f"and scaled to {config.n_candidates}"
        )
    raw, candidate_rows = sample.spread(n)
    usable = np.isfinite(raw).all(axis=1)
    if not usable.all():
        row = int(candidate_rows[np.argmin(usable)])
        raise NonFiniteRowError(row).named(f"row {row} of {features.label}")
    once, candidates = _time_preparation(prepare_with_axes, raw, affine, watch)
    sq_radii = [squared_radius(asked.given_rho, asked.F, features.n_features)]
    numbers = np.arange(start, start + len(block), dtype=np.int64)

    def loss(rows: int, points: Points = candidates, prune: Any = asked.prune) -> LossPart:
        some = candidate_rows[: len(points.raw)]
        return loss_part(block[:rows], numbers[:rows], points, some, sq_radii, prune)

    few = _first_points(candidates)
    _warm_up(watch, partial(loss, 64, few))
    # if `loss_rows` is a subset, the loss pass uses only a part of each block
    part = -(-config.loss_rows * len(block) // config.n_rows)
    loss_rate, found = _measure(loss, min(part, len(block)), _SECONDS["loss"])
    larger = config.n_candidates / n
    rates = {"survey": survey, "loss": _scale(replace(loss_rate, once=once), larger)}
    losses = losses_of(found, sq_radii, asked.F)[0]
    took, picked = _time_extraction(candidates, candidate_rows, losses, config, watch)
    k = min(n_clusters, n)
    n_tried = int(np.count_nonzero(losses.neighbors[:_MOST_EXTRACTED] > 0))
    rates["extract"] = Rate(row=took / max(1, n_tried * len(picked.picks)) * n_clusters)
    others = np.setdiff1d(np.arange(n), picked.picks)
    which = np.concatenate([picked.picks, others])[:k]
    rates |= _measure_centers(block, start, raw[which], affine, config, features.n_features, watch)
    if k < n_clusters:
        watch.notes.append(
            f"phases with centers were measured with only {k} centers, the number of available "
            f"candidates, and scaled to {n_clusters}"
        )
        for name in ("polish", "kmeans-step", "assign"):
            if name in rates:
                rates[name] = _scale(rates[name], n_clusters / k)
    return rates


def _measure_survey(
    block: NDArray[Any], config: ResolvedConfig, watch: _Stopwatch
) -> tuple[preprocessing.AffineMap, Rate]:
    kind = config.asked.first_preprocess
    watch.load(lambda: preprocessing.block_moments(block[:64]))
    measure = partial(_measure, n_rows=len(block), budget=_SECONDS["survey"])
    rate, moments = measure(lambda rows: preprocessing.block_moments(block[:rows]))
    needed = preprocessing.needs_moments(kind)
    # use all rows, because a map that is fitted to few rows may divide by zero
    if needed and moments.count < len(block):
        moments = preprocessing.block_moments(block)
    affine = preprocessing.fit_map(kind, block.shape[1], moments if needed else None)
    return affine, rate if needed else Rate()


def _measure_centers(
    block: NDArray[Any],
    start: int,
    raw: NDArray[Any],
    affine: preprocessing.AffineMap,
    config: ResolvedConfig,
    n_features: int,
    watch: _Stopwatch,
) -> dict[str, Rate]:
    """Measure the phases that compare rows with centers."""
    asked = config.asked
    # extracted centers have the dtype of the store until a phase moves them
    moved = raw.astype(np.float64) if asked.polish or asked.refine.max_iter else raw
    once, centers = _time_preparation(prepare_centers, moved, affine, watch)
    _, unmoved = _time_preparation(prepare_centers, raw, affine, watch)
    # from the second iteration on, axes are known and the quick check is tried only sometimes
    again, _ = _run_timed(
        lambda: prepare_centers(moved, affine, points_frame(centers), quick_check=False)
    )
    inside = squared_radius(asked.given_rho, asked.F, n_features)
    sq_radius = asked.sq_radius(n_features)

    def polish(rows: int, points: Points = unmoved, prune: Any = None) -> object:
        return polish_part(block[:rows], points, inside)

    def step(rows: int, points: Points = centers, prune: Any = asked.prune) -> object:
        return lloyd_part(block[:rows], start, points, sq_radius, prune=prune)

    def assign(rows: int, points: Points = centers, prune: Any = asked.prune) -> object:
        margins = asked.margins
        return assign_and_sum(block[:rows], points, sq_radius, margins=margins, prune=prune)

    phases: dict[str, Any] = {"polish": polish} if asked.polish else {}
    phases |= {"kmeans-step": step} if asked.refine.max_iter else {}
    phases["assign"] = assign
    rates = {}
    for name, run in phases.items():
        few = _first_points(unmoved if name == "polish" else centers)
        _warm_up(watch, partial(run, 64, few))
        # call with all centers to load also the quick check, which few centers may not use
        watch.load(lambda run=run: run(min(_FEW_ROWS, len(block))))  # type: ignore[misc]
        rate, _ = _measure(run, len(block), _SECONDS[name])
        rates[name] = replace(rate, once=again if name == "kmeans-step" else once)
    return rates


def _time_extraction(
    candidates: Points,
    rows: NDArray[np.int64],
    losses: Losses,
    config: ResolvedConfig,
    watch: _Stopwatch,
) -> tuple[float, Extraction]:
    """Extract centers from the first candidates; return the seconds and the result."""
    asked = config.asked
    # the extraction skips other candidates, because they have no neighbors here
    neighbors = np.where(np.arange(len(rows)) < _MOST_EXTRACTED, losses.neighbors, 0)
    some = Losses(losses.losses, neighbors)

    def run(most: int | None) -> Extraction:
        return extract_centers(
            candidates, rows, some, asked.given_rho, asked.F, most, asked.min_neighbors
        )

    watch.load(lambda: run(1))
    return _run_timed(lambda: run(asked.n_clusters))


def _time_preparation(
    prepare: Callable[[NDArray[Any], preprocessing.AffineMap], Points],
    raw: NDArray[Any],
    affine: preprocessing.AffineMap,
    watch: _Stopwatch,
) -> tuple[float, Points]:
    watch.load(lambda: prepare(raw[:64], affine))
    return _run_timed(lambda: prepare(raw, affine))


def _first_points(points: Points) -> Points:
    """Return the first 64 points, which are enough to compile every kernel."""
    few = min(64, len(points.raw))
    return replace(
        points,
        raw=points.raw[:few],
        inv_norms=points.inv_norms[:few],
        mapped=points.mapped[:few],
        sq_norms=points.sq_norms[:few],
        axes=None,
        half_distances=None,
    )


def _warm_up(watch: _Stopwatch, run: Callable[[int], object]) -> None:
    """Call `run` without pruning and with 16 axes, to load the kernels of both cases."""
    for prune in (0, 16):
        watch.load(lambda prune=prune: run(prune))  # type: ignore[misc]


def _measure(run: Callable[[int], Any], n_rows: int, budget: float) -> tuple[Rate, Any]:
    """Time `run` with few and with many rows of a block; return the rate and the last result."""
    few = min(_FEW_ROWS, n_rows)
    few_seconds, found = _run_repeatedly(lambda: run(few))
    many = min(n_rows, int(budget / _TIMES / max(few_seconds, 1e-9) * few))
    if many < 2 * few:
        return Rate(row=few_seconds / few), found
    # use the minimum of several measurements, as other processes may use the machine
    runs = [_run_repeatedly(lambda: run(many)) for _ in range(_TIMES)]
    many_seconds, found = min(runs, key=itemgetter(0))
    row = (many_seconds - few_seconds) / (many - few)
    if row <= 0.0:  # the work is too short for the resolution of the clock
        return Rate(row=many_seconds / many), found
    return Rate(row=row, block=max(0.0, few_seconds - row * few)), found


def _run_repeatedly(run: Callable[[], Any]) -> tuple[float, Any]:
    """Call `run`, several times if it is short; return the minimum time and the last result."""
    least, result = _run_timed(run)
    total = least
    while total < _LEAST_SECONDS:
        seconds, result = _run_timed(run)
        least, total = min(least, seconds), total + max(seconds, 1e-6)
    return least, result


def _run_timed(run: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = run()
    return time.perf_counter() - begin, result


def _scale(rate: Rate, factor: float) -> Rate:
    return Rate(rate.row * factor, rate.block * factor, rate.once * factor)
