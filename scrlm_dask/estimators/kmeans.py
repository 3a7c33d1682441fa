"""Estimator for k-means, with the conventions of scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.choices import CHOSEN_INITS, Persist, Preprocess
from scrlm_dask.config import KMeansConfig, LloydConfig
from scrlm_dask.errors import InputError
from scrlm_dask.estimators.common import Clusterer, is_lazy, seed_of
from scrlm_dask.model import Model
from scrlm_dask.storage.locations import Options
from scrlm_dask.storage.masks import remove_mask

if TYPE_CHECKING:
    from scrlm_dask.engine.features import FeaturesLike, WeightsLike


class KMeans(Clusterer):
    """k-means for features that may exceed the memory; each iteration reads all features once.

    A path or URL of a Zarr store, a `zarr.Array` or a Dask array is read block by block. The
    current Dask client does the work; without a client, threads of this process do.

    Parameters
    ----------
    n_clusters : int
        Number of clusters.
    init : {"scrlm", "k-means++", "k-means||", "random"}, array, Model or Path
        Initial centers, or how to choose them. "scrlm" runs SCRLM on a sample of rows and chooses
        its bandwidth; "k-means++" works on a sample of rows; "k-means||" draws about
        2 * n_clusters rows in each of three passes; "random" draws random rows. An array has the
        shape (n_clusters, p); a Path must point to a run, a model or a .npy file.
        `record_["init"]` has details.
    max_iter : int
        Maximum number of iterations over all rows.
    tol : float
        Stop when the centers move by at most this fraction of the distance between rows and their
        centers (both as root mean square).
    inertia_tol : float
        Stop when the inertia changes by at most this fraction in an iteration.
    max_seconds : float or None
        Start no new iteration after this time, in seconds since the start of the run.
    sample : float or None
        Start with iterations on a sample of this fraction of the blocks, and double the sample
        until it contains all blocks. `record_["kmeans"]` has the number of rows per iteration.
    spherical : bool
        Scale rows and centers to unit length, for cosine distance; the same as `preprocess="l2"`.
    preprocess : {"none", "standardize", "center", "scale", "l2"}
        Preprocessing of rows, saved with the model.
    persist : {"auto", "yes", "no"}
        Keep the features in the memory of the workers between passes; "auto": if they fit.
    random_state : int, RandomState instance or None
        Seed for the initial centers. The same integer gives the same result, bit by bit.
    block_rows : int or None
        Rows per block; None follows the chunks of the input.
    prune : int or "auto"
        Number of axes for pruning pairs of rows and centers that are far apart; 0: no pruning;
        "auto": the cheapest number per block. Pruning does not change the result.

    Attributes
    ----------
    cluster_centers_ : numpy.ndarray of shape (n_clusters, p)
        Centers in the units of the input.
    labels_ : numpy.ndarray or dask.array.Array of shape (rows,)
        Cluster of each row; lazy unless the input is a NumPy array.
    inertia_ : float
        Weighted sum of squared distances to the nearest center, after preprocessing.
    n_iter_ : int
        Number of iterations.
    n_features_in_ : int
        Number of features.
    model_ : Model
        The fitted model.
    record_ : dict
        The record of the run: config, phases and results.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from scrlm_dask import KMeans
    >>> X, _ = make_blobs(300, n_features=10, centers=4, random_state=0)
    >>> kmeans = KMeans(n_clusters=4).fit(X)
    >>> kmeans.cluster_centers_.shape, kmeans.labels_.shape
    ((4, 10), (300,))
    """

    def __init__(
        self,
        n_clusters: int = 8,
        init: str | Path | NDArray[Any] | Model = "scrlm",
        max_iter: int = 100,
        tol: float = 1e-4,
        inertia_tol: float = 1e-5,
        max_seconds: float | None = None,
        sample: float | None = None,
        spherical: bool = False,
        preprocess: Preprocess = "none",
        persist: Persist = "auto",
        random_state: Any = 0,
        block_rows: int | None = None,
        prune: int | Literal["auto"] = "auto",
    ) -> None:
        self.n_clusters = n_clusters
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.inertia_tol = inertia_tol
        self.max_seconds = max_seconds
        self.sample = sample
        self.spherical = spherical
        self.preprocess = preprocess
        self.persist = persist
        self.random_state = random_state
        self.block_rows = block_rows
        self.prune = prune

    def fit(
        self,
        X: FeaturesLike,
        y: object = None,
        sample_weight: WeightsLike = None,
        *,
        storage_options: Options | None = None,
    ) -> Self:
        """Cluster X.

        Parameters
        ----------
        X : str, Path, FeatureStore, zarr.Array, dask.array.Array or array of shape (rows, p)
            Features. A path or URL must point to a features store or a Zarr array.
        y : object
            Ignored, for compatibility with scikit-learn.
        sample_weight : array of shape (rows,), str, Path or None
            Weight of each row: an array, a .npy file or a Zarr array. None: all rows count equally.
        storage_options : dict or None
            fsspec options used to open URLs. They are neither printed nor saved.

        Returns
        -------
        KMeans
            The fitted estimator.

        Raises
        ------
        InputError
            If the features, the weights or the parameters are invalid.

        Examples
        --------
        >>> from scrlm_dask import KMeans
        >>> KMeans(n_clusters=5).fit("features.zarr").cluster_centers_.shape
        (5, 32)
        """
        from scrlm_dask.pipeline.kmeans import kmeans  # imported late, to import the class fast

        config, centers = self._config()
        in_memory = not is_lazy(X)
        if in_memory:
            X = self._validated(X, reset=True)
        result = kmeans(
            X,
            config,
            centers=centers,
            sample_weight=sample_weight,
            collect_labels=in_memory,
            block_rows=self.block_rows,
            storage_options=storage_options,
        )
        self._store(result, X, storage_options)
        return self

    def fit_predict(
        self,
        X: FeaturesLike,
        y: object = None,
        sample_weight: WeightsLike = None,
        *,
        storage_options: Options | None = None,
    ) -> NDArray[np.int32] | da.Array:
        """Cluster X and return its labels.

        Parameters
        ----------
        X : str, Path, FeatureStore, zarr.Array, dask.array.Array or array of shape (rows, p)
            Features. A path or URL must point to a features store or a Zarr array.
        y : object
            Ignored, for compatibility with scikit-learn.
        sample_weight : array of shape (rows,), str, Path or None
            Weight of each row: an array, a .npy file or a Zarr array. None: all rows count equally.
        storage_options : dict or None
            fsspec options used to open URLs. They are neither printed nor saved.

        Returns
        -------
        numpy.ndarray or dask.array.Array of shape (rows,)
            Cluster of each row; lazy unless the input is a NumPy array.

        Examples
        --------
        >>> from scrlm_dask import KMeans
        >>> KMeans(n_clusters=5).fit_predict("features.zarr").shape
        (2000,)
        """
        fitted = self.fit(X, sample_weight=sample_weight, storage_options=storage_options)
        labels: NDArray[np.int32] | da.Array = fitted.labels_
        return labels

    def _config(self) -> tuple[KMeansConfig, NDArray[Any] | Model | Path | None]:
        init: Any = self.init
        centers = None
        if not isinstance(init, str):
            as_it_is = isinstance(init, Model | Path)
            if not as_it_is:
                init = np.asarray(remove_mask(init, "the initial centers"))
            init, centers = "given", init
        elif init not in CHOSEN_INITS:
            raise InputError(
                f"init must be one of {', '.join(CHOSEN_INITS)}, an array, a Model, or the path of "
                f"a run, a model or a .npy file as pathlib.Path, got {init!r}"
            )
        config = KMeansConfig(
            n_clusters=self.n_clusters,
            init=init,
            prune=self.prune,
            lloyd=LloydConfig(
                max_iter=self.max_iter,
                tol=self.tol,
                inertia_tol=self.inertia_tol,
                max_seconds=self.max_seconds,
                sample=self.sample,
                persist=self.persist,
            ),
            preprocess=self._preprocess(),
            seed=seed_of(self.random_state),
        )
        return config, centers

    def _preprocess(self) -> Preprocess:
        if not self.spherical:
            return self.preprocess
        if self.preprocess not in ("none", "l2"):
            raise InputError(
                f"spherical is True and preprocess is {self.preprocess!r}; spherical k-means "
                "scales rows to unit length (preprocess='l2'); omit spherical or preprocess"
            )
        return "l2"
