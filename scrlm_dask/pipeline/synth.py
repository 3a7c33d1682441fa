"""Drawing the paper's mixture into a features store, each block by a worker."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution, Pass, task
from scrlm_dask.engine.features import placeholder_blocks
from scrlm_dask.engine.workers import check_paths_visible
from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, warn
from scrlm_dask.kernels.randomness.synthesis import (
    STRATUM_ROWS,
    MixtureSpec,
    TrueMixture,
    synth_block,
    true_mixture,
)
from scrlm_dask.storage.arrays import add_array
from scrlm_dask.storage.feature_store import (
    TARGET_BLOCK_BYTES,
    TRUE,
    block_rows_for,
    create_features_store,
    mark_complete,
    write_features_block,
)
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.manifest import Manifest
from scrlm_dask.storage.outputs import FEATURES_KIND, check_output_free, clear_output, discard


def synth_pass(
    execution: Execution, spec: MixtureSpec, url: Location, n_rows: int, block_rows: int
) -> int:
    """Write all rows of the sample to the store at `url`; returns how many were written."""
    written: int = execution.run(
        _SYNTH,
        placeholder_blocks((n_rows, spec.n_features), np.dtype(np.float32), block_rows),
        {"spec": spec, "mixture": task("mixture", true_mixture, spec), "url": url},
    )
    return written


def _synth_part(
    block: NDArray[Any], start: int, spec: MixtureSpec, mixture: TrueMixture, url: Location
) -> int:
    drawn = synth_block(spec, mixture, start, start + len(block))
    write_features_block(url, start, drawn.features, drawn.labels)
    return len(drawn.labels)


_SYNTH = Pass("synth", _synth_part, int.__add__)


def check_synth(
    path: Place, n_rows: int, overwrite: bool = False, storage_options: Options | None = None
) -> None:
    """Raise what `synth` would raise before it draws a row."""
    if n_rows < 1:
        raise InputError(f"{n_rows} rows cannot be drawn; ask for at least 1")
    check_output_free(locate(path, storage_options), overwrite, FEATURES_KIND)


def synth(
    path: Place,
    n_rows: int,
    spec: MixtureSpec,
    *,
    chunk_bytes: int = TARGET_BLOCK_BYTES,
    overwrite: bool = False,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> str:
    """Write a sample of the paper's mixture, with its truth, as a features store; returns where."""
    url = locate(path, storage_options)
    check_synth(url, n_rows, overwrite)
    clear_output(url, overwrite, FEATURES_KIND)
    # whole strata: none is drawn twice
    shape = (n_rows, spec.n_features)
    fitting = block_rows_for(shape, np.dtype(np.float32), None, chunk_bytes)
    block_rows = min(n_rows, -(-fitting // STRATUM_ROWS) * STRATUM_ROWS)
    with ExitStack() as undo, Execution(listener) as execution:
        undo.callback(discard, url)
        request = {"mixture": asdict(spec)}
        manifest = Manifest(n_rows, spec.n_features, "float32", block_rows, (), request)
        create_features_store(url, manifest, labels=True, attributes=request)
        check_paths_visible(url)
        synth_pass(execution, spec, url, n_rows, block_rows)
        truth = true_mixture(spec)
        for name in ("weights", "means", "sigmas"):
            add_array(url / f"{TRUE}{name}", getattr(truth, name))
        mark_complete(url)
        undo.pop_all()
    return url.url
