"""Measure fits without parameters on labelled data, and compare them with other methods.

    `python -m benchmarks.embeddings levels digits mnist --seeds 10`
    `python -m benchmarks.embeddings compare tweets --data FOLDER --methods scrlm --methods hdbscan`

Sets are `digits`, `iris`, `wine`, `breast_cancer`, `mnist`, `fashion`, and all files NAME.npz with
arrays `features` and `labels` in the folder `--data`. All methods get the same rows in float32,
without preprocessing. Labels are used only to compute scores. AMI is the adjusted mutual
information with the classes; outliers count as one cluster. CPU seconds are those of this process
with all of its threads, after all kernels are compiled.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import click
import numpy as np
import zarr
from numpy.typing import NDArray

from scrlm_dask import SCRLM, ScrlmWarning
from scrlm_dask.kernels import OUTLIER
from scrlm_dask.paper.datasets import KNOWN

from .choosing import Labelled
from .common import scratch

_SKLEARN = ("digits", "iris", "wine", "breast_cancer")
_MAX_CLUSTERS = 1024
_MIN_ROWS_PER_CLUSTER = 8
_MAX_COMPONENTS = 256
_NEIGHBORS = 15
_WARM_UP_ROWS = 512


@click.group()
def main() -> None:
    """Measure fits without parameters on labelled data. Each command prints a table."""
    warnings.simplefilter("ignore", ScrlmWarning)


_names = click.argument("names", nargs=-1, required=True)
_rows = click.option(
    "--rows", type=int, help="Size of a random sample of each data set (default: all rows)."
)
_data = click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with files NAME.npz.",
)
_folder = click.option("--scratch", "folder", help="Folder for downloaded data; it is kept.")


@main.command()
@_names
@click.option("--seeds", type=click.IntRange(min=1), default=10, show_default=True)
@_rows
@_data
@_folder
def levels(
    names: tuple[str, ...], seeds: int, rows: int | None, data: Path | None, folder: str | None
) -> None:
    """Fit with default parameters, and compare with the best of all numbers of clusters.

    The best AMI is the maximum over a grid of `n_clusters` with the same preprocessing. ARI is
    between the labels of two seeds.
    """
    _check_names(names, data)
    print(
        "| data | rows x features | classes | preprocess | clusters | max / min | AMI | worst "
        "| best AMI | at m | ratio | worst | ARI of seeds | lowest | outliers | CPU s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for here in _sets(names, rows, data, folder):
        SCRLM(random_state=0).fit(here.rows)  # compiles all kernels
        print(_level_row(here, [_fit_default(here, seed) for seed in range(seeds)]), flush=True)


@dataclass(frozen=True)
class _Fit:
    """A fit with default parameters, with its AMI and CPU seconds."""

    labels: NDArray[Any]
    clusters: int
    preprocess: str
    ami: float
    cpu: float


def _fit_default(data: Labelled, seed: int) -> _Fit:
    begin = time.process_time()
    found = SCRLM(random_state=seed).fit(data.rows)
    cpu = time.process_time() - begin
    labels = np.asarray(found.labels_)
    kind = found.model_.affine.kind
    return _Fit(labels, found.n_clusters_, kind, _ami(data, labels), cpu)


def _level_row(data: Labelled, fits: list[_Fit]) -> str:
    from sklearn.metrics import adjusted_rand_score

    kinds = sorted({fit.preprocess for fit in fits})
    best, at = max(_grid_amis(data, kinds))
    clusters = [fit.clusters for fit in fits]
    amis = np.array([fit.ami for fit in fits])
    ratios = amis / best if best > 0.0 else np.full(len(fits), math.nan)
    pairs = [adjusted_rand_score(a.labels, b.labels) for a, b in combinations(fits, 2)]
    aris = np.array(pairs or [math.nan])
    spread = max(clusters) / max(min(clusters), 1)
    outliers = np.mean([_outlier_share(fit.labels) for fit in fits])
    return (
        f"| {data.name} | {_shape(data)} | {data.n_classes} | {', '.join(kinds)} "
        f"| {min(clusters)}-{max(clusters)} | {spread:.2f} | {amis.mean():.3f} | {amis.min():.3f} "
        f"| {best:.3f} | {at} | {ratios.mean():.3f} | {ratios.min():.3f} "
        f"| {aris.mean():.3f} | {aris.min():.3f} | {outliers:.1%} "
        f"| {np.mean([fit.cpu for fit in fits]):.2f} |"
    )


def _grid_amis(data: Labelled, kinds: list[str]) -> Iterator[tuple[float, int]]:
    """Yield the AMI of each number of clusters of the grid, and the number."""
    largest = min(_MAX_CLUSTERS, len(data.rows) // _MIN_ROWS_PER_CLUSTER)
    for kind in kinds:
        for m in _half_octaves(largest):
            found = SCRLM(n_clusters=m, preprocess=kind, random_state=0).fit(data.rows)
            yield _ami(data, np.asarray(found.labels_)), m


def _half_octaves(largest: int) -> list[int]:
    """Return 2, 3, 4, 6, 8, 11, ..., which grow by sqrt(2), up to `largest`; at least the 2."""
    last = math.floor(2 * math.log2(max(largest, 2) / 2) + 1e-9)
    return [round(2 * 2 ** (i / 2)) for i in range(last + 1)]


def _scrlm(x: NDArray[np.float32]) -> NDArray[Any]:
    return np.asarray(SCRLM(random_state=0).fit(x).labels_)


def _hdbscan(x: NDArray[np.float32]) -> NDArray[Any]:
    from sklearn.cluster import HDBSCAN

    return np.asarray(HDBSCAN(copy=True).fit(x).labels_)


def _evoc(x: NDArray[np.float32]) -> NDArray[Any]:
    from evoc import EVoC

    return np.asarray(EVoC(random_state=0).fit_predict(x))


def _fast_hdbscan(x: NDArray[np.float32]) -> NDArray[Any]:
    from fast_hdbscan import HDBSCAN

    return np.asarray(HDBSCAN().fit(x).labels_)


def _leiden(x: NDArray[np.float32]) -> NDArray[Any]:
    """Return the communities of the graph that connects each row with its nearest neighbors."""
    import igraph
    import leidenalg
    from sklearn.neighbors import kneighbors_graph

    graph = kneighbors_graph(x, _NEIGHBORS)
    edges = np.stack(graph.maximum(graph.T).nonzero(), axis=1)
    edges = edges[edges[:, 0] < edges[:, 1]]  # each edge once
    found = leidenalg.find_partition(
        igraph.Graph(len(x), edges.tolist()), leidenalg.ModularityVertexPartition, seed=0
    )
    return np.asarray(found.membership)


def _gaussian_mixture(x: NDArray[np.float32]) -> NDArray[Any]:
    """Return the labels of the lowest BIC; stop after two numbers of components without one."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    best, labels, worse = math.inf, np.zeros(len(x), dtype=np.int64), 0
    for m in _half_octaves(min(_MAX_COMPONENTS, len(x))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = GaussianMixture(m, covariance_type="spherical", random_state=0).fit(x)
        bic = float(model.bic(x))
        worse = 0 if bic < best else worse + 1
        if bic < best:
            best, labels = bic, np.asarray(model.predict(x))
        if worse == 2:
            break
    return labels


METHODS: dict[str, Callable[[NDArray[np.float32]], NDArray[Any]]] = {
    "scrlm": _scrlm,
    "hdbscan": _hdbscan,
    "evoc": _evoc,
    "fast_hdbscan": _fast_hdbscan,
    "leiden": _leiden,
    "gaussian_mixture": _gaussian_mixture,
}
# Optional packages; their names on PyPI and in `import` are the same. fast_hdbscan imports
# pynndescent only if there are many features.
_PACKAGES = {
    "evoc": ("evoc",),
    "fast_hdbscan": ("fast_hdbscan", "pynndescent"),
    "leiden": ("leidenalg", "igraph"),
}


def _find_missing_package(method: str) -> str | None:
    """Return the reason why a method cannot run in this environment, or None if it can run."""
    missing = [name for name in _PACKAGES.get(method, ()) if find_spec(name) is None]
    if not missing:
        return None
    packages = " ".join(missing)
    return f"needs {packages}, not installed; pip install {packages}"


@main.command()
@_names
@click.option(
    "--methods",
    multiple=True,
    type=click.Choice(list(METHODS)),
    help="Run only this method; may be repeated.",
)
@_rows
@_data
@_folder
def compare(
    names: tuple[str, ...],
    methods: tuple[str, ...],
    rows: int | None,
    data: Path | None,
    folder: str | None,
) -> None:
    """Compare SCRLM with other methods that determine the number of clusters.

    All methods use default parameters. A method whose package is not installed has a row with the
    reason.
    """
    _check_names(names, data)
    chosen = {name: _find_missing_package(name) for name in methods or METHODS}
    print("| data | rows x features | classes | method | clusters | outliers | AMI | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    for here in _sets(names, rows, data, folder):
        for name, missing in chosen.items():
            row = f"| {here.name} | {_shape(here)} | {here.n_classes} | {name} "
            row += f"| {missing} | | | |" if missing else _measure(name, here)
            print(row, flush=True)


def _measure(method: str, data: Labelled) -> str:
    METHODS[method](_warm_up_rows(data.rows.shape[1]))  # imports and compiles
    begin = time.process_time()
    labels = METHODS[method](data.rows)
    cpu = time.process_time() - begin
    clusters = len(np.unique(labels[labels != OUTLIER]))
    return f"| {clusters} | {_outlier_share(labels):.1%} | {_ami(data, labels):.3f} | {cpu:.1f} |"


def _warm_up_rows(features: int) -> NDArray[np.float32]:
    """Return random rows in two distant groups.

    Two groups, because methods on graphs of neighbors use additional kernels if the graph is not
    connected. Some methods also use other kernels if there are many features.
    """
    rows = np.random.default_rng(0).standard_normal((_WARM_UP_ROWS, features), dtype=np.float32)
    rows[::2] += 100.0
    return rows


def _ami(data: Labelled, labels: NDArray[Any]) -> float:
    from sklearn.metrics import adjusted_mutual_info_score

    return float(adjusted_mutual_info_score(data.truth, labels))


def _outlier_share(labels: NDArray[Any]) -> float:
    return float(np.mean(labels == OUTLIER))


def _shape(data: Labelled) -> str:
    return f"{data.rows.shape[0]} x {data.rows.shape[1]}"


def _check_names(names: tuple[str, ...], data: Path | None) -> None:
    known = (*_SKLEARN, *KNOWN)
    for name in names:
        if name not in known and not (data and (data / f"{name}.npz").is_file()):
            raise click.BadParameter(
                f"NAME must be one of {', '.join(known)}, or the name of a file NAME.npz in the "
                f"folder --data; got {name!r}"
            )


def _sets(
    names: tuple[str, ...], rows: int | None, data: Path | None, folder: str | None
) -> Iterator[Labelled]:
    with scratch(folder) as place:
        for name in names:
            values, truth = _read(name, data, place)
            if rows is not None and rows < len(values):
                some = np.random.default_rng(0).permutation(len(values))[:rows]
                values, truth = values[some], truth[some]
            yield Labelled(name, values.astype(np.float32), truth.astype(np.int64))


def _read(name: str, data: Path | None, place: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    if name in KNOWN:
        group = zarr.open_group(KNOWN[name](place), mode="r")
        return np.asarray(group["features"][:]), np.asarray(group["labels"][:])
    if name in _SKLEARN:
        import sklearn.datasets

        found = getattr(sklearn.datasets, f"load_{name}")()
        return np.asarray(found.data), np.asarray(found.target)
    assert data is not None
    with np.load(data / f"{name}.npz") as arrays:
        return arrays["features"], arrays["labels"]


if __name__ == "__main__":
    main()
