"""A model from centers and what the last read said of their rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.config import FitConfig, KMeansConfig
from scrlm_dask.kernels.lloyd import inertia
from scrlm_dask.kernels.mixture import ClusterSums, mixture_parameters
from scrlm_dask.kernels.points import prepare_points
from scrlm_dask.kernels.preprocessing import AffineMap
from scrlm_dask.model import Model

_NO_ROWS = np.empty(0, np.int64)


def model_from(
    centers: NDArray[Any],
    sums: ClusterSums,
    affine: AffineMap,
    config: FitConfig | KMeansConfig,
    *,
    center_rows: NDArray[np.int64] = _NO_ROWS,
    losses: NDArray[np.float64] | None = None,
    neighbors: NDArray[np.int64] = _NO_ROWS,
    n_candidates: int = 0,
) -> Model:
    """The model of centers (k, p), in input units, and the sums of the rows labelled with them."""
    points = prepare_points(centers, affine)
    sq_radius = config.sq_radius(affine.n_features)
    mixture = mixture_parameters(
        sums, points.raw * points.inv_norms[:, None], affine.scale, math.sqrt(sq_radius)
    )
    return Model(
        centers=centers,
        center_rows=center_rows,
        losses=np.empty(0) if losses is None else losses,
        neighbors=neighbors,
        means=mixture.means,
        counts=sums.counts,
        weights=mixture.weights,
        sigmas=mixture.sigmas,
        outlier_weight=mixture.outlier_weight,
        n_outliers=sums.n_rows - int(sums.counts.sum()),
        n_rows=sums.n_rows,
        n_candidates=n_candidates,
        inertia=inertia(sums, sq_radius),
        affine=affine,
        config=config,
    )
