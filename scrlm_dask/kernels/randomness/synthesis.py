"""Synthetic rows of the paper's Gaussian mixture with outliers, identical for any block size.

Rows are drawn in strata of fixed size, each with its own random stream, so that a block needs only
the strata that it overlaps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError
from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.randomness.sampling import Purpose, stream

STRATUM_ROWS = 1024
_WEIGHT_RANGE = (0.8, 1.2)


@dataclass(frozen=True)
class MixtureSpec:
    """Parameters of the paper's mixture for `synth`.

    The means of the clusters and the outliers are drawn from N(0, I_p). The weights of the clusters
    are random, and their standard deviations rise from `sigma_min` to `sigma_max`.

    Parameters
    ----------
    n_features, n_clusters : int
        Number of features and of clusters.
    outliers : float
        Share of rows that are outliers.
    sigma_min, sigma_max : float
        Standard deviation of the first and of the last cluster.
    seed : int
        Seed for means and rows.

    Examples
    --------
    >>> import scrlm_dask
    >>> scrlm_dask.MixtureSpec(n_features=32, n_clusters=5, outliers=0.2).sigma_max
    0.25
    """

    n_features: int
    n_clusters: int
    outliers: float = 0.5
    sigma_min: float = 1 / 16
    sigma_max: float = 1 / 4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_features < 1 or self.n_clusters < 1:
            raise InputError(
                f"n_clusters and n_features must be at least 1, got {self.n_clusters} clusters and "
                f"{self.n_features} features"
            )
        if not 0 <= self.outliers <= 1:
            raise InputError(f"the share of outliers must be in [0, 1], got {self.outliers}")
        if not 0 < self.sigma_min <= self.sigma_max < math.inf:
            raise InputError(
                "sigma must satisfy 0 < sigma_min <= sigma_max < infinity, got sigma_min "
                f"{self.sigma_min} and sigma_max {self.sigma_max}"
            )
        if self.seed < 0:
            raise InputError(f"seed must not be negative, got {self.seed}")


@dataclass(frozen=True)
class TrueMixture:
    """The mixture that rows are drawn from."""

    weights: NDArray[np.float64]  # (m,) shares of all rows, outliers included
    means: NDArray[np.float32]  # (m, p)
    sigmas: NDArray[np.float64]  # (m,)


@dataclass(frozen=True)
class SynthBlock:
    """Rows drawn from the mixture, and their true labels."""

    features: NDArray[np.float32]  # (rows, p)
    labels: NDArray[np.int32]  # (rows,) true labels, OUTLIER for outliers


def true_mixture(spec: MixtureSpec) -> TrueMixture:
    """Draw the weights, means and sigmas of the mixture."""
    rng = stream(spec.seed, Purpose.SYNTH_MIXTURE)
    weights = rng.uniform(*_WEIGHT_RANGE, size=spec.n_clusters)
    weights *= (1.0 - spec.outliers) / weights.sum()
    means = rng.standard_normal((spec.n_clusters, spec.n_features), dtype=np.float32)
    sigmas = np.linspace(spec.sigma_min, spec.sigma_max, spec.n_clusters)
    return TrueMixture(weights, means, sigmas)


def synth_block(spec: MixtureSpec, mixture: TrueMixture, start: int, stop: int) -> SynthBlock:
    """Return rows start..stop-1 of the infinite sequence of rows of the mixture."""
    features = np.empty((stop - start, spec.n_features), np.float32)
    labels = np.empty(stop - start, np.int32)
    for stratum in range(start // STRATUM_ROWS, -(-stop // STRATUM_ROWS)):
        first = stratum * STRATUM_ROWS
        begin, end = max(start, first), min(stop, first + STRATUM_ROWS)
        inside, outside = slice(begin - first, end - first), slice(begin - start, end - start)
        drawn = _draw_stratum(spec, mixture, stratum)
        features[outside], labels[outside] = drawn.features[inside], drawn.labels[inside]
    return SynthBlock(features, labels)


def _draw_stratum(spec: MixtureSpec, mixture: TrueMixture, stratum: int) -> SynthBlock:
    rng = stream(spec.seed, Purpose.SYNTH_ROWS, stratum)
    rank = np.searchsorted(np.cumsum(mixture.weights), rng.random(STRATUM_ROWS), side="right")
    # Without outliers, the weights sum to 1 only up to rounding, so a rank may be too large.
    last = spec.n_clusters if spec.outliers > 0 else spec.n_clusters - 1
    labels = np.minimum(rank, last).astype(np.int32)
    labels[labels == spec.n_clusters] = OUTLIER
    features = rng.standard_normal((STRATUM_ROWS, spec.n_features), dtype=np.float32)
    inlier = labels != OUTLIER
    sigmas = mixture.sigmas[labels[inlier]].astype(np.float32)
    features[inlier] = features[inlier] * sigmas[:, None] + mixture.means[labels[inlier]]
    return SynthBlock(features, labels)
