"""SCRLM in scikit-learn's conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.choices import Extraction, Preprocess
from scrlm_dask.config import FitConfig, LloydConfig, lloyd_config
from scrlm_dask.estimators.common import Clusterer, is_lazy, seed_of
from scrlm_dask.storage.locations import Options

if TYPE_CHECKING:
    from scrlm_dask.engine.features import FeaturesLike


class SCRLM(Clusterer):
    """Scalable Clustering by Robust Loss Minimization: finds clusters and marks outliers -1.

    Fit it on a path or URL of a Zarr store, a `zarr.Array`, a Dask array or a NumPy array. The work
    goes to the current Dask client, or to threads where there is none. Only NumPy input is held in
    memory as a whole.

    Parameters
    ----------
    n_clusters : int or None
        At most so many clusters; None finds as many as are there.
    rho : float or "auto"
        Bandwidth, in units of the preprocessed features: a little above the standard deviation of
        the widest cluster. The radius of a cluster is rho * sqrt(n_features * F). "auto" chooses
        it on a sample of rows; `record_["scan"]` says why, and what other values would give.
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
    polish : bool
        Move each center to the mean of the rows inside its radius, in one more pass.
    refine : int or LloydConfig
        k-means iterations from the centers found; a `LloydConfig` also sets when to stop.
    robust : bool or "auto"
        Rows outside the radius take no part in k-means and stay outliers. False is the paper's
        SCRLM + k-means: all rows take part, and every row gets the label of its nearest center.
        "auto" is True, but for merged centers, whose clusters reach farther than the radius.
    prune : int or "auto"
        Axes by which pairs that are far apart are ruled out; the result is the same. "auto" lets
        each block find out what is cheapest, 0 rules nothing out.
    extraction : {"auto", "greedy", "residual", "merge"}
        How centers are taken from candidates. "greedy" is the paper's; "residual" judges
        candidates on rows of a sample that no center covers yet; "merge" takes several times as
        many so, and merges them to `n_clusters`. "auto" is "greedy" where rho is given; else
        "residual" for clusters with a clear scale, and "merge" for a number that is asked for.
    block_rows : int or None
        Rows handled at a time; None follows the input's chunks.

    Attributes
    ----------
    cluster_centers_ : (k, p) the rows picked as centers, or the refined centers, in the units of
        the input.
    means_ : (k, p) mean of each cluster's rows; with "l2", of their unit-length versions, and
        sigmas likewise.
    weights_, sigmas_ : (k,) share of rows and standard deviation of each mixture component.
    outlier_weight_ : share of rows that belong to no component.
    labels_ : (N,) cluster of each row, -1 for outliers; a lazy Dask array unless the input was
        a NumPy array.
    n_clusters_, n_features_in_, rho_, radius_ : what was found and used.
    inertia_, n_iter_ : sum of squared distances, and the k-means iterations done.
    model_ : the `Model`; record_ : what the run did, phase by phase.
    """

    def __init__(
        self,
        n_clusters: int | None = None,
        rho: float | Literal["auto"] = "auto",
        F: float = 2.5,
        n_candidates: int | Literal["auto"] = "auto",
        loss_rows: int | Literal["all"] = "all",
        min_neighbors: int = 1,
        preprocess: Preprocess = "standardize",
        random_state: Any = 0,
        block_rows: int | None = None,
        polish: bool = False,
        refine: int | LloydConfig = 0,
        robust: bool | Literal["auto"] = "auto",
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
        self.prune = prune
        self.extraction = extraction

    def fit(
        self, X: FeaturesLike, y: object = None, *, storage_options: Options | None = None
    ) -> Self:
        """Find the clusters of X (rows, p). A URL is opened with `storage_options`.

        They are no parameter of the estimator, whose repr would show them.
        """
        from scrlm_dask.pipeline.fit import fit  # importing the class stays quick

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
        return self

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
            seed=seed_of(self.random_state),
            polish=self.polish,
            refine=lloyd_config(self.refine),
            robust=self.robust,
            prune=self.prune,
            extraction=self.extraction,
        )
