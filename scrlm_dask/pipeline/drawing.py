"""A sample of the paper's mixture as a features store."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict

import numpy as np

from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, warn
from scrlm_dask.kernels.synthesis import STRATUM_ROWS, MixtureSpec, true_mixture
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.mounts import check_seen_by_workers
from scrlm_dask.passes.synth import synth_pass
from scrlm_dask.storage.arrays import add_array
from scrlm_dask.storage.features import (
    TARGET_BLOCK_BYTES,
    TRUE,
    block_rows_for,
    create_features_store,
    mark_complete,
)
from scrlm_dask.storage.locations import Options, Place, locate
from scrlm_dask.storage.manifest import Manifest
from scrlm_dask.storage.outputs import FEATURES_KIND, check_way, discard, make_way


def check_synth(
    path: Place, n_rows: int, overwrite: bool = False, storage_options: Options | None = None
) -> None:
    """Raise what `synth` would raise before it draws a row."""
    if n_rows < 1:
        raise InputError(f"{n_rows} rows cannot be drawn; ask for at least 1")
    check_way(locate(path, storage_options), overwrite, FEATURES_KIND)


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
    make_way(url, overwrite, FEATURES_KIND)
    # whole strata: none is drawn twice
    shape = (n_rows, spec.n_features)
    fitting = block_rows_for(shape, np.dtype(np.float32), None, chunk_bytes)
    block_rows = min(n_rows, -(-fitting // STRATUM_ROWS) * STRATUM_ROWS)
    with ExitStack() as undo, Execution(listener) as execution:
        undo.callback(discard, url)
        request = {"mixture": asdict(spec)}
        manifest = Manifest(n_rows, spec.n_features, "float32", block_rows, (), request)
        create_features_store(url, manifest, labels=True, attributes=request)
        check_seen_by_workers(url)
        synth_pass(execution, spec, url, n_rows, block_rows)
        truth = true_mixture(spec)
        for name in ("weights", "means", "sigmas"):
            add_array(url / f"{TRUE}{name}", getattr(truth, name))
        mark_complete(url)
        undo.pop_all()
    return url.url
