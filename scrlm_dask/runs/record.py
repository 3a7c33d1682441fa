"""What `run.json` says of a fit."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from scrlm_dask.config import FitConfig, KMeansConfig
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import Features
from scrlm_dask.model import Model
from scrlm_dask.storage.locations import Options, locate
from scrlm_dask.storage.model_store import method_of, package_versions
from scrlm_dask.storage.store_info import features_digest, features_mtimes_digest

IN_MEMORY = "array"  # where an input comes from that no path leads to


def opening_record(
    features: Features,
    config: FitConfig | KMeansConfig,
    numbers: dict[str, Any],
    *,
    block_rows: int | None,
    storage_options: Options | None,
    inputs: dict[str, Any],
) -> dict[str, Any]:
    """What is known before the first row is read, and all that a run is known again by.

    `numbers` are those that stand for words of the config, `inputs` what is read beside features.
    """
    digest = written = None
    if features.path is not None:
        place = locate(features.path, storage_options)
        digest, written = features_digest(place), features_mtimes_digest(place)
    return {
        "method": "scrlm" if isinstance(config, FitConfig) else "k-means",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "features": {
            "source": features.label,
            "path": features.path,
            "rows": features.n_rows,
            "features": features.n_features,
            "dtype": str(features.array.dtype),
            "blocks": features.n_blocks,
            "block_rows": features.block_rows,
            "digest": digest,
        },
        "asked": {
            "config": asdict(config),
            "block_rows": block_rows,
            "inputs": inputs,
            "in_memory": IN_MEMORY in inputs.values(),
        },
        "features_written": written,
        "config": {**asdict(config), **numbers},
        "versions": package_versions(),
    }


def closing_record(
    model: Model, execution: Execution, seconds: float, pruning: dict[str, Any]
) -> dict[str, Any]:
    """Build the part of the record that is known at the end; `pruning` is keyed by pass."""
    return {
        "seconds": seconds,
        "phases": [asdict(phase) for phase in execution.phases],
        "workers": execution.reports,
        "pruning": pruning,
        "taken_over": execution.checkpoints.reused,
        "method": method_of(model),
        # JSON has no infinity: null stands for it
        "radius": model.radius if math.isfinite(model.radius) else None,
        "clusters": model.n_clusters,
        "outliers": model.n_outliers,
        "outlier_share": model.n_outliers / model.n_rows,
        "outlier_weight": model.outlier_weight,
        "inertia": model.inertia,
        "counts": model.counts.tolist(),
    }
