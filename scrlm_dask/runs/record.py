"""The record of a run, as `run.json` stores it."""

from __future__ import annotations

import math
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from types import UnionType
from typing import Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from scrlm_dask.config import FitConfig, KMeansConfig
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import Features
from scrlm_dask.errors import StoreError
from scrlm_dask.events import IterationDone, PhaseFinished
from scrlm_dask.kernels.bandwidth.ladder import BandwidthTrial
from scrlm_dask.kernels.bandwidth.modularity import Levels
from scrlm_dask.kernels.bandwidth.representation import RepresentationTrial
from scrlm_dask.kernels.bandwidth.search import NullRadius, PerturbedRho
from scrlm_dask.model import Model
from scrlm_dask.storage.feature_store import is_shuffled
from scrlm_dask.storage.model_store import package_versions
from scrlm_dask.storage.run_directory import RunDirectory
from scrlm_dask.storage.store_info import features_digest
from scrlm_dask.text import repeated

IN_MEMORY = "array"  # the origin of an input that has no path
_INTEGERS_END = 2**63  # larger integers of a damaged record overflow in computations
_T = TypeVar("_T")


def read_fields(kind: type[_T], content: dict[str, Any]) -> _T:
    """Build a dataclass from JSON and ignore unknown fields.

    The metadata of a field may specify its name in JSON ("json"), the value that replaces null
    ("null"), and that a list must not be empty ("not_empty"). A field that is missing or has a
    wrong type raises KeyError with its name.
    """
    types = get_type_hints(kind)
    values = {}
    for each in fields(kind):  # type: ignore[arg-type]
        name = each.metadata.get("json", each.name)
        if name in content and content[name] is None and "null" in each.metadata:
            values[each.name] = each.metadata["null"]
        elif name in content:
            values[each.name] = _read_value(name, types[each.name], content[name])
            if each.metadata.get("not_empty") and not values[each.name]:
                raise KeyError(name)
        elif each.default is MISSING and each.default_factory is MISSING:
            raise KeyError(name)
    return kind(**values)


def _read_value(name: str, hint: Any, value: Any) -> Any:
    """Convert a JSON value to the type of a field: a class, a list of a type, or a union."""
    for option in get_args(hint) if isinstance(hint, UnionType) else (hint,):
        kind = get_origin(option) or option
        if is_dataclass(kind) and isinstance(value, dict):
            return read_fields(kind, value)  # type: ignore[arg-type]
        if kind in (list, tuple) and isinstance(value, list | tuple):
            return kind(_read_value(name, get_args(option)[0], item) for item in value)
        if kind is Literal:
            if value in get_args(option):
                return value
            continue
        if kind in (int, float):
            if _is_number(value, kind):
                return kind(value)
        elif isinstance(value, kind):
            return value
    raise KeyError(name)


def _is_number(value: Any, kind: type) -> bool:
    """Return whether a JSON value is a finite number of this type that can be computed with."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < _INTEGERS_END
    return kind is float and isinstance(value, float) and math.isfinite(value)


class StoredRecord:
    """Base class of records that are read from `run.json`."""

    @classmethod
    def from_json(cls, content: dict[str, Any], place: object = "the record of the run") -> Self:
        """Read the fields; StoreError names a field that is missing or has a wrong type."""
        try:
            return read_fields(cls, content)
        except KeyError as error:
            raise StoreError(
                f"{place} lacks {error.args[0]!r}, or its value is invalid: the record was damaged "
                "or changed; run the fit again with --overwrite (overwrite=True), or use another "
                "output"
            ) from error


@dataclass(frozen=True, kw_only=True)
class FeaturesRecord:
    """Origin, shape and digest of the features that a run reads."""

    source: str = ""  # name in messages
    path: str | None
    rows: int
    features: int
    dtype: str
    blocks: int
    block_rows: int
    digest: str | None = None  # None: without a path, the rows cannot be opened again


@dataclass(frozen=True)
class RequestRecord:
    """Settings and inputs as given by the user."""

    config: dict[str, Any]
    block_rows: int | None
    inputs: dict[str, Any]  # origin and digest of inputs other than the features
    in_memory: bool  # whether one of these inputs is an array without a path


@dataclass(frozen=True, kw_only=True)
class RunRecord(StoredRecord):
    """Record of a run at its start: the fields that are known before the first row is read.

    They identify the run on resume.
    """

    method: str
    started: str
    features: FeaturesRecord
    asked: RequestRecord
    # digest of the modification times of the feature files at the start
    features_written: str | None = None
    # whether ingest shuffled the rows; None: not known, or recorded by an earlier version
    features_shuffled: bool | None = None
    config: dict[str, Any]  # with resolved values of settings such as "auto"
    versions: dict[str, str]
    attempts: int | None = None  # None: the run has no directory
    attempt: str | None = None  # unique id of the attempt that writes the directory

    @property
    def is_resumable(self) -> bool:
        """True if another process can open the same input again."""
        return self.features.digest is not None and not self.asked.in_memory

    def to_json(self) -> dict[str, Any]:
        """Return the content of `run.json` at the start of the run."""
        content = asdict(self)
        if self.attempts is None:
            del content["attempts"], content["attempt"]
        return content


@dataclass(frozen=True, kw_only=True)
class ScanRecord(StoredRecord):
    """Record of the choice of rho on a sample of rows."""

    sampled_rows: int
    blocks: int
    judged_rows: int
    held_out_rows: int
    candidates: int
    needed_candidates: int
    preprocess: str = "standardize"
    representations: list[RepresentationTrial] = field(default_factory=list)
    levels: Levels | None = None
    null: NullRadius | None = None
    rho: float
    low: float
    high: float
    basis: str
    why: str
    extraction: str
    clusters: int
    coverage: float
    stability: list[PerturbedRho]
    sigma_max: float
    assumption_1: bool  # sigma_max <= rho < sqrt(0.6)
    trials: list[BandwidthTrial] = field(metadata={"json": "rungs"})

    def to_json(self) -> dict[str, Any]:
        """Return the entry of `run.json`."""
        content = asdict(self)
        del content["trials"]
        return content | {"rungs": [trial.record() for trial in self.trials]}


@dataclass(frozen=True)
class KMeansRecord:
    """Record of k-means: its iterations, and the stopping rule that applied."""

    iterations: list[IterationDone]
    stopped: str


@dataclass(frozen=True)
class ResultRecord(StoredRecord):
    """Record of a complete run, with only the fields that commands and reports read."""

    method: Literal["scrlm", "k-means"]
    config: dict[str, Any]  # with every "auto" resolved
    features: FeaturesRecord
    phases: list[PhaseFinished] = field(metadata={"not_empty": True})
    seconds: float
    outlier_share: float
    radius: float | None  # None: infinite
    kmeans: KMeansRecord | None = None
    scan: dict[str, Any] = field(default_factory=dict)  # parsed by `read_scan`
    started: str = ""
    workers: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def read_scan(self) -> ScanRecord | None:
        """Return the choice of rho; None if rho was given or no trial found a cluster."""
        return ScanRecord.from_json(self.scan) if self.scan.get("rungs") else None

    @property
    def iterations(self) -> list[IterationDone]:
        """The iterations of k-means; empty if it did not run."""
        return [] if self.kmeans is None else self.kmeans.iterations

    def phase_totals(self) -> dict[str, PhaseFinished]:
        """Return the totals of each phase by its title; all iterations of k-means are one entry."""
        by_name: dict[str, list[PhaseFinished]] = {}
        for phase in self.phases:
            by_name.setdefault(phase.name, []).append(phase)
        return {
            repeated(name, len(same)): PhaseFinished(
                name,
                seconds=sum(phase.seconds for phase in same),
                rows=sum(phase.rows for phase in same),
                bytes=sum(phase.bytes for phase in same),
                blocks=sum(phase.blocks for phase in same),
                peak_worker_bytes=max(phase.peak_worker_bytes for phase in same),
                read_seconds=sum(phase.read_seconds for phase in same),
            )
            for name, same in by_name.items()
        }


def read_result(run: RunDirectory) -> ResultRecord:
    """Read the record of a complete run."""
    return ResultRecord.from_json(run.check_complete(), run.record)


def start_record(
    features: Features,
    config: FitConfig | KMeansConfig,
    *,
    numbers: dict[str, Any],
    inputs: dict[str, Any],
    block_rows: int | None,
) -> RunRecord:
    """Build the initial record of a run, including the fields that identify it on resume.

    `numbers` are the values that replace settings such as "auto"; `inputs` describes the inputs
    other than the features.
    """
    location = features.location
    return RunRecord(
        method="scrlm" if isinstance(config, FitConfig) else "k-means",
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        features=FeaturesRecord(
            source=features.label,
            path=features.path,
            rows=features.n_rows,
            features=features.n_features,
            dtype=str(features.array.dtype),
            blocks=features.n_blocks,
            block_rows=features.block_rows,
            digest=None if location is None else features_digest(location, features.files),
        ),
        asked=RequestRecord(asdict(config), block_rows, inputs, IN_MEMORY in inputs.values()),
        features_written=None,
        features_shuffled=None if location is None else is_shuffled(location),
        config={**asdict(config), **numbers},
        versions=package_versions(),
    )


def result_record(
    start: RunRecord, model: Model, execution: Execution, seconds: float, details: dict[str, Any]
) -> dict[str, Any]:
    """Build the complete record of a run; `details` are the fields specific to its method."""
    return {
        **start.to_json(),
        "seconds": seconds,
        "phases": [asdict(phase) for phase in execution.phases],
        "workers": execution.reports,
        "taken_over": execution.checkpoints.reused,
        # null represents infinity, which JSON does not have
        "radius": model.radius if math.isfinite(model.radius) else None,
        "clusters": model.n_clusters,
        "outliers": model.n_outliers,
        "outlier_share": model.n_outliers / model.n_rows,
        "outlier_weight": model.outlier_weight,
        "inertia": model.inertia,
        "counts": model.counts.tolist(),
        **details,
    }
