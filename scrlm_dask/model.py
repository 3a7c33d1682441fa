"""The fitted model: plain arrays and numbers, enough to label new rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.config import FitConfig
from scrlm_dask.kernels.points import radius, squared_radius
from scrlm_dask.kernels.preprocessing import AffineMap


@dataclass(frozen=True, repr=False)
class Model:
    """k clusters. Centers, means and sigmas are in the units of the input features.

    `rho` and `radius` belong to the space after preprocessing, where distances are taken.
    """

    centers: NDArray[Any]  # (k, p) the candidate rows picked, in extraction order
    center_rows: NDArray[np.int64]  # (k,) their row numbers in the features fitted
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
    affine: AffineMap
    config: FitConfig

    def __repr__(self) -> str:
        return (
            f"Model({self.n_clusters} clusters, {self.n_features} features, "
            f"rho={self.config.rho:g}, {self.n_outliers} of {self.n_rows} rows outliers)"
        )

    @property
    def n_clusters(self) -> int:
        return len(self.centers)

    @property
    def n_features(self) -> int:
        return int(self.centers.shape[1])

    @property
    def radius(self) -> float:
        return radius(self.config.rho, self.config.F, self.n_features)

    @property
    def sq_radius(self) -> float:
        return squared_radius(self.config.rho, self.config.F, self.n_features)
