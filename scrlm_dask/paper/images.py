"""Labelled rows of a features store in memory, as every method of a comparison gets them."""

from __future__ import annotations

import base64
import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError
from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.distances.preprocessing import AffineMap, block_moments, fit_map
from scrlm_dask.kernels.evaluation.metrics import contingency, scores
from scrlm_dask.kernels.randomness.sampling import Purpose, sample_rows
from scrlm_dask.paper.baselines import available_methods
from scrlm_dask.paper.framework import Experiment, Result, Size
from scrlm_dask.paper.image_results import image_findings
from scrlm_dask.paper.run_with_limits import Task, run_with_limits
from scrlm_dask.storage.arrays import read_rows
from scrlm_dask.storage.feature_store import has_truth, open_features_store
from scrlm_dask.storage.label_store import open_labels
from scrlm_dask.storage.locations import HiddenOptions, Location, Options, Place, locate
from scrlm_dask.storage.store_info import features_digest

_BRIGHTEST = 255


@dataclass(frozen=True)
class Shape:
    """What a store holds, for those who plan."""

    n_rows: int
    n_features: int
    n_classes: int


@dataclass(frozen=True)
class Labelled:
    """Rows (N, p) at deviation 1 a feature, as in the paper, and their classes (N,)."""

    rows: NDArray[np.float32]
    truth: NDArray[np.int64]
    affine: AffineMap
    pixels: bool  # whole numbers from 0 to 255: no features of an encoder

    def pictures(self, labels: NDArray[np.int64]) -> NDArray[np.uint8] | None:
        """The mean of each cluster's rows as a picture (k, h, w[, 3]), largest cluster first.

        Outliers are no cluster.
        """
        frame = picture_frame(self.rows.shape[1])
        if frame is None or not self.pixels:
            return None
        inliers = labels != OUTLIER
        kinds, places, counts = np.unique(labels[inliers], return_inverse=True, return_counts=True)
        if len(kinds) == 0:
            return None
        sums = np.zeros((len(kinds), self.rows.shape[1]))
        np.add.at(sums, places, self.rows[inliers])
        means = sums / counts[:, None] / self.affine.scale + self.affine.shift
        largest = np.argsort(-counts, kind="stable")
        values = np.clip(np.rint(means[largest]), 0, _BRIGHTEST).astype(np.uint8)
        if len(frame) == 2:
            return values.reshape(-1, *frame)
        return values.reshape(-1, *frame).transpose(0, 2, 3, 1)  # colors lie apart in stores


def picture_frame(n_features: int) -> tuple[int, ...] | None:
    """(h, w) of square pictures, (3, h, w) of colored ones; None of anything else."""
    side = math.isqrt(n_features)
    if side * side == n_features:
        return side, side
    side = math.isqrt(n_features // 3)
    return (3, side, side) if 3 * side * side == n_features else None


def shape_of(location: Location) -> Shape:
    """Refuses a store without labels."""
    stored = open_features_store(location)
    if not has_truth(location):
        raise InputError(
            f"the features {location} hold no labels, by which methods are compared; write a store "
            "that has them, as scrlm ingest --labels does"
        )
    truth = open_labels(location, "the truth")
    classes = np.unique(read_rows(truth, 0, truth.shape[0], "the truth"))
    return Shape(stored.shape[0], stored.shape[1], int((classes >= 0).sum()))


def read_labelled(location: Location, n_rows: int) -> Labelled:
    """So many rows of a store, at random but always the same ones."""
    stored, labels = open_features_store(location), open_labels(location, "the truth")
    numbers = sample_rows(0, Purpose.COMPARED_ROWS, stored.shape[0], n_rows)
    parts, step = [], stored.chunks[0]
    for start in range(0, stored.shape[0], step):
        stop = min(start + step, stored.shape[0])
        here = numbers[(numbers >= start) & (numbers < stop)] - start
        if len(here):
            parts.append(read_rows(stored, start, stop, "the features")[here])
    raw = np.concatenate(parts).astype(np.float32)
    truth = read_rows(labels, 0, labels.shape[0], "the truth")[numbers].astype(np.int64)
    affine = fit_map("standardize", raw.shape[1], block_moments(raw))
    rows = ((raw - affine.shift) * affine.scale).astype(np.float32)
    pixels = bool(raw.min() >= 0 and raw.max() <= _BRIGHTEST and (raw == np.rint(raw)).all())
    return Labelled(rows, truth, affine, pixels)


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
        if available_methods(method) is None and rows > T
    ]


def measure(cell: ImageCell, options: HiddenOptions) -> Result:
    data = read_labelled(locate(cell.path, options.reveal()), cell.rows)
    result: Result = {"pixels": data.pixels, "runs": [], "reason": None, "pictures": None}
    with tempfile.TemporaryDirectory(prefix="scrlm-images-") as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, data.rows)
        for seed in range(cell.seeds):
            done = run_with_limits(
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
