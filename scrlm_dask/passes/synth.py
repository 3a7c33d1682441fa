"""Drawing the paper's mixture into a features store, each block by a worker."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.synthesis import MixtureSpec, TrueMixture, synth_block, true_mixture
from scrlm_dask.passes.execution import Execution, task
from scrlm_dask.passes.features import Features
from scrlm_dask.storage.features import write_features_block
from scrlm_dask.storage.locations import Location


def synth_pass(
    execution: Execution, spec: MixtureSpec, url: Location, n_rows: int, block_rows: int
) -> int:
    """Write all rows of the sample to the store at `url`; returns how many were written."""
    # a plan of blocks with nothing in them: drawing is the part, so that it is one task a block
    sizes = [min(block_rows, n_rows - i) for i in range(0, n_rows, block_rows)]
    plan = da.map_blocks(
        _nothing,
        chunks=(tuple(sizes), (spec.n_features,)),
        dtype=np.float32,
        meta=np.empty((0, 0), np.float32),
    )
    written: int = execution.map_reduce(
        "synth",
        Features(plan, block_rows, "the plan"),
        _synth_part,
        int.__add__,
        spec=spec,
        mixture=task("mixture", true_mixture, spec),
        url=url,
    )
    return written


def _nothing(block_info: Any = None) -> NDArray[np.float32]:
    # strides of 0: the shape of the block without its memory
    return np.broadcast_to(np.float32(0), block_info[None]["chunk-shape"])


def _synth_part(
    block: NDArray[Any], start: int, spec: MixtureSpec, mixture: TrueMixture, url: Location
) -> int:
    drawn = synth_block(spec, mixture, start, start + len(block))
    write_features_block(url, start, drawn.features, drawn.labels)
    return len(drawn.labels)
