"""Estimate mixtures of spherical Gaussians from moments: Theorem 2 of Hsu and Kakade (2013).

For k components with weights w, means mu and variances s, and a direction v in which all means are
equal,

    M1 = E[x (v.(x - E x))^2]                   = sum w s mu
    M2 = E[x x] - (sum w s) I                   = sum w mu mu
    M3 = E[x x x] - (M1 in each of three places) = sum w mu mu mu

so that M2 whitens M3, and the eigenvectors of M3 are the components. The implementation differs
from the theorem in four points, none of which changes an expectation:

- All directions orthogonal to the span of the means are used instead of a single v, and their
  average variance instead of the smallest eigenvalue. A single direction is noisy, and its variance
  is 0 if there are fewer rows than features.
- Rows are first projected onto the span of the means, so no array has p^3 entries.
- The theorem requires linearly independent means, which excludes a mean at the origin. Rows are
  centered and extended by a constant coordinate 1, which has no noise. The extended means are
  independent unless a plane of k - 2 dimensions contains all means, and the last entry of an
  eigenvector is the square root of the component's weight.
- Eigenvectors along one random direction mix components with nearly equal eigenvalues. Steps of
  the tensor power method, for all components at once, separate them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from scrlm_dask.errors import InputError

_TRIALS = 16  # random directions of M3; the one that separates components best is used
# Lower bound of a component's variance, relative to the average. The estimate of a narrow component
# among wide ones is noisy and may be negative. With a variance that is too small, a component loses
# its rows to other components; with a variance that is too large, it does not.
_LEAST_SHARE = 0.1
_POWER_STEPS, _STILL = 30, 1e-12
_FLAT = 1e-9  # lower bound of the signal along an axis, relative to the largest
_TINY = 1e-200  # smallest variance; dividing squares of float32 by it does not overflow
_TILE_ROWS = 4096


@dataclass(frozen=True)
class SphericalMixture:
    """Weights (k,), means (k, p) and variances (k,) of the components, by descending weight.

    Variances are estimated from the moments and may be negative for a narrow component among wide
    ones.
    """

    weights: NDArray[np.float64]
    means: NDArray[np.float64]
    variances: NDArray[np.float64]


@dataclass(frozen=True)
class _Lifted:
    """Rows projected onto the span of the means, whitened, and extended by a constant 1."""

    rows: NDArray[np.float64]  # (N, k)
    noise: NDArray[np.float64]  # (N,) variance of each row orthogonal to the span
    scales: NDArray[np.float64]  # (k - 1,) deviation of the means along each axis
    axes: NDArray[np.float64]  # (p, k - 1)
    center: NDArray[np.float64]  # (p,)

    @property
    def noise_shape(self) -> NDArray[np.float64]:
        """Variances (k,) that noise of variance 1 has after whitening; 0 for the constant."""
        return np.append(self.scales**-2.0, 0.0)


def spherical_mixture(
    rows: NDArray[np.float32], n_components: int, rng: np.random.Generator
) -> SphericalMixture:
    """Estimate the mixture from the moments of rows (N, p)."""
    n_rows, p = rows.shape
    if not 1 <= n_components <= min(n_rows, p):
        raise InputError(
            f"a tensor decomposition of {n_rows} rows with {p} features requires 1 to "
            f"{min(n_rows, p)} components, got {n_components}"
        )
    lifted = _lift(rows, n_components - 1)
    components = _components(lifted, rng)
    roots = np.maximum(components[-1], n_rows**-0.5)
    means = lifted.center + (components[:-1] / roots * lifted.scales[:, None]).T @ lifted.axes.T
    variances = components.T @ _first_moment(lifted) / roots
    order = np.argsort(-roots)
    return SphericalMixture(np.square(roots)[order], means[order], variances[order])


def most_likely(rows: NDArray[np.float32], mixture: SphericalMixture) -> NDArray[np.int64]:
    """Return the most likely component of each row (N, p)."""
    p = rows.shape[1]
    labels = np.empty(len(rows), np.int64)
    average = float(mixture.weights @ np.maximum(mixture.variances, 0.0) / mixture.weights.sum())
    variances = np.maximum(mixture.variances, max(_LEAST_SHARE * average, _TINY))
    heights = np.log(mixture.weights) - 0.5 * p * np.log(variances)
    center = mixture.weights @ mixture.means / mixture.weights.sum()
    means = mixture.means - center  # avoids cancellation if the data is far from the origin
    sq_norms = np.square(means).sum(axis=1)
    for start in range(0, len(rows), _TILE_ROWS):
        tile = rows[start : start + _TILE_ROWS] - center
        sq_distances = np.square(tile).sum(axis=1)[:, None] + sq_norms - 2.0 * (tile @ means.T)
        scores = heights - 0.5 * sq_distances / variances
        labels[start : start + len(tile)] = scores.argmax(axis=1)
    return labels


def _lift(rows: NDArray[np.float32], n_axes: int) -> _Lifted:
    n_rows, p = rows.shape
    center = rows.mean(axis=0, dtype=np.float64)
    centered = (rows - center).astype(np.float32)
    axes, variances = _principal(centered, n_axes)
    if n_axes and variances.max() == 0.0:
        raise InputError(f"all {n_rows} rows are identical; a decomposition requires distinct rows")
    along = centered @ axes.astype(np.float32)
    sq_norms = np.einsum("ij,ij->i", centered, centered, dtype=np.float64)
    off = sq_norms - np.einsum("ij,ij->i", along, along, dtype=np.float64)
    noise = np.maximum(off, 0.0) / (p - n_axes)
    signal = np.maximum(variances - noise.mean(), _FLAT * variances.max(initial=0.0))
    scales = np.sqrt(signal)
    return _Lifted(np.hstack([along / scales, np.ones((n_rows, 1))]), noise, scales, axes, center)


def _principal(
    centered: NDArray[np.float32], number: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the principal axes (p, number) of centered rows (N, p), and their variances."""
    n_rows, p = centered.shape
    if number == 0:
        return np.empty((p, 0)), np.empty(0)
    wide = n_rows < p
    # Use the smaller of the two products; both have the same nonzero eigenvalues.
    product = (centered @ centered.T if wide else centered.T @ centered).astype(np.float64)
    size = len(product)
    values, vectors = eigh(product, subset_by_index=(size - number, size - 1))
    if wide:
        vectors = np.linalg.qr(centered.T @ vectors)[0]
    return vectors, np.maximum(values, 0.0) / n_rows


def _first_moment(lifted: _Lifted) -> NDArray[np.float64]:
    """Return M1 (k,) of the lifted rows."""
    return np.asarray(lifted.noise @ lifted.rows / len(lifted.rows))


def _components(lifted: _Lifted, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return eigenvectors (k, k) of M3 as columns, for the direction that separates them best."""
    best, widest = np.empty(0), -1.0
    for _ in range(_TRIALS):
        direction = rng.standard_normal((lifted.rows.shape[1],))
        values, vectors = np.linalg.eigh(_third_moment(lifted, direction))
        gap = float(np.diff(values).min(initial=np.inf) / max(np.abs(values).max(), 1e-300))
        if gap > widest:
            best, widest = vectors, gap
    best = _power_steps(lifted, best)
    return best * np.where(best[-1] < 0.0, -1.0, 1.0)


def _power_steps(lifted: _Lifted, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Move each column of `vectors` (k, k) to its nearest component; keep columns orthogonal."""
    rows, first = lifted.rows, _first_moment(lifted)
    noise = lifted.noise_shape
    for _ in range(_POWER_STEPS):
        before = vectors
        moved = rows.T @ np.square(rows @ vectors) / len(rows)
        moved -= 2.0 * noise[:, None] * vectors * (first @ vectors)
        moved -= np.outer(first, noise @ np.square(vectors))
        left, _, right = np.linalg.svd(moved)
        vectors = left @ right  # the nearest orthogonal matrix
        if np.abs(np.abs((before * vectors).sum(axis=0)) - 1.0).max() < _STILL:
            break
    return vectors


def _third_moment(lifted: _Lifted, direction: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return M3 (k, k) of the lifted rows along a direction (k,)."""
    rows = lifted.rows
    moment = (rows * (rows @ direction)[:, None]).T @ rows / len(rows)
    first = _first_moment(lifted)
    noise = lifted.noise_shape
    mixed = np.outer(first, noise * direction)
    return np.asarray(moment - mixed - mixed.T - np.diag(noise * float(first @ direction)))
