"""k-means in scikit-learn's conventions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.choices import Persist, Preprocess
from scrlm_dask.config import KMeansConfig, LloydConfig
from scrlm_dask.errors import InputError
from scrlm_dask.estimators.common import Clusterer, is_lazy, seed_of
from scrlm_dask.model import Model
from scrlm_dask.storage.locations import Options

if TYPE_CHECKING:
    from scrlm_dask.engine.features import FeaturesLike, WeightsLike


class KMeans(Clusterer):
    """k-means over features that need not fit in memory, one read of them an iteration.

    Fit it on a path or URL of a Zarr store, a `zarr.Array`, a Dask array or a NumPy array. The work
    goes to the current Dask client, or to threads where there is none.

    Parameters
    ----------
    n_clusters : int
    init : {"scrlm", "k-means++", "k-means||", "random"}, array (n_clusters, p), Model or Path
        Where to begin. "scrlm" runs SCRLM on a sample of rows and picks its bandwidth itself;
        "k-means++" works on a sample, too; "k-means||" draws 2 * n_clusters rows in each of a few
        passes. A Path leads to a run, a model or a .npy array. What was looked at is in
        `record_["init"]`.
    max_iter : int
        Most iterations over all rows.
    tol : float
        Stop when the centers move by less than this share of the rows' distance to them.
    inertia_tol : float
        Stop when the inertia falls by less than this share of itself.
    max_seconds : float or None
        Begin no iteration after so long.
    sample : float or None
        Mini-batches: iterate first on this share of the blocks, then on twice as many, and so on;
        the last iterations are over all rows. `record_["kmeans"]` says what was sampled.
    spherical : bool
        Rows and centers count at unit length: cosine distance. The same as preprocess="l2".
    preprocess : {"none", "standardize", "center", "scale", "l2"}
        The map applied to rows first; it belongs to the model.
    persist : {"auto", "yes", "no"}
        Hold the features in the workers' memory between passes; "auto" if they fit.
    random_state : int, RandomState or None
    prune : int or "auto"
        Axes by which pairs that are far apart are ruled out; the result is the same. "auto" lets
        each block find out what is cheapest, 0 rules nothing out.
    block_rows : int or None
        Rows handled at a time; None follows the input's chunks.

    Attributes
    ----------
    cluster_centers_ : (n_clusters, p) in the units of the input.
    labels_ : (N,) a lazy Dask array unless the input was a NumPy array.
    inertia_ : weighted sum of squared distances to the nearest center, after preprocessing.
    n_iter_, n_features_in_, model_, record_
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
        """Cluster X (rows, p); `sample_weight` (rows,) is an array or a file (.npy or Zarr).

        URLs are opened with `storage_options`.
        """
        from scrlm_dask.pipeline.kmeans import kmeans  # importing the class stays quick

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
        """Cluster X and return its labels."""
        fitted = self.fit(X, sample_weight=sample_weight, storage_options=storage_options)
        labels: NDArray[np.int32] | da.Array = fitted.labels_
        return labels

    def _config(self) -> tuple[KMeansConfig, NDArray[Any] | Model | Path | None]:
        init: Any = self.init
        centers = None
        if not isinstance(init, str):
            as_it_is = isinstance(init, Model | Path)
            init, centers = "given", init if as_it_is else np.asarray(init)
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
                f"spherical is True and preprocess is {self.preprocess!r}; spherical k-means takes "
                "rows at unit length ('l2'): leave one of them out"
            )
        return "l2"
