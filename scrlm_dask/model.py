"""The fitted model: plain arrays and numbers, enough to label new rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.config import FitConfig, KMeansConfig
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.scrlm.ward import MergeTree


@dataclass(frozen=True, repr=False)
class Model:
    """k clusters. Centers, means and sigmas are in the units of the input features.

    `rho`, `radius` and `inertia` belong to the space after preprocessing, where distances are
    taken. Of SCRLM's own arrays (`center_rows`, `losses`, `neighbors`) a k-means model has none:
    they are empty.
    """

    centers: NDArray[Any]  # (k, p) the candidate rows picked, in extraction order, or refined
    center_rows: NDArray[np.int64]  # (k,) rows of the features fitted where the centers began
    losses: NDArray[np.float64]  # (k,)
    neighbors: NDArray[np.int64]  # (k,) other rows inside the radius when the loss was taken
    means: NDArray[np.float64]  # (k, p) of the rows labelled with each cluster
    counts: NDArray[np.int64]  # (k,) rows labelled with each cluster
    weights: NDArray[np.float64]  # (k,)
    sigmas: NDArray[np.float64]  # (k,)
    outlier_weight: float
    n_outliers: int
    n_rows: int
    n_candidates: int
    inertia: float  # sum of squared distances; a row outside the radius counts as if on it
    affine: AffineMap
    config: FitConfig | KMeansConfig
    tree: MergeTree | None = None  # of the centers merged to these, unless k-means moved them

    def __repr__(self) -> str:
        rho = f"rho={self.config.given_rho:g}, " if isinstance(self.config, FitConfig) else ""
        return (
            f"Model({self.n_clusters} clusters, {self.n_features} features, "
            f"{rho}{self.n_outliers} of {self.n_rows} rows outliers)"
        )

    def _repr_html_(self) -> str:
        from scrlm_dask.monitoring.html import model_html

        return model_html(self)

    @property
    def n_clusters(self) -> int:
        return len(self.centers)

    @property
    def n_features(self) -> int:
        return int(self.centers.shape[1])

    @property
    def radius(self) -> float:
        """Rows farther than this from every center are outliers; infinite if none is."""
        return math.sqrt(self.sq_radius)

    @property
    def sq_radius(self) -> float:
        return self.config.sq_radius(self.n_features)
