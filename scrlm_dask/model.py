"""The fitted model, which can label new rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.config import FitConfig, KMeansConfig
from scrlm_dask.events import Listener, warn
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.scrlm.ward import MergeTree

if TYPE_CHECKING:
    from scrlm_dask.engine.features import FeaturesLike
    from scrlm_dask.pipeline.predict import Prediction
    from scrlm_dask.storage.locations import Options, Place


@dataclass(frozen=True, repr=False)
class Model:
    """A fitted model: k clusters as plain arrays and numbers, enough to label new rows.

    `fit`, `kmeans` and `Model.load` return models. Centers, means and sigmas are in the units of
    the input features; `rho`, `radius`, `losses` and `inertia` belong to the space after
    preprocessing, in which distances are measured.

    Parameters
    ----------
    centers : numpy.ndarray of shape (k, p)
        Centers in the order of extraction: candidate rows, or refined by k-means.
    center_rows : numpy.ndarray of shape (k,)
        Row numbers of the candidates that the centers started from; empty for k-means.
    losses : numpy.ndarray of shape (k,)
        Robust loss of each center; empty for k-means.
    neighbors : numpy.ndarray of shape (k,)
        Number of other rows inside the radius when the loss was computed; empty for k-means.
    means : numpy.ndarray of shape (k, p)
        Mean of the rows with each label.
    counts : numpy.ndarray of shape (k,)
        Number of rows with each label.
    weights, sigmas : numpy.ndarray of shape (k,)
        Weight and standard deviation of each component of the mixture.
    outlier_weight : float
        Weight of the outliers in the mixture.
    n_outliers, n_rows, n_candidates : int
        Numbers of outliers, rows and candidates of the fit.
    inertia : float
        Sum of squared distances to the nearest center. For a row outside the radius, the radius is
        used as its distance.
    affine : AffineMap
        The preprocessing: how rows are shifted and scaled before distances are measured.
    config : FitConfig or KMeansConfig
        The parameters of the fit, with every "auto" replaced by its value.
    tree : MergeTree or None
        Tree along which extracted centers were merged; None if there was no merge, or if k-means
        moved the centers afterwards. If the model has a fine level, its leaves are the centers of
        this level, and its cut into k groups are the clusters.
    has_fine_level : bool
        Whether the leaves of the tree are a fine level.

    Examples
    --------
    >>> import scrlm_dask
    >>> model = scrlm_dask.Model.load("run")
    >>> model
    Model(6 clusters, 32 features, rho=0.5, ... of 2000 rows outliers)
    >>> model.centers.shape, model.weights.shape
    ((6, 32), (6,))
    """

    centers: NDArray[Any]
    center_rows: NDArray[np.int64]
    losses: NDArray[np.float64]
    neighbors: NDArray[np.int64]
    means: NDArray[np.float64]
    counts: NDArray[np.int64]
    weights: NDArray[np.float64]
    sigmas: NDArray[np.float64]
    outlier_weight: float
    n_outliers: int
    n_rows: int
    n_candidates: int
    inertia: float
    affine: AffineMap
    config: FitConfig | KMeansConfig
    tree: MergeTree | None = None
    has_fine_level: bool = False

    def __repr__(self) -> str:
        rho = f"rho={self.config.given_rho:g}, " if isinstance(self.config, FitConfig) else ""
        return (
            f"Model({self.n_clusters} clusters, {self.n_features} features, "
            f"{rho}{self.n_outliers} of {self.n_rows} rows outliers)"
        )

    def _repr_html_(self) -> str:
        from scrlm_dask.monitoring.html import model_html

        return model_html(self)

    @classmethod
    def load(cls, path: Place, *, storage_options: Options | None = None) -> Model:
        """Load a model from a run directory or from its `model.zarr`.

        Parameters
        ----------
        path : str or Path
            Path or URL of a run directory or of a `model.zarr`.
        storage_options : dict or None
            fsspec options used to open URLs. They are neither printed nor saved.

        Returns
        -------
        Model

        Raises
        ------
        StoreError
            If there is no model at `path`, or if its run is not complete.

        Examples
        --------
        >>> import scrlm_dask
        >>> model = scrlm_dask.Model.load("run")
        >>> model.centers.shape
        (6, 32)
        """
        from scrlm_dask.storage.model_store import load_model

        return load_model(path, storage_options)

    def predict(
        self,
        source: FeaturesLike,
        *,
        out: Place | None = None,
        overwrite: bool = False,
        margins: bool = True,
        collect_labels: bool | None = None,
        block_rows: int | None = None,
        storage_options: Options | None = None,
        listener: Listener = warn,
    ) -> Prediction:
        """Label each row with the number of its nearest center, or with -1 outside every radius.

        Parameters
        ----------
        source : str, Path, FeatureStore, zarr.Array, dask.array.Array or numpy.ndarray
            Features (rows, p), computed with the same encoder as the features of the fit.
        out : str, Path or None
            Labels store to write. Required if the labels do not fit in memory.
        overwrite : bool
            Replace a labels store that exists at `out`.
        margins : bool
            Store the margin of each row in `out`: its distance to the second-nearest center minus
            its distance to the nearest.
        collect_labels : bool or None
            Return the labels as an array. None: only if there is no `out`.
        block_rows : int or None
            Rows per block; None follows the chunks of the source.
        storage_options : dict or None
            fsspec options used to open URLs. They are neither printed nor saved.
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
        >>> model = scrlm_dask.Model.load("run")
        >>> prediction = model.predict("new.zarr")
        >>> prediction.labels.shape
        (500,)
        """
        from scrlm_dask.pipeline.predict import predict

        return predict(
            self,
            source,
            out=out,
            overwrite=overwrite,
            margins=margins,
            collect_labels=collect_labels,
            block_rows=block_rows,
            storage_options=storage_options,
            listener=listener,
        )

    @property
    def n_clusters(self) -> int:
        """Number of clusters k."""
        return len(self.centers)

    @property
    def n_features(self) -> int:
        """Number of features p."""
        return int(self.centers.shape[1])

    @property
    def radius(self) -> float:
        """Radius after preprocessing: rows farther than this from every center are outliers.

        Infinite if the model labels every row.
        """
        return math.sqrt(self.sq_radius)

    @property
    def sq_radius(self) -> float:
        """Squared radius."""
        return self.config.sq_radius(self.n_features)
