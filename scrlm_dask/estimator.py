"""SCRLM in scikit-learn's conventions: validate, delegate, store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

import dask.array as da
import numpy as np
import zarr
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from scrlm_dask.config import FitConfig
from scrlm_dask.kernels.preprocessing import Preprocess
from scrlm_dask.model import Model
from scrlm_dask.passes.assign import lazy_labels
from scrlm_dask.passes.features import FeaturesLike, as_features
from scrlm_dask.pipeline import center_points, check_width, fit, predict
from scrlm_dask.storage.features import check_features_like
from scrlm_dask.storage.locations import Location, Options


class SCRLM(ClusterMixin, BaseEstimator):
    """Scalable Clustering by Robust Loss Minimization: finds clusters and marks outliers -1.

    Fit it on a path or URL of a Zarr store, a `zarr.Array`, a Dask array or a NumPy array. The work
    goes to the current Dask client, or to threads where there is none. Only NumPy input is held in
    memory as a whole.

    Parameters
    ----------
    n_clusters : int or None
        At most so many clusters; None finds as many as are there.
    rho : float
        Bandwidth, in units of the preprocessed features: a little above the standard deviation of
        the widest cluster. The radius of a cluster is rho * sqrt(n_features * F).
    F : float
        The loss of a row at its candidate's place; the paper uses 2.5.
    n_candidates : int or "auto"
        Random rows tried as centers; "auto" takes what the theory asks for `n_clusters`.
    loss_rows : int or "all"
        Rows on which candidates are judged; a random subset is enough when clusters are large.
        Every row is labelled all the same.
    min_neighbors : int
        A center needs this many other rows inside its radius.
    preprocess : {"standardize", "center", "scale", "none", "l2"}
        The map applied to rows first; it belongs to the model. "l2" is for cosine distance.
    random_state : int, RandomState or None
        Seed of the choice of candidates; the same int gives the same bits.
    block_rows : int or None
        Rows handled at a time; None follows the input's chunks.

    Attributes
    ----------
    cluster_centers_ : (k, p) the rows picked as centers, in the units of the input.
    means_ : (k, p) mean of each cluster's rows; with "l2", of their unit-length versions, and
        sigmas likewise.
    weights_, sigmas_ : (k,) share of rows and standard deviation of each mixture component.
    outlier_weight_ : share of rows that belong to no component.
    labels_ : (N,) cluster of each row, -1 for outliers; a lazy Dask array unless the input was
        a NumPy array.
    n_clusters_, n_features_in_, rho_, radius_ : what was found and used.
    model_ : the `Model`; record_ : what the run did, phase by phase.
    """

    def __init__(
        self,
        n_clusters: int | None = None,
        rho: float = 0.5,
        F: float = 2.5,
        n_candidates: int | Literal["auto"] = "auto",
        loss_rows: int | Literal["all"] = "all",
        min_neighbors: int = 1,
        preprocess: Preprocess = "standardize",
        random_state: Any = 0,
        block_rows: int | None = None,
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

    def fit(
        self, X: FeaturesLike, y: object = None, *, storage_options: Options | None = None
    ) -> Self:
        """Find the clusters of X (rows, p). A URL is opened with `storage_options`.

        They are no parameter of the estimator, whose repr would show them.
        """
        config = self._config()
        in_memory = not _is_lazy(X)
        if in_memory:
            X = _validated(self, X, reset=True)
        result = fit(
            X,
            config,
            collect_labels=in_memory,
            block_rows=self.block_rows,
            storage_options=storage_options,
        )
        self._store(result.model)
        self.record_ = result.record
        self.labels_ = result.labels if in_memory else self._lazy(X, storage_options)
        return self

    def predict(
        self, X: FeaturesLike, *, storage_options: Options | None = None
    ) -> NDArray[np.int32] | da.Array:
        """Label rows with the fitted clusters; lazy for lazy input."""
        check_is_fitted(self)
        if _is_lazy(X):
            return self._lazy(X, storage_options)
        X = _validated(self, X, reset=False)
        found = predict(self.model_, X, collect_labels=True, block_rows=self.block_rows)
        assert found.labels is not None
        return found.labels

    def fit_predict(
        self, X: FeaturesLike, y: object = None, *, storage_options: Options | None = None
    ) -> NDArray[np.int32] | da.Array:
        """Fit to X and return its labels."""
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
            seed=_seed(self.random_state),
        )

    def _store(self, model: Model) -> None:
        self.model_ = model
        self.cluster_centers_ = model.centers
        self.means_ = model.means
        self.weights_ = model.weights
        self.sigmas_ = model.sigmas
        self.outlier_weight_ = model.outlier_weight
        self.n_clusters_ = model.n_clusters
        self.n_features_in_ = model.n_features
        self.rho_ = model.config.rho
        self.radius_ = model.radius

    def _lazy(self, X: FeaturesLike, storage_options: Options | None) -> da.Array:
        # a Dask array keeps its own chunks, so that labels align with it
        if isinstance(X, da.Array):
            array = X
        else:
            array = as_features(X, self.block_rows, storage_options).array
        check_features_like(array.shape, array.dtype, "the input")
        check_width(self.model_, array.shape[1], "the input")
        return lazy_labels(array, center_points(self.model_), self.model_.sq_radius)


def _is_lazy(X: object) -> bool:
    return isinstance(X, str | Path | Location | zarr.Array | da.Array)


def _validated(estimator: SCRLM, X: object, *, reset: bool) -> NDArray[Any]:
    """scikit-learn's checks; only for arrays in memory: they would pull lazy input into it."""
    floats = [np.float64, np.float32, np.float16]
    checked: NDArray[Any] = validate_data(estimator, X, reset=reset, dtype=floats)
    return checked


def _seed(random_state: Any) -> int:
    """The seed itself where there is one, so that it can be read in the record."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))
