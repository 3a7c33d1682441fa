"""The class `Run`: a complete run with its model, labels and record."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import dask.array as da

from scrlm_dask.choices import Level, TableFormat
from scrlm_dask.engine.features import FeaturesLike, lazy_column
from scrlm_dask.events import Listener, warn
from scrlm_dask.model import Model
from scrlm_dask.pipeline.cut import ClusterCut, cut_run
from scrlm_dask.pipeline.evaluate import Evaluation, TruthLike, evaluate
from scrlm_dask.pipeline.export import ExportResult, export
from scrlm_dask.pipeline.predict import Prediction, predict
from scrlm_dask.pipeline.verify import Verification, verify_run
from scrlm_dask.reporting.report import ReportFiles, write_report
from scrlm_dask.runs.lifecycle import FitResult
from scrlm_dask.runs.record import ResultRecord
from scrlm_dask.storage.label_store import DISTANCES, MARGINS, open_column, open_labels
from scrlm_dask.storage.locations import Location, Options, Place, locate, trust
from scrlm_dask.storage.model_store import load_model
from scrlm_dask.storage.run_directory import RunDirectory
from scrlm_dask.text import printable


class Run:
    """A complete run directory that `fit` or `kmeans` wrote to `out`.

    Parameters
    ----------
    path : str or Path
        Path or URL of the run directory.
    storage_options : dict or None
        fsspec options used to open the URLs of the run and of its features. They are neither
        printed nor saved.
    allow_origins : sequence of str
        Origins, such as "s3://bucket", of recorded URLs that may also be opened. By default, only
        URLs with the scheme and the bucket or host of a given URL are opened.

    Attributes
    ----------
    location : Location
        Location of the run directory.
    record : dict
        The content of `run.json`: config, phases, workers, versions and results.

    Raises
    ------
    StoreError
        If there is no run at `path`, or if it is not complete.

    Examples
    --------
    >>> import scrlm_dask
    >>> run = scrlm_dask.Run("run")
    >>> run.model.n_clusters
    6
    >>> run.labels[:10].compute().shape
    (10,)
    >>> run.record["config"]["rho"]
    0.5
    """

    def __init__(
        self,
        path: Place,
        *,
        storage_options: Options | None = None,
        allow_origins: Sequence[str] = (),
    ) -> None:
        self.location: Location = locate(path, storage_options)
        self._allowed = sorted(trust((), allow_origins).origins)
        self._directory = RunDirectory(self.location)
        self.record: dict[str, Any] = self._directory.check_complete()
        ResultRecord.from_json(self.record, self._directory.record)  # raises if the file was edited

    def __repr__(self) -> str:
        method, clusters = self.record["method"], self.record["clusters"]
        rows = self.record["features"]["rows"]
        return printable(f"Run({self.path!r}: {method}, {clusters} clusters, {rows} rows)")

    def _repr_html_(self) -> str:
        return FitResult(self.model, None, self.record)._repr_html_()

    @property
    def path(self) -> str:
        """Absolute path or URL of the run directory."""
        return self.location.url

    @property
    def _options(self) -> dict[str, Any] | None:
        return self.location.options.reveal() or None

    @cached_property
    def model(self) -> Model:
        """The fitted model."""
        return load_model(self.location)

    @property
    def labels(self) -> da.Array:
        """Label of each row (rows,), -1 for outliers, as a lazy Dask array of int32."""
        return lazy_column(open_labels(self._directory.labels, "the labels store"))

    @property
    def distances(self) -> da.Array | None:
        """Distance of each row to its nearest center, as a lazy Dask array of float32."""
        return self._column(DISTANCES)

    @property
    def margins(self) -> da.Array | None:
        """Margin of each row, as a lazy Dask array; None if the run did not store margins."""
        return self._column(MARGINS)

    def _column(self, name: str) -> da.Array | None:
        stored = open_column(self._directory.labels, name)
        return None if stored is None else lazy_column(stored)

    def predict(
        self,
        source: FeaturesLike,
        *,
        out: Place | None = None,
        overwrite: bool = False,
        margins: bool = True,
        collect_labels: bool | None = None,
        block_rows: int | None = None,
        listener: Listener = warn,
    ) -> Prediction:
        """Label new rows with the model of the run; the workers load the model from its directory.

        Parameters
        ----------
        source : str, Path, FeatureStore, zarr.Array, dask.array.Array or numpy.ndarray
            Features (rows, p), computed with the same encoder as the features of the run.
        out : str, Path or None
            Labels store to write. Required if the labels do not fit in memory.
        overwrite : bool
            Replace a labels store that exists at `out`.
        margins : bool
            Store the margin of each row in `out`.
        collect_labels : bool or None
            Return the labels as an array. None: only if there is no `out`.
        block_rows : int or None
            Rows per block; None follows the chunks of the source.
        listener : callable
            Receives the events of the pass; by default, warnings are emitted.

        Returns
        -------
        scrlm_dask.results.Prediction
            Labels if collected, number of rows and outliers, and rows per cluster.

        Raises
        ------
        InputError
            If the rows have another number of features than the model.
        StoreError
            If the features cannot be read, or if `out` exists and `overwrite` is False.

        Examples
        --------
        >>> import scrlm_dask
        >>> run = scrlm_dask.Run("run")
        >>> prediction = run.predict("new.zarr", out="new-labels.zarr", overwrite=True)
        >>> prediction.n_rows, prediction.labels is None
        (500, True)
        """
        return predict(
            self.location,
            source,
            out=out,
            overwrite=overwrite,
            margins=margins,
            collect_labels=collect_labels,
            block_rows=block_rows,
            storage_options=self._options,
            listener=listener,
        )

    def evaluate(self, truth: TruthLike = None, *, listener: Listener = warn) -> Evaluation:
        """Score the labels of the run against the true labels.

        Parameters
        ----------
        truth : str, Path, numpy.ndarray or None
            True labels, -1 for outliers: an array, a .npy file or a Zarr store. None: the labels
            in the features store.
        listener : callable
            Receives the events of the pass; by default, warnings are emitted.

        Returns
        -------
        scrlm_dask.results.Evaluation
            `scores` (accuracy, purity, NMI, ARI, precision and recall of outliers), and
            `recovery` if the features store contains the mixture that its rows were drawn from.

        Raises
        ------
        InputError
            If there are no true labels, or if the run has another number of rows.

        Examples
        --------
        >>> import scrlm_dask
        >>> scrlm_dask.Run("run").evaluate().scores.accuracy
        1.0
        """
        return evaluate(
            self.location,
            truth,
            storage_options=self._options,
            allow_origins=self._allowed,
            listener=listener,
        )

    def verify(
        self, *, blocks: int = 8, losses: int = 4, seed: int = 0, listener: Listener = warn
    ) -> Verification:
        """Compute a random part of the run again, and compare it with the stored result.

        Parameters
        ----------
        blocks : int
            Number of random blocks whose rows are labelled again.
        losses : int
            Number of random clusters whose losses are computed again. Losses are sums over all
            rows, so computing them takes one read of all features.
        seed : int
            Seed for the choice of blocks and clusters.
        listener : callable
            Receives the events of the passes; by default, warnings are emitted.

        Returns
        -------
        scrlm_dask.results.Verification
            `ok` is True if labels, distances and losses agree.

        Raises
        ------
        StoreError
            If the features were an array in memory, or changed since the run.

        Examples
        --------
        >>> import scrlm_dask
        >>> scrlm_dask.Run("run").verify(blocks=2, losses=2).ok
        True
        """
        return verify_run(
            self.location,
            blocks=blocks,
            losses=losses,
            seed=seed,
            storage_options=self._options,
            allow_origins=self._allowed,
            listener=listener,
        )

    def cut(
        self,
        n_clusters: int | None = None,
        *,
        level: Level | None = None,
        out: Place | None = None,
        overwrite: bool = False,
    ) -> ClusterCut:
        """Join the clusters of the run into fewer clusters; the features are not read.

        Clusters are joined along the merge tree of the run, or along a new Ward tree. Every joined
        cluster is a union of clusters of the run, and outliers stay outliers. A run whose number of
        clusters was chosen without a clear scale may also have a fine level, with more clusters.

        Parameters
        ----------
        n_clusters : int or None
            Number of joined clusters, at most the number of clusters of the run or of its fine
            level.
        level : {"coarse", "fine"} or None
            A level of the run, instead of `n_clusters`.
        out : str, Path or None
            Labels store to write, with the label of each row after joining.
        overwrite : bool
            Replace a labels store that exists at `out`.

        Returns
        -------
        scrlm_dask.results.ClusterCut
            `groups` has the number of the joined cluster of each cluster of the run, or of each
            cluster of its fine level if the cut has more clusters than the run.

        Raises
        ------
        InputError
            If the run has fewer than `n_clusters` clusters, or not this level.

        Examples
        --------
        >>> import scrlm_dask
        >>> cut = scrlm_dask.Run("run").cut(3)
        >>> cut.groups.shape, cut.centers.shape
        ((6,), (3, 32))
        """
        return cut_run(
            self.location,
            n_clusters,
            level=level,
            out=out,
            overwrite=overwrite,
            storage_options=self._options,
        )

    def export(
        self,
        out: Place,
        *,
        table: TableFormat = "parquet",
        overwrite: bool = False,
        listener: Listener = warn,
    ) -> ExportResult:
        """Write labels and centers in formats that other programs read.

        The folder gets a table with one line per row (row of the store, row and path
        of the source file if known, id if the features have ids,
        label, distance, margin), `centers.npy`, `centers.fbin` and, if FAISS is installed,
        `centers.faiss`: an index that accepts unprocessed rows and returns the nearest center.

        Parameters
        ----------
        out : str or Path
            Folder to write.
        table : {"parquet", "csv"}
            Format of the table.
        overwrite : bool
            Replace an export that exists at `out`.
        listener : callable
            Receives notes, such as missing ids; by default, warnings are emitted.

        Returns
        -------
        scrlm_dask.results.ExportResult
            `files` has the names of the files.

        Raises
        ------
        InputError
            If pyarrow is not installed (the extra `formats`).

        Examples
        --------
        >>> import scrlm_dask
        >>> scrlm_dask.Run("run").export("tables", table="csv").files[:2]
        ('labels.csv', 'centers.npy')
        """
        return export(
            self.location,
            out,
            table=table,
            overwrite=overwrite,
            storage_options=self._options,
            allow_origins=self._allowed,
            listener=listener,
        )

    def report(
        self,
        out: Place | None = None,
        *,
        others: Sequence[Place] = (),
        items: str | Path | None = None,
        items_column: str | None = None,
        rows_each: int = 8,
        listener: Listener = warn,
    ) -> ReportFiles:
        """Write an HTML page about the run, and its figures as PNG files.

        Parameters
        ----------
        out : str, Path or None
            Page to write. None: `report.html` in the run directory, or in the current folder if
            there are `others`.
        others : sequence of str or Path
            Other runs to compare with this run, on the same page.
        items : str, Path or None
            A text or a picture for every row, in the order of the rows: a .npy or Parquet file or
            a folder.
        items_column : str or None
            Column of the items in a Parquet file.
        rows_each : int
            Rows to show per cluster.
        listener : callable
            Receives notes, such as missing ids; by default, warnings are emitted.

        Returns
        -------
        scrlm_dask.results.ReportFiles
            Paths of the page and of its figures.

        Raises
        ------
        InputError
            If Matplotlib is not installed (the extra `plot`).
        StoreError
            If the page exists and is not a report.

        Examples
        --------
        >>> import scrlm_dask
        >>> scrlm_dask.Run("run").report("page.html").page
        '.../page.html'
        """
        return write_report(
            [self.location, *others],
            out,
            items=items,
            items_column=items_column,
            rows_each=rows_each,
            storage_options=self._options,
            allow_origins=self._allowed,
            listener=listener,
        )
