"""Compare clustering methods on the same labelled rows: scores, time and memory."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.choices import Preprocess
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import Features, FeaturesLike, as_features
from scrlm_dask.engine.workers import machine_memory
from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.distances import preprocessing
from scrlm_dask.kernels.distances.points import prepare_points
from scrlm_dask.kernels.evaluation.metrics import Scores, contingency, scores, with_outlier_cluster
from scrlm_dask.kernels.randomness.sampling import Purpose, sample_rows
from scrlm_dask.paper.baselines import Method, find_method
from scrlm_dask.paper.run_with_limits import Task, check_limits, run_with_limits
from scrlm_dask.passes.seeding import gather_rows
from scrlm_dask.passes.survey import survey_pass
from scrlm_dask.pipeline.evaluate import TruthLike, open_given_truth, read_labels, trace_labels
from scrlm_dask.pipeline.results import warn_about_order
from scrlm_dask.storage.feature_store import is_shuffled
from scrlm_dask.storage.locations import Options, locate
from scrlm_dask.storage.traces import InputTrace
from scrlm_dask.text import format_bytes

PAPERS = (
    *("scrlm", "scrlm+kmeans", "k-means++", "complete-linkage"),
    *("spectral", "em", "t-sne+k-means++", "td"),
)
MEASURED = (
    *("accuracy", "purity", "nmi", "ari", "outlier_precision", "outlier_recall"),
    *("cpu_seconds", "wall_seconds", "peak_bytes"),
)
_COPIES = 2  # copies of the rows in memory: the input of a method and its working copy


@dataclass(frozen=True)
class Attempt:
    """One call of a method with one seed: scores and costs, or the reason for its failure."""

    seed: int
    scores: Scores | None
    reason: str | None
    cpu_seconds: float | None
    wall_seconds: float | None
    peak_bytes: int


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class MethodScores:
    """All attempts of a method, one per seed, up to the first failure.

    Attributes
    ----------
    method : str
        Name of the method.
    n_clusters : int
        Requested number of clusters.
    attempts : tuple of Attempt
        Scores and costs per seed.
    """

    method: str
    n_clusters: int
    attempts: tuple[Attempt, ...]

    @property
    def reason(self) -> str | None:
        """Reason for the failure, or None if all attempts succeeded."""
        return self.attempts[-1].reason

    def spread(self, name: str) -> Spread | None:
        """Return mean and deviation of one of `MEASURED`, or None if an attempt failed."""
        if self.reason is not None:
            return None
        values = [
            float(getattr(attempt if hasattr(attempt, name) else attempt.scores, name))
            for attempt in self.attempts
        ]
        return Spread(float(np.mean(values)), float(np.std(values)))


@dataclass(frozen=True)
class Comparison:
    """Scores, time and memory of several methods on the same rows.

    Attributes
    ----------
    n_rows, n_features : int
        Shape of the rows that were compared.
    preprocess : str
        Preprocessing of the rows.
    methods : tuple of MethodScores
        Results per method.
    """

    n_rows: int
    n_features: int
    preprocess: Preprocess
    methods: tuple[MethodScores, ...]


def compare(
    source: FeaturesLike,
    truth: TruthLike = None,
    *,
    n_clusters: int,
    methods: Sequence[str] = PAPERS,
    outliers: bool = False,
    seeds: int = 1,
    timeout: float = 600.0,
    memory_limit: int | None = None,
    n_rows: int | None = None,
    preprocess: Preprocess = "standardize",
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> Comparison:
    """Run each method in its own process on the same preprocessed rows, in memory.

    `truth` is an array of labels, or the path or URL of labels (.npy or Zarr); by default the
    labels of the features store are used. With `outliers`, methods that cannot find outliers get
    one more cluster, and the cluster that matches the true outliers best counts as outliers.
    `n_rows` is the size of a random sample (default: all rows). `timeout` (seconds) and
    `memory_limit` (bytes) apply to each method and seed.
    """
    chosen = _check_request(methods, n_clusters, seeds)
    check_limits(timeout, memory_limit)
    features = as_features(source, None, storage_options)
    known = _read_truth(truth, features, storage_options)
    n_sampled = _choose_size(features, n_rows, memory_limit)
    numbers = sample_rows(0, Purpose.COMPARED_ROWS, features.n_rows, n_sampled)
    with Execution(listener) as execution, tempfile.TemporaryDirectory(prefix="scrlm-") as folder:
        rows = Path(folder) / "rows.npy"
        np.save(rows, _map_rows(execution, features, numbers, preprocess))
        InputTrace(features.inputs).check()  # later changes have no effect on the saved rows
        if truth is not None and features.location is not None and is_shuffled(features.location):
            warn_about_order(execution, features.location.url, "the truth")
        _warn_of_outliers(known[numbers], outliers, execution.emit)
        limits = (timeout, memory_limit or machine_memory())
        runs = _Runs(rows, known[numbers], n_clusters, outliers, seeds, limits, execution.emit)
        found = [runs.run(method) for method in chosen]
    return Comparison(len(numbers), features.n_features, preprocess, tuple(found))


def _check_request(methods: Sequence[str], n_clusters: int, seeds: int) -> list[Method]:
    if not methods:
        raise InputError("methods must contain at least one name, got none")
    if n_clusters < 1 or seeds < 1:
        raise InputError(
            f"n_clusters and seeds must be at least 1, got {n_clusters} cluster(s) and "
            f"{seeds} seed(s)"
        )
    return [find_method(name) for name in dict.fromkeys(methods)]


def _read_truth(
    truth: TruthLike, features: Features, storage_options: Options | None
) -> NDArray[np.int64]:
    if truth is None and features.location is None:
        raise InputError(f"{features.label} has no labels; pass them as truth")
    if truth is not None and not isinstance(truth, np.ndarray):
        truth = locate(truth, storage_options)
    labels = open_given_truth(truth, features.location)
    if labels.shape[0] != features.n_rows:
        raise InputError(
            f"truth must have one label per row of {features.label}, got {labels.shape[0]} labels "
            f"for {features.n_rows} rows"
        )
    traced = InputTrace(trace_labels("the truth", labels))
    values = read_labels(labels, 0, features.n_rows)
    traced.check()
    return values


def _choose_size(features: Features, n_rows: int | None, memory_limit: int | None) -> int:
    """Return the number of rows to compare on; raise if they do not fit in memory."""
    if n_rows is not None and n_rows < 1:
        raise InputError(f"n_rows must be at least 1, got {n_rows} rows")
    size = min(n_rows or features.n_rows, features.n_rows)
    limit = memory_limit or machine_memory()
    row_bytes = _COPIES * 4 * features.n_features
    if size * row_bytes <= limit:
        return size
    raise InputError(
        f"methods keep all rows in memory: {size:,} rows of {features.label} in {_COPIES} copies "
        f"require {format_bytes(size * row_bytes)}, but the limit is {format_bytes(limit)}; "
        f"compare on a random sample (n_rows, --rows {max(limit // row_bytes // 2, 1)})"
    )


def _map_rows(
    execution: Execution, features: Features, numbers: NDArray[np.int64], kind: Preprocess
) -> NDArray[np.float32]:
    """Return the rows (N, p), preprocessed as in a fit, with their mean subtracted.

    Subtracting the mean does not change the distances between rows.
    """
    rows = gather_rows(survey_pass(execution, features, numbers, with_moments=False))
    moments = preprocessing.block_moments(rows) if preprocessing.needs_moments(kind) else None
    return prepare_points(rows, preprocessing.fit_map(kind, rows.shape[1], moments)).mapped


def _warn_of_outliers(truth: NDArray[np.int64], outliers: bool, emit: Listener) -> None:
    share = float(np.mean(truth == OUTLIER))
    if share > 0.0 and not outliers:
        text = (
            f"{share:.2%} of the rows are true outliers, which count as errors for methods that "
            "cannot find outliers; use outliers=True (--outliers) to add one cluster for them"
        )
        emit(Note(text, warning=True))


@dataclass(frozen=True)
class _Runs:
    """Rows, truth and limits of a comparison, which are the same for all methods."""

    rows: Path
    truth: NDArray[np.int64]  # (N,)
    n_clusters: int
    outliers: bool
    seeds: int
    limits: tuple[float, int]  # seconds and bytes
    emit: Listener

    def run(self, method: Method) -> MethodScores:
        n_clusters = self.n_clusters + (self.outliers and not method.finds_outliers)
        done: list[Attempt] = []
        for seed in range(self.seeds):
            self.emit(Note(f"running {method.name} with seed {seed}"))
            done.append(self._attempt(method, n_clusters, seed))
            self.emit(Note(_describe(method, done[-1])))
            if done[-1].reason is not None:
                break  # other seeds would fail in the same way
        return MethodScores(method.name, n_clusters, tuple(done))

    def _attempt(self, method: Method, n_clusters: int, seed: int) -> Attempt:
        outcome = run_with_limits(Task(method.name, self.rows, n_clusters, seed), *self.limits)
        scored = None if outcome.labels is None else self._scores(method, outcome.labels)
        costs = (outcome.cpu_seconds, outcome.wall_seconds, outcome.peak_bytes)
        return Attempt(seed, scored, outcome.reason, *costs)

    def _scores(self, method: Method, labels: NDArray[np.int64]) -> Scores:
        table = contingency(self.truth, labels)
        if self.outliers and not method.finds_outliers:
            table = with_outlier_cluster(table)
        return scores(table)


def _describe(method: Method, done: Attempt) -> str:
    """Return the line that is printed after each attempt, before the final table."""
    if done.scores is None:
        return f"{method.name} did not finish: {done.reason}"
    return f"{method.name}: accuracy {done.scores.accuracy:.2%}, {done.cpu_seconds:.2f} CPU s"
