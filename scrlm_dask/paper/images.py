"""Compare methods on labelled images: the paper's Figures 7 to 10 and Tables 1 and 2."""

from __future__ import annotations

import base64
import math
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError
from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.distances.preprocessing import AffineMap, block_moments, fit_map
from scrlm_dask.kernels.evaluation.metrics import contingency, scores
from scrlm_dask.kernels.randomness.sampling import Purpose, sample_rows
from scrlm_dask.paper.baselines import find_missing_requirement
from scrlm_dask.paper.charts import Chart, draw_charts, draw_pictures, mean_line
from scrlm_dask.paper.framework import NOT_RUN, Experiment, ExperimentResult, Result, Size, Table
from scrlm_dask.paper.run_with_limits import Task, run_with_limits
from scrlm_dask.reporting.plots import plain
from scrlm_dask.storage.arrays import read_rows
from scrlm_dask.storage.feature_store import has_truth, open_features_store
from scrlm_dask.storage.label_store import open_labels
from scrlm_dask.storage.locations import HiddenOptions, Location, Options, Place, locate
from scrlm_dask.storage.store_info import features_digest

OURS = "scrlm"  # the method whose clusters are drawn
SWEPT = ("scrlm", "scrlm+kmeans", "k-means++")
OTHERS = ("minibatch", "td", "em", "spectral", "complete-linkage", "t-sne+k-means++")
SEEDLESS = ("complete-linkage",)  # deterministic: one fit is sufficient
SHOWN = {
    "scrlm": "SCRLM",
    "scrlm+kmeans": "SCRLM + k-means",
    "k-means++": "k-means++",
    "minibatch": "mini-batch k-means",
    "td": "TD",
    "em": "EM",
    "spectral": "SC",
    "complete-linkage": "CL",
    "t-sne+k-means++": "t-SNE + k-means++",
}
_BRIGHTEST = 255
_PIXELS = (
    "{names}: features are raw pixels scaled to standard deviation 1, not SimCLR or CLIP features "
    "as in the paper; compare methods with each other, not with the paper's numbers"
)


@dataclass(frozen=True)
class Shape:
    """Numbers of rows, features and classes of a features store."""

    n_rows: int
    n_features: int
    n_classes: int


@dataclass(frozen=True)
class Labelled:
    """Labelled data: rows (N, p) and classes (N,).

    As in the paper, each feature is scaled to standard deviation 1.
    """

    rows: NDArray[np.float32]
    truth: NDArray[np.int64]
    affine: AffineMap
    pixels: bool  # whether the raw features are integers from 0 to 255

    def pictures(self, labels: NDArray[np.int64]) -> NDArray[np.uint8] | None:
        """Return the cluster means as pictures (k, h, w[, 3]), largest cluster first.

        Return None if the features are not the pixels of square pictures.
        """
        frame = _picture_frame(self.rows.shape[1])
        if frame is None or not self.pixels:
            return None
        inliers = labels != OUTLIER
        used, clusters, counts = np.unique(labels[inliers], return_inverse=True, return_counts=True)
        if len(used) == 0:
            return None
        sums = np.zeros((len(used), self.rows.shape[1]))
        np.add.at(sums, clusters, self.rows[inliers])
        means = sums / counts[:, None] / self.affine.scale + self.affine.shift
        largest = np.argsort(-counts, kind="stable")
        values = np.clip(np.rint(means[largest]), 0, _BRIGHTEST).astype(np.uint8)
        if len(frame) == 2:
            return values.reshape(-1, *frame)
        return values.reshape(-1, *frame).transpose(0, 2, 3, 1)  # channels are first in stores


def _picture_frame(n_features: int) -> tuple[int, ...] | None:
    """Return (h, w) of square gray pictures, (3, h, w) of square RGB pictures, otherwise None."""
    side = math.isqrt(n_features)
    if side * side == n_features:
        return side, side
    side = math.isqrt(n_features // 3)
    return (3, side, side) if 3 * side * side == n_features else None


def _read_shape(location: Location) -> Shape:
    """Return the shape of a store; raise if the store has no labels."""
    stored = open_features_store(location)
    if not has_truth(location):
        raise InputError(
            f"the features store {location} has no labels, which are required to compare methods; "
            "write a store with labels, for example with scrlm ingest --labels"
        )
    truth = open_labels(location, "the truth")
    classes = np.unique(read_rows(truth, 0, truth.shape[0], "the truth"))
    return Shape(stored.shape[0], stored.shape[1], int((classes >= 0).sum()))


def _read_labelled(location: Location, n_rows: int) -> Labelled:
    """Return a random sample of the rows of a store; every call returns the same sample."""
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


@dataclass(frozen=True)
class ImageGrid:
    """Settings of the experiment `images`: data size, seeds, methods, and limits of a fit."""

    rows: int | None  # per data set; None: all
    seeds: int  # number of seeds per method
    clusters: tuple[int, ...]  # values of T, the number of clusters
    swept: tuple[str, ...]  # methods that run for every T
    others: tuple[str, ...]  # methods that run only for T = number of classes
    seconds: float  # time limit of a fit
    memory: int  # memory limit of a fit, in bytes


IMAGE_GRIDS: dict[Size, ImageGrid] = {
    "smoke": ImageGrid(500, 1, (10, 20), SWEPT, (), 60.0, 2 * 10**9),
    "small": ImageGrid(4000, 10, (10, 50, 100), SWEPT, OTHERS[1:], 120.0, 4 * 10**9),
    "paper": ImageGrid(
        None, 10, (10, 50, 100), (*SWEPT, *OTHERS[:3]), OTHERS[3:], 3 * 3600.0, 64 * 10**9
    ),
}


@dataclass(frozen=True)
class ImageCell:
    """One method on the rows of one data set, with one or more seeds."""

    data: str
    path: str
    rows: int
    method: str
    n_clusters: int
    seeds: int
    seconds: float
    memory: int
    shown: bool  # whether pictures of the clusters are drawn

    @property
    def n_rows(self) -> int:
        """Number of rows, summed over all seeds."""
        return self.seeds * self.rows


Cells = Mapping[ImageCell, Result]


def define_images(
    size: Size,
    stores: Mapping[str, Place],
    storage_options: Options | None = None,
    grid: ImageGrid | None = None,
) -> Experiment:
    """Return the experiment `images` on the given labelled features stores."""
    grid = grid or IMAGE_GRIDS[size]
    locations = {name: locate(path, storage_options) for name, path in stores.items()}
    shapes = {name: _read_shape(location) for name, location in locations.items()}
    cells = [
        cell
        for name, location in locations.items()
        for cell in _cells(name, location.url, shapes[name], grid)
    ]
    # Cells contain only path and number of rows of a store; the digest detects changed rows.
    sets = {
        name: {"path": location.url, **asdict(shapes[name]), "digest": features_digest(location)}
        for name, location in locations.items()
    }
    return Experiment(
        "images",
        {**asdict(grid), "data": sets},
        cells,
        partial(measure_images, options=HiddenOptions(storage_options)),
        partial(_finish, {name: shape.n_classes for name, shape in shapes.items()}, size),
    )


def _cells(name: str, path: str, shape: Shape, grid: ImageGrid) -> list[ImageCell]:
    rows = min(grid.rows or shape.n_rows, shape.n_rows)
    sweep = sorted({*grid.clusters, shape.n_classes})
    # The slowest cells are first, so that no worker starts a long cell at the end.
    requested = [(method, shape.n_classes) for method in reversed(grid.others)]
    requested += [(method, T) for method in grid.swept for T in sweep]
    shown = (OURS, max(grid.clusters))
    limits = (grid.seconds, grid.memory)
    return [
        ImageCell(name, path, rows, method, T, seeds, *limits, shown=(method, T) == shown)
        for method, T in requested
        if find_missing_requirement(method) is None and rows > T
        for seeds in [1 if method in SEEDLESS else grid.seeds]
    ]


def measure_images(cell: ImageCell, options: HiddenOptions) -> Result:
    """Return the scores of each seed; stop at the first failure and return its reason."""
    data = _read_labelled(locate(cell.path, options.reveal()), cell.rows)
    result: Result = {"pixels": data.pixels, "runs": [], "reason": None, "pictures": None}
    with tempfile.TemporaryDirectory(prefix="scrlm-images-") as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, data.rows)
        for seed in range(cell.seeds):
            task = Task(cell.method, path, cell.n_clusters, seed)
            done = run_with_limits(task, cell.seconds, cell.memory)
            if done.labels is None:
                return {**result, "reason": done.reason}
            result["runs"].append(_score(data, done.labels, seed, done.cpu_seconds))
            if cell.shown and seed == 0:
                result["pictures"] = _pack(data.pictures(done.labels))
    return result


def _score(
    data: Labelled, labels: NDArray[np.int64], seed: int, seconds: float | None
) -> dict[str, Any]:
    scored = scores(contingency(data.truth, labels))
    shares = {name: getattr(scored, name) for name in ("accuracy", "purity", "nmi")}
    return {"seed": seed, **shares, "clusters": scored.n_clusters, "cpu_seconds": seconds}


def _pack(pictures: NDArray[np.uint8] | None) -> dict[str, Any] | None:
    if pictures is None:
        return None
    return {"shape": list(pictures.shape), "bytes": base64.b64encode(pictures.tobytes()).decode()}


def _unpack(packed: dict[str, Any]) -> NDArray[np.uint8]:
    flat = np.frombuffer(base64.b64decode(packed["bytes"]), np.uint8)
    return flat.reshape(packed["shape"])


def _finish(classes: Mapping[str, int], size: Size, results: Cells) -> ExperimentResult:
    """Return the paper's tables and figures; `classes` maps data sets to numbers of classes."""
    rows = [
        {"data": c.data, "rows": c.rows, "method": SHOWN[c.method], "T": c.n_clusters, **run}
        for c, found in results.items()
        for run in found["runs"]
    ]
    at_classes = {c: found for c, found in results.items() if c.n_clusters == classes[c.data]}
    summary = {
        "sets": {name: _summarize_set(name, results) for name in classes},
        "features": "standardized to mean 0 and standard deviation 1; CPU seconds of the fit only",
    }
    tables = (
        _table("Accuracy (%)", classes, at_classes, "accuracy", 100.0),
        _table("Purity (%)", classes, at_classes, "purity", 100.0),
        _table("CPU seconds", classes, at_classes, "cpu_seconds", 1.0),
        _sweep_table(classes, results),
    )
    return ExperimentResult(
        rows,
        summary,
        tables,
        lambda: _figures(classes, results, at_classes, size),
        (*_pixel_notes(results), *_reasons(results)),
    )


def _in_order(names: Iterable[str]) -> list[str]:
    """Return the methods in the order of `SHOWN`."""
    included = set(names)
    return [name for name in SHOWN if name in included]


def _values(found: Result, name: str, factor: float = 1.0) -> list[float]:
    return [factor * run[name] for run in found["runs"]]


def _is_finished(found: Result) -> bool:
    return bool(found["runs"]) and found["reason"] is None


def _format(found: Result | None, name: str, factor: float) -> str:
    """Return mean and deviation as text, or `NOT_RUN` if a seed failed."""
    if found is None or not _is_finished(found):
        return NOT_RUN
    values, digits = _values(found, name, factor), 1 if factor == 100.0 else 2
    return f"{fmean(values):.{digits}f} ± {pstdev(values):.{digits}f}"


def _table(title: str, classes: Mapping[str, int], cells: Cells, name: str, factor: float) -> Table:
    by_set = {(c.data, c.method): found for c, found in cells.items()}
    lines = tuple(
        (SHOWN[method], *(_format(by_set.get((data, method)), name, factor) for data in classes))
        for method in _in_order(method for _, method in by_set)
    )
    header = ("method", *(f"{data} (T = {n})" for data, n in classes.items()))
    return Table(f"{title}, mean ± standard deviation over seeds", header, lines)


def _sweep_table(classes: Mapping[str, int], results: Cells) -> Table:
    lines = []
    for data in classes:
        swept = _swept(data, results)
        for c, found in sorted(results.items(), key=lambda item: item[0].n_clusters):
            if c.data == data and c.method in swept:
                texts = _format(found, "purity", 100.0), _format(found, "cpu_seconds", 1.0)
                lines.append((data, str(c.n_clusters), SHOWN[c.method], *texts))
    header = ("data set", "T", "method", "purity (%)", "CPU seconds")
    return Table("Purity and time against T", header, tuple(lines))


def _swept(data: str, results: Cells) -> list[str]:
    """Return the methods that ran for more than one T."""
    pairs = {(c.method, c.n_clusters) for c in results if c.data == data}
    methods = [method for method, _ in pairs]
    return _in_order(method for method in methods if methods.count(method) > 1)


def _summarize_set(name: str, results: Cells) -> list[dict[str, Any]]:
    return [
        {
            "method": SHOWN[c.method],
            "T": c.n_clusters,
            "rows": c.rows,
            "seeds": len(found["runs"]),
            "reason": found["reason"],
            **{
                f"{value}_{suffix}": function(_values(found, value)) if found["runs"] else None
                for value in ("accuracy", "purity", "cpu_seconds")
                for suffix, function in (("mean", fmean), ("deviation", pstdev))
            },
        }
        for c, found in results.items()
        if c.data == name
    ]


def _pixel_notes(results: Cells) -> Iterable[str]:
    names = list(dict.fromkeys(c.data for c, found in results.items() if found["pixels"]))
    if names:
        yield _PIXELS.format(names=" and ".join(names))


def _reasons(results: Cells) -> Iterable[str]:
    """Yield one line per failed cell with the reason for the failure."""
    for c, found in results.items():
        if found["reason"] is not None:
            yield f"{c.data}, {SHOWN[c.method]}, T {c.n_clusters}: {found['reason']}"


def _figures(
    classes: Mapping[str, int], results: Cells, at_classes: Cells, size: Size
) -> dict[str, bytes]:
    purity = [_against_T(data, results, "purity", "purity (%)", 100.0) for data in classes]
    seconds = [_against_T(data, results, "cpu_seconds", "CPU seconds", 1.0) for data in classes]
    accuracy = [_against_time(data, T, at_classes) for data, T in classes.items()]
    figures = {
        "purity.png": draw_charts(purity, f"Purity against T ({size})", 2),
        "time.png": draw_charts(seconds, f"Time against T ({size})", 2),
        "accuracy-time.png": draw_charts(accuracy, f"Accuracy against time ({size})", 2),
    }
    shown = {
        c.data: _unpack(found["pictures"]) for c, found in results.items() if found["pictures"]
    }
    if shown:
        title = f"Centers of SCRLM's clusters, largest first ({size})"
        figures["centers.png"] = draw_pictures(shown, title)
    return figures


def _against_T(data: str, results: Cells, name: str, label: str, factor: float) -> Chart:  # noqa: N802
    ordered = sorted(results.items(), key=lambda item: item[0].n_clusters)
    lines = [
        mean_line(
            SHOWN[method],
            {
                float(c.n_clusters): _values(found, name, factor)
                for c, found in ordered
                if (c.data, c.method) == (data, method) and _is_finished(found)
            },
        )
        for method in _swept(data, results)
    ]
    return Chart(plain(data), "clusters T", label, tuple(lines), log_y=name == "cpu_seconds")


def _against_time(data: str, T: int, cells: Cells) -> Chart:
    lines = tuple(
        mean_line(
            SHOWN[c.method],
            {fmean(_values(found, "cpu_seconds")): _values(found, "accuracy", 100.0)},
        )
        for c, found in cells.items()
        if c.data == data and _is_finished(found)
    )
    return Chart(f"{plain(data)} (T = {T})", "CPU seconds", "accuracy (%)", lines, joined=False)
