"""Data of a report, read from the run directory with one pass over its labels."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, reduce
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import CandidatesJudged
from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.bandwidth.ladder import BandwidthTrial
from scrlm_dask.kernels.bandwidth.modularity import Levels
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.distances.projections import principal_axes
from scrlm_dask.kernels.evaluation import prototypes
from scrlm_dask.kernels.statistics import histograms
from scrlm_dask.model import Model
from scrlm_dask.reporting.descriptions import requested_config
from scrlm_dask.runs.record import ResultRecord, ScanRecord, read_fields
from scrlm_dask.storage.arrays import trace_node
from scrlm_dask.storage.feature_store import read_encoded
from scrlm_dask.storage.label_store import LabelledRows, LabelTable, open_label_table
from scrlm_dask.storage.locations import (
    Location,
    Options,
    Place,
    TrustedOrigins,
    locate,
    locate_recorded,
    trust,
)
from scrlm_dask.storage.model_store import load_model
from scrlm_dask.storage.run_directory import RunDirectory, read_events
from scrlm_dask.storage.store_info import RecordedFeatures, features_in
from scrlm_dask.storage.traces import Input

_MAX_PAIRED = 4096  # number of largest clusters in the search for close pairs
_MIN_FOR_UMAP = 16  # centers; fewer centers have no neighborhoods that UMAP can preserve
SHOWN_PAIRS = 12


@dataclass(frozen=True)
class Columns:
    """Histograms of distances and margins over all rows, and the rows nearest to each center."""

    inside: histograms.LogHistogram  # distances of labelled rows
    outside: histograms.LogHistogram  # distances of outliers, if they were stored
    margins: histograms.LogHistogram
    nearest: prototypes.Prototypes

    @property
    def median_distance(self) -> float | None:
        """Median distance of the labelled rows to their center; None without labelled rows."""
        return histograms.quantile(self.inside, 0.5) if self.inside.bins.total else None

    @property
    def median_margin(self) -> float | None:
        """Median margin of the labelled rows; None without margins."""
        return histograms.quantile(self.margins, 0.5) if self.margins.bins.total else None


@dataclass(frozen=True)
class SourceFiles:
    """The files that the rows of a features store come from."""

    folder: str  # common folder with a slash at its end; empty if there is none
    names: tuple[str, ...]  # paths relative to the folder


@dataclass(frozen=True)
class ReportData:
    """Result of a run and its statistics for the report."""

    name: str
    location: Location
    record: ResultRecord
    events: list[dict[str, Any]]
    model: Model
    labelled: LabelTable
    columns: Columns
    pairs: prototypes.Pairs  # closest pairs of clusters, as cluster numbers
    points: NDArray[np.float64]  # (k, p) centers after preprocessing
    features: RecordedFeatures | None = None
    encoded: str | None = None  # text that names items and encoder, if recorded
    asked: Mapping[str, Any] = field(default_factory=dict)  # config that the user requested
    inputs: tuple[Input, ...] = ()  # labels, ids and model, traced before they were read

    @cached_property
    def sources(self) -> SourceFiles:
        """The source files of the rows; without names if they are not known."""
        origins = self.labelled.origins
        files = () if origins is None else origins.files
        folders = (file.split("/")[:-1] for file in files)
        common = takewhile(lambda names: len(set(names)) == 1, zip(*folders, strict=False))
        folder = "".join(f"{names[0]}/" for names in common)
        return SourceFiles(folder, tuple(file.removeprefix(folder) for file in files))

    @property
    def by_size(self) -> NDArray[np.int64]:
        """Cluster numbers, sorted from the largest cluster."""
        return np.argsort(-self.model.counts, kind="stable")

    @property
    def notes(self) -> list[str]:
        """Warnings of the run."""
        warned = [e for e in self.events if e["event"] == "Note" and e.get("warning")]
        return [event["text"] for event in warned if isinstance(event.get("text"), str)]

    @property
    def loss_curve(self) -> CandidatesJudged | None:
        """Ranks and losses of the candidates, if the run reported them."""
        for event in reversed(self.events):
            if event["event"] == "CandidatesJudged":
                with suppress(KeyError):  # skip a damaged line
                    judged = read_fields(CandidatesJudged, event)
                    if len(judged.ranks) == len(judged.losses):
                        return judged
        return None

    @property
    def scan(self) -> ScanRecord | None:
        """The scan of a sample; None without a scan, or if its record is damaged."""
        with suppress(StoreError):  # the report omits the scan if its record is damaged
            return self.record.read_scan()
        return None

    @property
    def trials(self) -> list[BandwidthTrial]:
        """Trial bandwidths of the run; empty if the run did not search for a bandwidth."""
        scan = self.scan
        return [] if scan is None or len(scan.trials) < 2 else scan.trials

    @property
    def levels(self) -> Levels | None:
        """Numbers of clusters that modularity has chosen; None if it did not choose."""
        return None if self.scan is None else self.scan.levels


def read_report_data(
    run: Place,
    rows_each: int,
    storage_options: Options | None = None,
    allow_origins: Sequence[str] = (),
) -> ReportData:
    """Read a completed run, with `rows_each` example rows per cluster."""
    location = locate(run, storage_options)
    directory = RunDirectory(location)
    trusted = trust([location], allow_origins, storage_options)
    labelled = open_label_table(directory, trusted)
    inputs = (*labelled.inputs, *trace_node("the model", directory.model))
    content = directory.check_complete()  # of the run whose files were traced
    record, model = ResultRecord.from_json(content, directory.record), load_model(location)
    points = _map_rows(model.centers, model.affine)
    return ReportData(
        name=location.url.rstrip("/").rsplit("/", 1)[-1],
        location=location,
        record=record,
        events=read_events(directory.events),
        model=model,
        labelled=labelled,
        columns=_columns(labelled, rows_each),
        pairs=_pairs(points, model.counts),
        points=points,
        encoded=_describe_encoder(features_in(content), trusted),
        features=features_in(content),
        asked=requested_config(content),
        inputs=inputs,
    )


def _describe_encoder(recorded: RecordedFeatures | None, trusted: TrustedOrigins) -> str | None:
    record = None
    if recorded is not None:
        with suppress(StoreError, InputError):  # the note about missing ids gives the reason
            location = locate_recorded(recorded.path, trusted)
            record = read_encoded(recorded.open_unchanged(location).location)
    if record is None:
        return None
    items, source, encoder = (record.get(name) for name in ("items", "input", "encoder"))
    return f"{items} of {source} by {encoder}"


def _columns(labelled: LabelTable, rows_each: int) -> Columns:
    def merge(a: Columns, b: Columns) -> Columns:
        return Columns(
            histograms.merge_histograms(a.inside, b.inside),
            histograms.merge_histograms(a.outside, b.outside),
            histograms.merge_histograms(a.margins, b.margins),
            prototypes.merge_prototypes(a.nearest, b.nearest, rows_each),
        )

    return reduce(merge, (_part(piece, rows_each) for piece in labelled.pieces()))


def _part(piece: LabelledRows, rows_each: int) -> Columns:
    inside = piece.labels != OUTLIER
    margins = np.empty(0) if piece.margins is None else piece.margins[inside]
    return Columns(
        histograms.log_histogram(_finite(piece.distances[inside])),
        histograms.log_histogram(_finite(piece.distances[~inside])),
        histograms.log_histogram(_finite(margins)),
        prototypes.prototypes(piece.labels, piece.distances, piece.numbers, rows_each),
    )


def _finite(values: NDArray[Any]) -> NDArray[np.float64]:
    """Drop NaN and infinity: outliers may have no distance, and a single cluster has no margin."""
    finite: NDArray[np.float64] = values[np.isfinite(values)].astype(np.float64)
    return finite


def _pairs(points: NDArray[np.float64], counts: NDArray[np.int64]) -> prototypes.Pairs:
    """Return the closest pairs among the largest clusters."""
    if len(points) == 0:
        return prototypes.Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    largest = np.sort(np.argsort(-counts, kind="stable")[:_MAX_PAIRED])
    close = prototypes.nearest_pairs(points[largest], SHOWN_PAIRS)
    return prototypes.Pairs(largest[close.first], largest[close.second], close.distances)


def _map_rows(rows: NDArray[Any], affine: AffineMap) -> NDArray[np.float64]:
    """Return rows (k, p) after preprocessing."""
    values = rows.astype(np.float64)
    if affine.unit_length:
        lengths = np.linalg.norm(values, axis=1, keepdims=True)
        values = values / np.where(lengths > 0.0, lengths, 1.0)
    mapped: NDArray[np.float64] = (values - affine.shift) * affine.scale
    return mapped


@dataclass(frozen=True)
class PlaneMap:
    """Positions of the centers in two dimensions."""

    xy: NDArray[np.float64]  # (k, 2)
    method: str


def plane_map(points: NDArray[np.float64]) -> PlaneMap | None:
    """Map centers (k, p) to two dimensions with UMAP if it is installed, else with PCA."""
    if len(points) < 2:
        return None
    if len(points) >= _MIN_FOR_UMAP and find_spec("umap") is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # UMAP warns that a seed disables its threads
            xy = import_module("umap").UMAP(n_components=2, random_state=0).fit_transform(points)
        return PlaneMap(np.asarray(xy, np.float64), "UMAP")
    return _project_by_pca(points)


def _project_by_pca(points: NDArray[np.float64]) -> PlaneMap:
    centered = points - points.mean(axis=0)
    axes = principal_axes(centered.astype(np.float32), 2).astype(np.float64)
    # fix the signs, so that rounding cannot mirror the map
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    xy = centered @ axes
    if xy.shape[1] == 1:  # rows with a single feature
        xy = np.column_stack([xy, np.zeros(len(xy))])
    total = float(np.square(centered).sum())
    share = float(np.square(xy).sum()) / total if total > 0.0 else 1.0
    return PlaneMap(xy, f"PCA, {share:.0%} of the variance of the centers")
