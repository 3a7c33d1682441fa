"""What `run.json` says of a fit."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from scrlm_dask.config import ResolvedConfig
from scrlm_dask.model import Model
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.features import Features
from scrlm_dask.storage.models import method_of, package_versions


def config_record(config: ResolvedConfig) -> dict[str, Any]:
    """What was asked, with the numbers that it stands for."""
    return {
        **asdict(config.asked),
        "n_candidates": config.n_candidates,
        "loss_rows": config.loss_rows,
    }


def opening_record(features: Features, config: dict[str, Any]) -> dict[str, Any]:
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "features": {
            "source": features.what,
            "path": features.path,
            "rows": features.n_rows,
            "features": features.n_features,
            "dtype": str(features.array.dtype),
            "blocks": features.n_blocks,
            "block_rows": features.block_rows,
        },
        "config": config,
        "versions": package_versions(),
    }


def closing_record(model: Model, execution: Execution, seconds: float) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "phases": [asdict(phase) for phase in execution.phases],
        "workers": execution.reports,
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
