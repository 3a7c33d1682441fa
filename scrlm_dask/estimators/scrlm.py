"""Estimator for SCRLM, with the conventions of scikit-learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

import dask.array as da
import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from scrlm_dask.choices import Extraction, FitPreprocess, Level
from scrlm_dask.config import FitConfig, LloydConfig, lloyd_config
from scrlm_dask.errors import InputError
from scrlm_dask.estimators.common import Clusterer, is_lazy, seed_of
from scrlm_dask.kernels import OUTLIER
from scrlm_dask.storage.locations import Options

if TYPE_CHECKING:
    from scrlm_dask.engine.features import FeaturesLike


class SCRLM(Clusterer):
    """Scalable Clustering by Robust Loss Minimization: clusters, and outliers labelled -1.

    The features may be larger than memory: a path or URL of a Zarr store, a `zarr.Array` or a Dask
    array is read block by block. The current Dask client does the work; without a client, threads
    of this process do. Only NumPy input is kept in memory as a whole.

    Parameters
    ----------
    n_clusters : int or None
        Maximum number of clusters; None: determined from the data.
    rho : float or "auto"
        Bandwidth in units of the preprocessed features: slightly above the standard deviation of
        the widest cluster. The radius of a cluster is `rho * sqrt(p * F)`. "auto" chooses rho on a
        sample of rows; `record_["scan"]` has the reason and all trial bandwidths.
    F : float
        Depth of the paper's loss: a row at the position of a candidate adds -F to the loss of the
        candidate.
    n_candidates : int or "auto"
        Number of random rows that are tried as centers; "auto": as many as the theory requires for
        `n_clusters`.
    loss_rows : int or "all"
        Number of rows over which losses are summed. A random subset is sufficient if the clusters
        are large. All rows are labelled in any case.
    min_neighbors : int
        Minimum number of other rows inside the radius of a center.
    preprocess : {"auto", "standardize", "center", "scale", "none", "l2"}
        Preprocessing of rows, saved with the model. "l2" scales rows to unit length, for cosine
        distance. "auto": "standardize" if `rho` is given; otherwise "l2" for rows of unit length;
        for other rows "standardize" if it shows a clear scale, else the best kind on a sample.
    random_state : int, RandomState instance or None
        Seed for the choice of candidates. The same integer gives the same result, bit by bit.
    block_rows : int or None
        Rows per block; None follows the chunks of the input.
    polish : bool
        Move each center to the mean of the rows inside its radius, in one more pass.
    refine : int, LloydConfig or "auto"
        Number of k-means iterations after the extraction; a `LloydConfig` also sets stopping rules.
        "auto": up to 20 after merging, otherwise none.
    robust : bool or "auto"
        True: rows outside the radius are excluded from k-means and stay outliers. False: as in the
        paper's SCRLM + k-means, all rows are used and labelled. "auto": True, except after merging.
    outlier_share : float, "auto" or None
        Share of the rows, those farthest from their centers, that are labelled as outliers. "auto":
        without a clear scale, rows outside a radius that is chosen from the data.
    radius : float or None
        Distance after preprocessing beyond which rows are outliers; None: determined by `rho`,
        `robust` and `outlier_share`.
    prune : int or "auto"
        Number of axes for pruning pairs of rows and centers that are far apart; 0: no pruning;
        "auto": the cheapest number per block. Pruning does not change the result.
    extraction : {"auto", "greedy", "residual", "merge"}
        How centers are extracted from candidates. "greedy": the paper's method. "residual": losses
        over rows of a sample that no center covers yet. "merge": like "residual" with more centers,
        which are merged into `n_clusters`. "auto": "greedy" if `rho` is given; otherwise "merge" if
        the data shows no clear scale with at most `n_clusters` clusters, else usually "residual".

    Attributes
    ----------
    cluster_centers_ : numpy.ndarray of shape (k, p)
        Rows extracted as centers, or refined centers, in the units of the input.
    means_ : numpy.ndarray of shape (k, p)
        Mean of the rows of each cluster; with "l2", of the rows at unit length.
    weights_, sigmas_ : numpy.ndarray of shape (k,)
        Weight and standard deviation of each component of the mixture.
    outlier_weight_ : float
        Weight of the outliers in the mixture.
    labels_ : numpy.ndarray or dask.array.Array of shape (rows,)
        Cluster of each row, -1 for outliers; lazy unless the input is a NumPy array.
    n_clusters_, n_features_in_ : int
        Number of clusters and of features.
    rho_, radius_ : float
        Bandwidth and radius, in units of the preprocessed features.
    inertia_ : float
        Sum of squared distances to the nearest center, after preprocessing. For a row outside the
        radius, the radius is used.
    levels_ : scrlm_dask.results.Levels or None
        Numbers of clusters that suit the data, if the number was chosen without a clear scale.
    n_iter_ : int
        Number of k-means iterations.
    model_ : Model
        The fitted model.
    record_ : dict
        The record of the run: config, phases and results.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> from scrlm_dask import SCRLM
    >>> X, _ = make_blobs(300, n_features=10, centers=4, random_state=0)
    >>> model = SCRLM(n_clusters=4).fit(X)
    >>> model.cluster_centers_.shape, model.labels_.shape
    ((4, 10), (300,))
    """

    def __init__(
        self,
        n_clusters: int | None = None,
        rho: float | Literal["auto"] = "auto",
        F: float = 2.5,
        n_candidates: int | Literal["auto"] = "auto",
        loss_rows: int | Literal["all"] = "all",
        min_neighbors: int = 1,
        preprocess: FitPreprocess = "auto",
        random_state: Any = 0,
        block_rows: int | None = None,
        polish: bool = False,
        refine: int | LloydConfig | Literal["auto"] = "auto",
        robust: bool | Literal["auto"] = "auto",
        outlier_share: float | Literal["auto"] | None = None,
        radius: float | None = None,
        prune: int | Literal["auto"] = "auto",
        extraction: Extraction = "auto",
    ) -> None:
        self.n_clusters = n_clusters
        self.rho = rho
        self.F = F
        self.n_candidates = n_candidates
        self.loss_rows = loss_rows
        self.min_neighbors = min_neighbors
        self.preprocess = preprocess
        self.random_state = random_state
        self.block_rows = block_rows
        self.polish = polish
        self.refine = refine
        self.robust = robust
        self.outlier_share = outlier_share
        self.radius = radius
        self.prune = prune
        self.extraction = extraction

    def fit(
        self, X: FeaturesLike, y: object = None, *, storage_options: Options | None = None
    ) -> Self:
        """Find the clusters of X.

        Parameters
        ----------
        X : str, Path, FeatureStore, zarr.Array, dask.array.Array or array of shape (rows, p)
            Features. A path or URL must point to a features store or a Zarr array.
        y : object
            Ignored, for compatibility with scikit-learn.
        storage_options : dict or None
            fsspec options used to open URLs. They are neither printed nor saved.

        Returns
        -------
        SCRLM
            The fitted estimator.

        Raises
        ------
        InputError
            If the features or the parameters are invalid.

        Examples
        --------
        >>> from scrlm_dask import SCRLM
        >>> SCRLM(n_clusters=6, rho=0.5).fit("features.zarr").n_clusters_
        6
        """
        from scrlm_dask.pipeline.fit import fit  # imported late, to import the class fast

        config = self._config()
        in_memory = not is_lazy(X)
        if in_memory:
            X = self._validated(X, reset=True)
        result = fit(
            X,
            config,
            collect_labels=in_memory,
            block_rows=self.block_rows,
            storage_options=storage_options,
        )
        self._store(result, X, storage_options)
        self.means_ = result.model.means
        self.weights_ = result.model.weights
        self.sigmas_ = result.model.sigmas
        self.outlier_weight_ = result.model.outlier_weight
        self.n_clusters_ = result.model.n_clusters
        self.rho_ = result.record["config"]["rho"]
        self.radius_ = result.model.radius
        scan = result.typed_record.read_scan()
        self.levels_ = None if scan is None else scan.levels
        self._fine_labels = result.fine_labels
        return self

    def labels_at(
        self, n_clusters: int | None = None, *, level: Level | None = None
    ) -> NDArray[np.int32] | da.Array:
        """Return the labels of X with another number of clusters; cuts are nested.

        Parameters
        ----------
        n_clusters : int or None
            Number of clusters, at most `n_clusters_`, or the number of the fine level if X is in
            memory.
        level : {"coarse", "fine"} or None
            A level of `levels_`, instead of `n_clusters`.

        Returns
        -------
        numpy.ndarray or dask.array.Array of shape (rows,)
            Cluster of each row, -1 for outliers; lazy unless X was a NumPy array.

        Raises
        ------
        InputError
            If there is no such level, or not this many clusters.

        Examples
        --------
        >>> from scrlm_dask import SCRLM
        >>> model = SCRLM(n_clusters=6, rho=0.5).fit("features.zarr")
        >>> model.labels_at(3).compute().max()
        np.int32(2)
        """
        from scrlm_dask.pipeline.cut import clusters_at, cut_model

        check_is_fitted(self)
        cut = cut_model(self.model_, clusters_at(n_clusters, level, self.levels_, self.model_))
        labels = self.labels_ if cut.parents is None else self._fine_labels
        if labels is None:
            raise InputError(
                "labels of more clusters than n_clusters_ are available only for an array in "
                "memory; otherwise use scrlm_dask.fit(..., out=RUN) and Run(RUN).cut(...)"
            )
        joined = np.append(cut.groups, OUTLIER).astype(np.int32)  # label -1 selects the last
        if isinstance(labels, da.Array):
            return labels.map_blocks(joined.__getitem__, dtype=np.int32)
        return np.asarray(joined[labels])

    def fit_predict(
        self, X: FeaturesLike, y: object = None, *, storage_options: Options | None = None
    ) -> NDArray[np.int32] | da.Array:
        """Find the clusters of X and return its labels.

        Parameters
        ----------
        X : str, Path, FeatureStore, zarr.Array, dask.array.Array or array of shape (rows, p)
            Features. A path or URL must point to a features store or a Zarr array.
        y : object
            Ignored, for compatibility with scikit-learn.
        storage_options : dict or None
            fsspec options used to open URLs. They are neither printed nor saved.

        Returns
        -------
        numpy.ndarray or dask.array.Array of shape (rows,)
            Cluster of each row, -1 for outliers; lazy unless the input is a NumPy array.

        Examples
        --------
        >>> from scrlm_dask import SCRLM
        >>> labels = SCRLM(n_clusters=6, rho=0.5).fit_predict("features.zarr")
        >>> labels.compute().max()
        np.int32(5)
        """
        fitted = self.fit(X, storage_options=storage_options)
        labels: NDArray[np.int32] | da.Array = fitted.labels_
        return labels

    def _config(self) -> FitConfig:
        return FitConfig(
            rho=self.rho,
            F=self.F,
            n_clusters=self.n_clusters,
            n_candidates=self.n_candidates,
            loss_rows=self.loss_rows,
            min_neighbors=self.min_neighbors,
            preprocess=self.preprocess,
            seed=seed_of(self.random_state),
            polish=self.polish,
            refine=lloyd_config(self.refine),
            robust=self.robust,
            outlier_share=self.outlier_share,
            radius=self.radius,
            prune=self.prune,
            extraction=self.extraction,
        )
