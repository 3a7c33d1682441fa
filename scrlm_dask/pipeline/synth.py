"""Draw rows of the paper's mixture and write a features store; each task draws one block."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution, Pass, task
from scrlm_dask.engine.features import placeholder_blocks
from scrlm_dask.engine.workers import check_paths_visible
from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, warn
from scrlm_dask.kernels.randomness import synthesis
from scrlm_dask.storage import feature_store
from scrlm_dask.storage.arrays import add_array
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.manifest import Manifest
from scrlm_dask.storage.outputs import FEATURES_KIND, check_output_free, replacing
from scrlm_dask.storage.store_info import mark_features_complete


def synth(
    path: Place,
    n_rows: int,
    spec: synthesis.MixtureSpec,
    *,
    chunk_bytes: int = feature_store.TARGET_BLOCK_BYTES,
    overwrite: bool = False,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> str:
    """Draw rows of the paper's mixture, and write them with their labels as a features store.

    Each row depends only on `spec` and its row number, not on the workers or the chunks.

    Parameters
    ----------
    path : str or Path
        Path or URL of the new features store.
    n_rows : int
        Number of rows.
    spec : MixtureSpec
        Parameters of the mixture.
    chunk_bytes : int
        Approximate size of a chunk.
    overwrite : bool
        Replace a features store that exists at `path`.
    storage_options : dict or None
        fsspec options used to open URLs. They are neither printed nor saved.
    listener : callable
        Receives the events of the run (`scrlm_dask.events`); by default, warnings are emitted.

    Returns
    -------
    str
        Absolute path or URL of the store.

    Raises
    ------
    InputError
        If `n_rows` is less than 1.
    StoreError
        If `path` exists and `overwrite` is False.

    Examples
    --------
    >>> import scrlm_dask
    >>> spec = scrlm_dask.MixtureSpec(n_features=16, n_clusters=4, outliers=0.3)
    >>> path = scrlm_dask.synth("mixture.zarr", 1000, spec)
    >>> scrlm_dask.FeatureStore(path).shape
    (1000, 16)
    """
    job = prepare_synth(path, n_rows, spec, chunk_bytes, overwrite, storage_options)
    return job.run(listener)


def prepare_synth(
    path: Place,
    n_rows: int,
    spec: synthesis.MixtureSpec,
    chunk_bytes: int,
    overwrite: bool,
    storage_options: Options | None,
) -> SynthJob:
    """Validate the arguments and the output of `synth`; draw no row."""
    if n_rows < 1:
        raise InputError(f"--rows (n_rows) must be at least 1, got {n_rows}")
    location = locate(path, storage_options)
    check_output_free(location, overwrite, FEATURES_KIND)
    shape = (n_rows, spec.n_features)
    fitting = feature_store.block_rows_for(shape, np.dtype(np.float32), None, chunk_bytes)
    # blocks of whole strata, so that no stratum is drawn for two blocks
    block_rows = min(n_rows, -(-fitting // synthesis.STRATUM_ROWS) * synthesis.STRATUM_ROWS)
    return SynthJob(location, n_rows, spec, block_rows, overwrite)


@dataclass(frozen=True)
class SynthJob:
    """A validated call of `synth`, ready to run."""

    location: Location
    n_rows: int
    spec: synthesis.MixtureSpec
    block_rows: int
    overwrite: bool

    def run(self, listener: Listener = warn) -> str:
        """Draw and write the rows, their labels and the mixture; return the URL of the store."""
        spec, n_rows = self.spec, self.n_rows
        request = {"mixture": asdict(spec)}
        manifest = Manifest(n_rows, spec.n_features, "float32", self.block_rows, (), request)
        with (
            replacing(self.location, self.overwrite, FEATURES_KIND) as at,
            Execution(listener) as execution,
        ):
            feature_store.create_features_store(at, manifest, labels=True, attributes=request)
            check_paths_visible(at)
            synth_pass(execution, spec, at, n_rows, self.block_rows)
            truth = synthesis.true_mixture(spec)
            for name in ("weights", "means", "sigmas"):
                add_array(at / f"{feature_store.TRUE}{name}", getattr(truth, name))
            mark_features_complete(at)
        return self.location.url


def synth_pass(
    execution: Execution,
    spec: synthesis.MixtureSpec,
    location: Location,
    n_rows: int,
    block_rows: int,
) -> int:
    """Draw all rows and write them to the store at `location`; return their number."""
    written: int = execution.run(
        Pass("synth", _synth_part, int.__add__),
        placeholder_blocks((n_rows, spec.n_features), np.dtype(np.float32), block_rows),
        {
            "spec": spec,
            "mixture": task("mixture", synthesis.true_mixture, spec),
            "location": location,
        },
    )
    return written


def _synth_part(
    block: NDArray[Any],
    start: int,
    spec: synthesis.MixtureSpec,
    mixture: synthesis.TrueMixture,
    location: Location,
) -> int:
    drawn = synthesis.synth_block(spec, mixture, start, start + len(block))
    feature_store.write_features_block(location, start, drawn.features, drawn.labels)
    return len(drawn.labels)
