"""Mixture parameters of the paper's model: weight, mean and sigma of every cluster.

A cluster keeps only its rows inside the radius R, which makes it look narrower and lighter than
the Gaussian it came from. With G_k the chi-squared CDF with k degrees of freedom,

    E |y - mean|^2 given |y - mean| < R  =  p sigma^2 G_{p+2}(R^2/sigma^2) / G_p(R^2/sigma^2)

and a share G_p(R^2/sigma^2) of the Gaussian lies inside. Both effects are undone here. Distances
are in model units, y = (x - shift) * scale; what users read is in input units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # scipy.optimize is loaded on first use: it takes a third of a second
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
    """Finish the sums around centers (k, p), in input units, to a mixture.

    `scale` (p,) is positive and maps to model units, in which `radius` is measured. A radius of
    infinity says that nothing was cut off.
    """
    n_features = scale.size
    drifts = cluster_drifts(sums)
    mean_sq = _mean_sq(sums, sums.sq_distances, drifts * scale)
    sigmas = model_sigmas(sums, scale, radius)
    inside = np.array([_share_inside(sigma, n_features, radius) for sigma in sigmas.tolist()])
    weights = sums.masses / (sums.total_mass or 1.0) / inside
    total = float(weights.sum())
    return Mixture(
        # clusters that overlap share the rows that each correction adds: together at most all
        weights=weights / max(total, 1.0),
        means=centers + drifts,
        sigmas=_in_input_units(sigmas, mean_sq, sums, drifts),
        outlier_weight=max(0.0, 1.0 - total),
    )


def model_sigmas(
    sums: ClusterSums, scale: NDArray[np.float64], radius: float
) -> NDArray[np.float64]:
    """Sigma (k,) of each cluster in model units, where rho is measured, too."""
    mean_sq = _mean_sq(sums, sums.sq_distances, cluster_drifts(sums) * scale)
    return np.array([truncated_sigma(value, scale.size, radius) for value in mean_sq.tolist()])


def _mean_sq(
    sums: ClusterSums, sq_distances: NDArray[np.float64], drifts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Unbiased mean squared distance to the mean (k,), from sums around a center.

    The drift is used as it is: mean - center would lose its digits far from the origin.
    """
    scatter = sq_distances - sums.masses * np.square(drifts).sum(axis=1)
    freedom = sums.masses * (1.0 - 1.0 / np.maximum(sums.counts, 2))
    # rounding can turn the scatter of identical rows negative
    mean_sq = np.maximum(scatter, 0.0) / np.where(freedom > 0.0, freedom, 1.0)
    # one row has no scatter: what the subtraction leaves of it is rounding
    mean_sq[sums.counts <= 1] = 0.0
    return np.asarray(mean_sq)


def _in_input_units(
    sigmas: NDArray[np.float64],
    mean_sq: NDArray[np.float64],
    sums: ClusterSums,
    drifts: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The deviation measured in input units, widened as truncation asks in model units.

    Measured, not divided by the scale: features need not all deviate alike, and a constant one
    has a scale that means nothing.
    """
    measured = _mean_sq(sums, sums.input_sq_distances, drifts)
    widening = sigmas / np.sqrt(np.where(mean_sq > 0.0, mean_sq, 1.0))
    return np.asarray(widening * np.sqrt(measured))


def truncated_sigma(mean_sq: float, n_features: int, radius: float) -> float:
    """Sigma of a spherical Gaussian whose rows inside `radius` have this mean squared distance.

    The answer is at most radius / sqrt(p). A Gaussian that wide has its typical distance,
    sigma sqrt(p), at the edge of the ball and half of its rows beyond it. Wider ones look all
    alike from inside, a ball filled evenly (mean_sq = radius^2 p/(p+2) in the limit), so a small
    error in mean_sq would send sigma to infinity and the corrected weight with it.
    """
    relative = math.sqrt(mean_sq) / radius
    share = relative * relative
    if share == 0.0 or _shrinkage(n_features / share, n_features) == 1.0:
        return math.sqrt(mean_sq / n_features)  # the ball holds all of the Gaussian
    if share >= _shrinkage(n_features, n_features):
        return radius / math.sqrt(n_features)

    def excess(v: float) -> float:
        """Too much mean squared distance when p sigma^2 = v radius^2."""
        return v * _shrinkage(n_features / v, n_features) - share

    # truncation only shrinks, so v is at least the share seen; the cap is v = 1
    v = scipy.optimize.brentq(excess, share, 1.0, xtol=1e-15)
    return radius * math.sqrt(v / n_features)


def _shrinkage(x: float, n_features: int) -> float:
    """G_{p+2}(x) / G_p(x), the factor by which truncation at R^2 = x sigma^2 shrinks p sigma^2.

    The cap on sigma keeps x >= p, where G_p is above 1/2 and G_{p+2} above 0.19 for every p: the
    plain ratio loses nothing, and neither of the two can underflow.
    """
    half = n_features / 2
    return min(1.0, float(gammainc(half + 1, x / 2)) / float(gammainc(half, x / 2)))


def _share_inside(sigma: float, n_features: int, radius: float) -> float:
    """G_p(radius^2 / sigma^2), the share of a Gaussian that lies inside the radius."""
    if sigma == 0.0:
        return 1.0
    relative = radius / sigma
    return float(gammainc(n_features / 2, relative * relative / 2))
