"""Real images: accuracy, purity and time of methods, the paper's Figures 7 to 10 and Tables 1, 2.

Every fit is a process of its own with limits; CPU seconds are those of the fit, whatever begins it
included. Labels serve to measure and for nothing else.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.experiments.experiment import Experiment, Result, Size
from scrlm_dask.experiments.image_findings import image_findings
from scrlm_dask.experiments.labelled import Labelled, Shape, read_labelled, shape_of
from scrlm_dask.kernels.metrics import contingency, scores
from scrlm_dask.rivals import Task, available, run_limited
from scrlm_dask.storage.identity import features_digest
from scrlm_dask.storage.locations import HiddenOptions, Options, Place, locate

NAME = "images"
OURS = "scrlm"  # whose clusters are shown
SWEPT = ("scrlm", "scrlm+kmeans", "k-means++")
OTHERS = ("minibatch", "td", "em", "spectral", "complete-linkage", "t-sne+k-means++")
SEEDLESS = ("complete-linkage",)  # one fit is all there is to know


@dataclass(frozen=True)
class Grid:
    """Rows of each set (None: all), seeds, clusters T, and what a fit may take."""

    rows: int | None
    seeds: int
    clusters: tuple[int, ...]
    swept: tuple[str, ...]  # methods that are run for every T
    others: tuple[str, ...]  # for as many clusters as there are classes
    seconds: float
    memory: int


GRIDS: dict[Size, Grid] = {
    "smoke": Grid(500, 1, (10, 20), SWEPT, (), 60.0, 2 * 10**9),
    "small": Grid(4000, 10, (10, 50, 100), SWEPT, OTHERS[1:], 120.0, 4 * 10**9),
    "paper": Grid(
        None, 10, (10, 50, 100), (*SWEPT, *OTHERS[:3]), OTHERS[3:], 3 * 3600.0, 64 * 10**9
    ),
}


@dataclass(frozen=True)
class ImageCell:
    """One method on rows of one set, with some seeds."""

    data: str
    path: str
    rows: int
    method: str
    n_clusters: int
    seeds: int
    seconds: float
    memory: int
    shown: bool  # whether pictures of the clusters are wanted

    @property
    def n_rows(self) -> int:
        return self.seeds * self.rows


def images(
    size: Size,
    stores: Mapping[str, Place],
    storage_options: Options | None = None,
    grid: Grid | None = None,
) -> Experiment:
    grid = grid or GRIDS[size]
    places = {name: locate(path, storage_options) for name, path in stores.items()}
    shapes = {name: shape_of(place) for name, place in places.items()}
    cells = [
        cell
        for name, place in places.items()
        for cell in _cells(name, place.url, shapes[name], grid)
    ]
    # cells know their rows by path and number: of other rows at the same path they say nothing
    sets = {
        name: {"path": place.url, **asdict(shapes[name]), "digest": features_digest(place)}
        for name, place in places.items()
    }
    return Experiment(
        NAME,
        {**asdict(grid), "data": sets},
        cells,
        partial(measure, options=HiddenOptions(storage_options)),
        partial(image_findings, {name: shape.n_classes for name, shape in shapes.items()}, size),
    )


def _cells(name: str, path: str, shape: Shape, grid: Grid) -> list[ImageCell]:
    rows = min(grid.rows or shape.n_rows, shape.n_rows)
    sweep = sorted({*grid.clusters, shape.n_classes})
    # the slowest first: at the end nobody waits for them
    wanted = [(method, shape.n_classes) for method in reversed(grid.others)]
    wanted += [(method, T) for method in grid.swept for T in sweep]
    shown = (OURS, max(grid.clusters))
    return [
        ImageCell(
            name,
            path,
            rows,
            method,
            T,
            1 if method in SEEDLESS else grid.seeds,
            grid.seconds,
            grid.memory,
            shown=(method, T) == shown,
        )
        for method, T in wanted
        if available(method) is None and rows > T
    ]


def measure(cell: ImageCell, options: HiddenOptions) -> Result:
    data = read_labelled(locate(cell.path, options.reveal()), cell.rows)
    result: Result = {"pixels": data.pixels, "runs": [], "reason": None, "pictures": None}
    with tempfile.TemporaryDirectory(prefix="scrlm-images-") as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, data.rows)
        for seed in range(cell.seeds):
            done = run_limited(
                Task(cell.method, path, cell.n_clusters, seed), cell.seconds, cell.memory
            )
            if done.labels is None:
                # whoever takes too long once is not asked again
                return {**result, "reason": done.reason}
            result["runs"].append(_scored(data, done.labels, seed, done.cpu_seconds))
            if cell.shown and seed == 0:
                result["pictures"] = _packed(data, done.labels)
    return result


def _scored(
    data: Labelled, labels: NDArray[np.int64], seed: int, seconds: float | None
) -> dict[str, Any]:
    found = scores(contingency(data.truth, labels))
    return {
        "seed": seed,
        "accuracy": found.accuracy,
        "purity": found.purity,
        "nmi": found.nmi,
        "clusters": found.n_clusters,
        "cpu_seconds": seconds,
    }


def _packed(data: Labelled, labels: NDArray[np.int64]) -> dict[str, Any] | None:
    pictures = data.pictures(labels)
    if pictures is None:
        return None
    return {"shape": list(pictures.shape), "bytes": base64.b64encode(pictures.tobytes()).decode()}
