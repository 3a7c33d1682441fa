"""Measure rho="auto" on the paper's mixture, and on real data compared with k-means++.

    `python -m benchmarks.choosing mixture --seeds 10`
    `python -m benchmarks.choosing baselines mnist fashion digits --seeds 10`
    `python -m benchmarks.choosing grid mnist fashion digits --rows 20000`

Labels are used only to compute accuracy. CPU seconds are those of this process with all of its
threads. All methods get the same standardized array in memory.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import zarr
from numpy.typing import NDArray

from scrlm_dask import SCRLM, LloydConfig, ScrlmWarning
from scrlm_dask.kernels.evaluation.metrics import contingency, scores
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec, synth_block, true_mixture
from scrlm_dask.paper.datasets import KNOWN

from .common import scratch

_ITERATIONS = LloydConfig(max_iter=100)
_GRID = np.geomspace(0.15, 1.2, 30)


@dataclass(frozen=True)
class Labelled:
    """A labelled data set: rows (N, p) and classes (N,)."""

    name: str
    rows: NDArray[np.float32]
    truth: NDArray[np.int64]

    @property
    def n_classes(self) -> int:
        return len(np.unique(self.truth))

    def accuracy(self, labels: NDArray[Any]) -> float:
        return scores(contingency(self.truth, labels)).accuracy


@click.group()
def main() -> None:
    """Measure the results of rho="auto". Each command prints a table."""
    warnings.simplefilter("ignore", ScrlmWarning)


@main.command()
@click.option("--seeds", default=10, show_default=True)
@click.option("--rows", default=20_000, show_default=True)
@click.option("--clusters", multiple=True, type=int, default=(3, 20, 100, 500), show_default=True)
@click.option("--features", multiple=True, type=int, default=(32, 128, 640), show_default=True)
@click.option("--outliers", multiple=True, type=float, default=(0.0, 0.2, 0.5), show_default=True)
def mixture(
    seeds: int,
    rows: int,
    clusters: tuple[int, ...],
    features: tuple[int, ...],
    outliers: tuple[float, ...],
) -> None:
    """Fit the paper's mixture with default parameters, and with rho 0.5 as in the theory."""
    print("| clusters | features | outliers | auto exact | 0.5 exact | rho | CPU s |")
    print("|---|---|---|---|---|---|---|")
    for cell in ((m, p, o) for m in clusters for p in features for o in outliers):
        runs = [_on_mixture(*cell, rows, seed) for seed in range(seeds)]
        auto, paper = (sum(run[k] for run in runs) for k in (0, 1))
        rhos = [run[2] for run in runs]
        cpu = np.mean([run[3] for run in runs])
        print(
            f"| {cell[0]} | {cell[1]} | {cell[2]:.0%} | {auto} of {seeds} | {paper} of {seeds} "
            f"| {min(rhos):.2f}-{max(rhos):.2f} | {cpu:.1f} |",
            flush=True,
        )


def _on_mixture(
    m: int, p: int, outliers: float, rows: int, seed: int
) -> tuple[bool, bool, float, float]:
    spec = MixtureSpec(p, m, outliers, seed=seed)
    drawn = synth_block(spec, true_mixture(spec), 0, rows)
    begin = time.process_time()
    auto = SCRLM(random_state=seed).fit(drawn.features)
    cpu = time.process_time() - begin
    paper = SCRLM(rho=0.5, random_state=seed).fit(drawn.features)
    exact = [
        found.n_clusters_ == m and scores(contingency(drawn.labels, found.labels_)).accuracy == 1.0
        for found in (auto, paper)
    ]
    return exact[0], exact[1], auto.rho_, cpu


_names = click.argument("names", nargs=-1, required=True)
_rows = click.option(
    "--rows", type=int, help="Size of a random sample of each data set (default: all rows)."
)
_folder = click.option("--scratch", "folder", help="Folder for the data; it is kept.")


@main.command()
@_names
@click.option("--seeds", default=10, show_default=True)
@_rows
@_folder
def baselines(names: tuple[str, ...], seeds: int, rows: int | None, folder: str | None) -> None:
    """Compare SCRLM + k-means with scikit-learn's k-means++; only the number of clusters is given.

    Values are means over the seeds. Inertia is per row and feature.
    """
    print("| data | inertia | k-means++ | accuracy | k-means++ | SCRLM only | CPU s | k-means++ |")
    print("|---|---|---|---|---|---|---|---|")
    for data in _sets(names, rows, folder):
        _compare(data, 0)  # compiles all kernels
        runs = np.array([_compare(data, seed) for seed in range(seeds)])
        a = runs.mean(axis=0)
        print(
            f"| {data.name} | {a[0]:.5f} | {a[1]:.5f} | {a[2]:.4f} | {a[3]:.4f} | {a[4]:.4f} "
            f"| {a[5]:.2f} | {a[6]:.2f} |",
            flush=True,
        )


def _compare(data: Labelled, seed: int) -> tuple[float, ...]:
    """Return inertias, accuracies and CPU seconds of SCRLM + k-means and of k-means++.

    A third accuracy, of SCRLM without k-means, follows the first two.
    """
    from sklearn.cluster import KMeans

    k, x = data.n_classes, data.rows
    begin = time.process_time()
    found = SCRLM(k, refine=_ITERATIONS, preprocess="none", random_state=seed).fit(x)
    cpu = time.process_time() - begin
    begin = time.process_time()
    other = KMeans(k, n_init=1, random_state=seed).fit(x)
    other_cpu = time.process_time() - begin
    alone = SCRLM(k, preprocess="none", refine=0, random_state=seed).fit(x)
    accuracies = (data.accuracy(labels) for labels in (found.labels_, other.labels_, alone.labels_))
    return found.inertia_ / x.size, other.inertia_ / x.size, *accuracies, cpu, other_cpu


@main.command()
@_names
@_rows
@_folder
def grid(names: tuple[str, ...], rows: int | None, folder: str | None) -> None:
    """Compare rho="auto" with the best of 30 values of rho, for extraction greedy and merge."""
    print("| data | | auto | best greedy | at rho | best merge | at rho |")
    print("|---|---|---|---|---|---|---|")
    for data in _sets(names, rows, folder):
        for name, options in (
            ("SCRLM only", {"refine": 0}),
            ("+ k-means", {"refine": _ITERATIONS}),
        ):
            auto = _accuracy(data, **options)
            row = f"| {data.name} | {name} | {auto:.4f}"
            for way in ("greedy", "merge"):
                given = options | ({"robust": False} if options["refine"] or way == "merge" else {})
                found = [_accuracy(data, rho=r, extraction=way, **given) for r in _GRID.tolist()]
                best = int(np.argmax(found))
                row += f" | {found[best]:.4f} | {_GRID[best]:.2f}"
            print(row + " |", flush=True)


def _accuracy(data: Labelled, **options: Any) -> float:
    found = SCRLM(data.n_classes, preprocess="none", **options).fit(data.rows)
    return data.accuracy(np.asarray(found.labels_))


def _sets(names: tuple[str, ...], rows: int | None, folder: str | None) -> Iterator[Labelled]:
    with scratch(folder) as place:
        for name in names:
            values, truth = _read(name, place)
            if rows is not None and rows < len(values):
                some = np.random.default_rng(0).permutation(len(values))[:rows]
                values, truth = values[some], truth[some]
            deviations = values.std(axis=0, dtype=np.float64)
            values = (values - values.mean(axis=0, dtype=np.float64)) / np.where(
                deviations > 0.0, deviations, 1.0
            )
            yield Labelled(name, values.astype(np.float32), truth)


def _read(name: str, folder: Path) -> tuple[NDArray[Any], NDArray[np.int64]]:
    if name in KNOWN:
        group = zarr.open_group(KNOWN[name](folder), mode="r")
        return np.asarray(group["features"][:]), np.asarray(group["labels"][:], np.int64)
    import sklearn.datasets

    found = getattr(sklearn.datasets, f"load_{name}")()
    return np.asarray(found.data), np.asarray(found.target, np.int64)


if __name__ == "__main__":
    main()
