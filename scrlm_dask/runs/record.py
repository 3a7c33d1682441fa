"""The record of a run, as `run.json` stores it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from scrlm_dask.config import FitConfig, KMeansConfig
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import Features
from scrlm_dask.model import Model
from scrlm_dask.storage.locations import Options, locate
from scrlm_dask.storage.model_store import package_versions
from scrlm_dask.storage.store_info import features_digest

IN_MEMORY = "array"  # the origin of an input that has no path


@dataclass(frozen=True)
class FeaturesRecord:
    """The features that a run reads."""

    source: str  # as messages call it
    path: str | None
    rows: int
    features: int
    dtype: str
    blocks: int
    block_rows: int
    digest: str | None  # None: no path, so no later process can find the same rows


@dataclass(frozen=True)
class RequestRecord:
    """The settings and inputs that the user gave."""

    config: dict[str, Any]
    block_rows: int | None
    inputs: dict[str, Any]  # origin and digest of inputs other than the features
    in_memory: bool  # whether one of these inputs is an array without a path


@dataclass(frozen=True)
class RunRecord:
    """Everything that is known before the first row is read, and identifies a run on resume."""

    method: str
    started: str
    features: FeaturesRecord
    asked: RequestRecord
    features_written: str | None  # digest of the files' modification times when the run starts
    config: dict[str, Any]  # with the numbers that words such as "auto" stand for
    versions: dict[str, str]
    attempts: int | None = None  # None: the run has no directory
    attempt: str | None = None  # a unique name of the process that writes the directory

    @property
    def is_resumable(self) -> bool:
        """Whether another process could find the same input again."""
        return self.features.digest is not None and not self.asked.in_memory

    def to_json(self) -> dict[str, Any]:
        content = asdict(self)
        if self.attempts is None:
            del content["attempts"], content["attempt"]
        return content

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> RunRecord:
        """Read the part of a record that is written first; KeyError or TypeError if it lacks."""
        names = ("method", "started", "config", "versions")
        return cls(
            **{name: content[name] for name in names},
            features=FeaturesRecord(**content["features"]),
            asked=RequestRecord(**content["asked"]),
            features_written=content.get("features_written"),
            attempts=content.get("attempts"),
            attempt=content.get("attempt"),
        )


def start_record(
    features: Features,
    config: FitConfig | KMeansConfig,
    *,
    numbers: dict[str, Any],
    inputs: dict[str, Any],
    block_rows: int | None,
    storage_options: Options | None,
) -> RunRecord:
    """Build the initial record of a run, including the fields that identify it on resume.

    `numbers` are the resolved values of settings such as "auto"; `inputs` are inputs other than
    the features.
    """
    path = features.path
    return RunRecord(
        method="scrlm" if isinstance(config, FitConfig) else "k-means",
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        features=FeaturesRecord(
            source=features.label,
            path=path,
            rows=features.n_rows,
            features=features.n_features,
            dtype=str(features.array.dtype),
            blocks=features.n_blocks,
            block_rows=features.block_rows,
            digest=None if path is None else features_digest(locate(path, storage_options)),
        ),
        asked=RequestRecord(asdict(config), block_rows, inputs, IN_MEMORY in inputs.values()),
        features_written=None,
        config={**asdict(config), **numbers},
        versions=package_versions(),
    )


def result_record(
    start: RunRecord, model: Model, execution: Execution, seconds: float, details: dict[str, Any]
) -> dict[str, Any]:
    """Build the complete record of a run; `details` are those of its method."""
    return {
        **start.to_json(),
        "seconds": seconds,
        "phases": [asdict(phase) for phase in execution.phases],
        "workers": execution.reports,
        "taken_over": execution.checkpoints.reused,
        # JSON has no infinity: null stands for it
        "radius": model.radius if math.isfinite(model.radius) else None,
        "clusters": model.n_clusters,
        "outliers": model.n_outliers,
        "outlier_share": model.n_outliers / model.n_rows,
        "outlier_weight": model.outlier_weight,
        "inertia": model.inertia,
        "counts": model.counts.tolist(),
        **details,
    }
