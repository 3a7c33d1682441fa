"""Fit the paper's mixture with 50 % outliers for several seeds.

    python -m benchmarks.paper_mixture --seeds 10

T = N, so the number of clusters is determined from the data. A seed passes if accuracy and outlier
recall are 1, weights are within 10 % and sigmas within 5 %. The exit code is 1 if a seed fails.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from scrlm_dask.config import FitConfig
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.evaluate import Evaluation, evaluate
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.synth import synth

from .common import scratch, workers


@click.command()
@click.option("--seeds", default=10, show_default=True)
@click.option("--rows", default=20_000, show_default=True)
@click.option("--features", default=640, show_default=True)
@click.option("--clusters", default=100, show_default=True)
@click.option("--rho", default=0.5, show_default=True)
@click.option("--nworkers", default=2, show_default=True)
def main(seeds: int, rows: int, features: int, clusters: int, rho: float, nworkers: int) -> None:
    """Print one line per seed."""
    failures = 0
    print("seed  clusters  accuracy  outlier recall  weight error  sigma error")
    with scratch(None) as folder, workers(nworkers, "2GB"):
        for seed in range(seeds):
            spec = MixtureSpec(features, clusters, 0.5, seed=seed)
            found = run(folder, rows, spec, FitConfig(rho=rho, n_clusters=rows, seed=seed))
            errors = found.recovery
            assert errors is not None
            print(
                f"{seed:4}  {found.scores.n_clusters:8}  {found.scores.accuracy:8.6f}  "
                f"{found.scores.outlier_recall:14.6f}  "
                f"{errors.weights:12.2%}  {errors.sigmas:11.2%}",
                flush=True,
            )
            failures += not passes(found)
    print(f"{seeds - failures} of {seeds} seeds pass")
    sys.exit(failures > 0)


def run(folder: Path, rows: int, spec: MixtureSpec, config: FitConfig) -> Evaluation:
    store, out = folder / "features.zarr", folder / "run"
    synth(store, rows, spec, chunk_bytes=8_000_000, overwrite=True)
    fit(store, config, out=out, overwrite=True, block_rows=2048)
    return evaluate(out)


def passes(found: Evaluation) -> bool:
    errors = found.recovery
    return (
        found.scores.accuracy == 1.0
        and found.scores.outlier_recall == 1.0
        and errors is not None
        and errors.weights <= 0.10
        and errors.sigmas <= 0.05
    )


if __name__ == "__main__":
    main()
