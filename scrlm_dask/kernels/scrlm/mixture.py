"""Mixture parameters of the paper's model: weight, mean and sigma of every cluster.

A cluster contains only rows inside the radius R, so it appears narrower and lighter than the
Gaussian that its rows come from. With G_k the chi-squared CDF with k degrees of freedom,

    E |y - mean|^2 given |y - mean| < R  =  p sigma^2 G_{p+2}(R^2/sigma^2) / G_p(R^2/sigma^2)

and a share G_p(R^2/sigma^2) of the Gaussian is inside. Both effects are corrected here. Distances
are in model units, y = (x - shift) * scale; reported values are in input units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # scipy.optimize is imported on first use: its import takes a third of a second
from numpy.typing import NDArray
from scipy.special import gammainc

from scrlm_dask.kernels.distances.cluster_sums import ClusterSums, cluster_drifts


@dataclass(frozen=True)
class Mixture:
    """The fitted mixture: weights (k,); means (k, p) and sigmas (k,) in input units."""

    weights: NDArray[np.float64]
    means: NDArray[np.float64]
    sigmas: NDArray[np.float64]
    outlier_weight: float


def mixture_parameters(
    sums: ClusterSums,
    centers: NDArray[np.float64],
    scale: NDArray[np.float64],
    radius: float,
) -> Mixture:
    """Compute the mixture from sums of offsets and distances to centers (k, p), in input units.

    `scale` (p,) is positive and maps to model units, in which `radius` is measured. A radius of
    infinity means no truncation.
    """
    n_features = scale.size
    drifts = cluster_drifts(sums)
    mean_sq = _mean_sq(sums, sums.sq_distances, drifts * scale)
    sigmas = model_sigmas(sums, scale, radius)
    inside = np.array([_share_inside(sigma, n_features, radius) for sigma in sigmas.tolist()])
    weights = sums.masses / (sums.total_mass or 1.0) / inside
    total = float(weights.sum())
    return Mixture(
        # If clusters overlap, their corrections count the same rows more than once, but the sum of
        # the weights must not exceed 1.
        weights=weights / max(total, 1.0),
        means=centers + drifts,
        sigmas=_in_input_units(sigmas, mean_sq, sums, drifts),
        outlier_weight=max(0.0, 1.0 - total),
    )


def model_sigmas(
    sums: ClusterSums, scale: NDArray[np.float64], radius: float
) -> NDArray[np.float64]:
    """Return sigma (k,) of each cluster in model units, the units of rho."""
    mean_sq = _mean_sq(sums, sums.sq_distances, cluster_drifts(sums) * scale)
    return np.array([truncated_sigma(value, scale.size, radius) for value in mean_sq.tolist()])


def _mean_sq(
    sums: ClusterSums, sq_distances: NDArray[np.float64], drifts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the unbiased mean squared distance (k,) of rows to the mean of their cluster.

    `sq_distances` (k,) are sums of squared distances to the center. `drifts` (k, p), the means
    relative to the centers, come from `cluster_drifts`: subtracting centers from means would lose
    digits far from the origin.
    """
    scatter = sq_distances - sums.masses * np.square(drifts).sum(axis=1)
    freedom = sums.masses * (1.0 - 1.0 / np.maximum(sums.counts, 2))
    # Rounding can make the scatter of identical rows negative.
    mean_sq = np.maximum(scatter, 0.0) / np.where(freedom > 0.0, freedom, 1.0)
    # A single row has no scatter; any remainder is rounding.
    mean_sq[sums.counts <= 1] = 0.0
    return np.asarray(mean_sq)


def _in_input_units(
    sigmas: NDArray[np.float64],
    mean_sq: NDArray[np.float64],
    sums: ClusterSums,
    drifts: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return sigmas (k,) in input units, corrected for truncation by the factor in model units.

    Sigmas are computed from distances in input units. Dividing sigmas in model units by the scale
    would be wrong: features may have different deviations, and the scale of a constant feature is
    meaningless.
    """
    measured = _mean_sq(sums, sums.input_sq_distances, drifts)
    widening = sigmas / np.sqrt(np.where(mean_sq > 0.0, mean_sq, 1.0))
    return np.asarray(widening * np.sqrt(measured))


def truncated_sigma(mean_sq: float, n_features: int, radius: float) -> float:
    """Return sigma of a spherical Gaussian from the mean squared distance of rows inside `radius`.

    The result is at most radius / sqrt(p). A Gaussian with this sigma has its typical distance,
    sigma sqrt(p), at the radius, and half of its rows outside. Inside the radius, all wider
    Gaussians look alike, close to a uniformly filled ball (mean_sq = radius^2 p/(p+2)). A small
    error in mean_sq would then make sigma and the corrected weight infinite.
    """
    relative = math.sqrt(mean_sq) / radius
    share = relative * relative
    if share == 0.0 or _shrinkage(n_features / share, n_features) == 1.0:
        return math.sqrt(mean_sq / n_features)  # the ball contains all of the Gaussian
    if share >= _shrinkage(n_features, n_features):
        return radius / math.sqrt(n_features)

    def excess(v: float) -> float:
        """Return the expected minus the observed share, if p sigma^2 = v radius^2."""
        return v * _shrinkage(n_features / v, n_features) - share

    # Truncation only lowers the share, so v is at least the observed share; the cap is v = 1.
    v = scipy.optimize.brentq(excess, share, 1.0, xtol=1e-15)
    return radius * math.sqrt(v / n_features)


def _shrinkage(x: float, n_features: int) -> float:
    """Return G_{p+2}(x) / G_p(x).

    Truncation at R^2 = x sigma^2 multiplies the mean squared distance p sigma^2 by this factor.

    The cap on sigma ensures x >= p, where G_p is above 1/2 and G_{p+2} above 0.19 for every p. The
    ratio is therefore accurate, and neither G_p nor G_{p+2} can underflow.
    """
    half = n_features / 2
    return min(1.0, float(gammainc(half + 1, x / 2)) / float(gammainc(half, x / 2)))


def _share_inside(sigma: float, n_features: int, radius: float) -> float:
    """Return G_p(radius^2 / sigma^2), the share of a Gaussian inside the radius."""
    if sigma == 0.0:
        return 1.0
    relative = radius / sigma
    return float(gammainc(n_features / 2, relative * relative / 2))
