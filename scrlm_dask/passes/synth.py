"""Drawing the paper's mixture into a features store, each block by a worker."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.synthesis import MixtureSpec, TrueMixture, synth_block, true_mixture
from scrlm_dask.passes.execution import Execution, task
from scrlm_dask.passes.features import planned_blocks
from scrlm_dask.storage.features import write_features_block
from scrlm_dask.storage.locations import Location


def synth_pass(
    execution: Execution, spec: MixtureSpec, url: Location, n_rows: int, block_rows: int
) -> int:
    """Write all rows of the sample to the store at `url`; returns how many were written."""
    written: int = execution.map_reduce(
        "synth",
        planned_blocks((n_rows, spec.n_features), np.dtype(np.float32), block_rows),
        _synth_part,
        int.__add__,
        spec=spec,
        mixture=task("mixture", true_mixture, spec),
        url=url,
    )
    return written


def _synth_part(
    block: NDArray[Any], start: int, spec: MixtureSpec, mixture: TrueMixture, url: Location
) -> int:
    drawn = synth_block(spec, mixture, start, start + len(block))
    write_features_block(url, start, drawn.features, drawn.labels)
    return len(drawn.labels)
