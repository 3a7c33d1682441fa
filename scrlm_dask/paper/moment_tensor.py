"""Mixtures of spherical Gaussians by their moments: Theorem 2 of Hsu and Kakade (2013).

With k components of weight w, mean mu and variance s each, and v a direction in which the means do
not differ,

    M1 = E[x (v.(x - E x))^2]                   = sum w s mu
    M2 = E[x x] - (sum w s) I                   = sum w mu mu
    M3 = E[x x x] - (M1 in each of three places) = sum w mu mu mu

so that M2 whitens M3, and the eigenvectors of M3 are the components. Four liberties, which change
no expectation:

- All directions off the means' span stand for v, and their average variance for the smallest
  eigenvalue: one direction alone is noisy, and with fewer rows than features its variance is 0.
- Rows are reduced to their coordinates in the span of the means first: nothing has p^3 entries.
- The theorem needs independent means, which a component at the origin is not. Rows are taken
  about their mean and get one more coordinate, the constant 1, which has no noise: means that no
  plane of k - 2 dimensions holds are independent then, and the last entry of an eigenvector is the
  square root of its component's weight.
- Eigenvectors along one random direction mix components whose eigenvalues are close by chance:
  steps of the tensor power method, for all components at once, part them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from scrlm_dask.errors import InputError

_TRIALS = 16  # random directions of M3, of which the one that tells components apart best is kept
# Of the average variance. The estimate of a narrow component is lost in the noise of wide ones and
# may be negative; one that is too small takes the component's rows from it, a large one does not.
_LEAST_SHARE = 0.1
_POWER_STEPS, _STILL = 30, 1e-12
_FLAT = 1e-9  # of the largest signal: an axis without any
_TINY = 1e-200  # squares of float32 can be divided by it
_TILE_ROWS = 4096


@dataclass(frozen=True)
class SphericalMixture:
    """Weights (k,), means (k, p) and variances (k,) of the components, heaviest first.

    Variances are what the moments say, which for a narrow component among wide ones may be
    negative.
    """

    weights: NDArray[np.float64]
    means: NDArray[np.float64]
    variances: NDArray[np.float64]


@dataclass(frozen=True)
class _Lifted:
    """Rows in the means' span, whitened, and the constant 1."""

    rows: NDArray[np.float64]  # (N, k)
    noise: NDArray[np.float64]  # (N,) variance of each row off the span
    scales: NDArray[np.float64]  # (k - 1,) deviation of the means along each axis
    axes: NDArray[np.float64]  # (p, k - 1)
    center: NDArray[np.float64]  # (p,)

    @property
    def noise_shape(self) -> NDArray[np.float64]:
        """Return variances (k,) of noise of variance 1 after whitening; the constant has none."""
        return np.append(self.scales**-2.0, 0.0)


def spherical_mixture(
    rows: NDArray[np.float32], n_components: int, rng: np.random.Generator
) -> SphericalMixture:
    """Estimate the mixture from the moments of rows (N, p)."""
    n_rows, p = rows.shape
    if not 1 <= n_components <= min(n_rows, p):
        raise InputError(
            f"a tensor decomposition of {n_rows} rows with {p} features into {n_components} "
            f"components is not determined; ask for 1 to {min(n_rows, p)} of them"
        )
    lifted = _lift(rows, n_components - 1)
    components = _components(lifted, rng)
    roots = np.maximum(components[-1], n_rows**-0.5)
    means = lifted.center + (components[:-1] / roots * lifted.scales[:, None]).T @ lifted.axes.T
    variances = components.T @ _first_moment(lifted) / roots
    order = np.argsort(-roots)
    return SphericalMixture(np.square(roots)[order], means[order], variances[order])


def most_likely(rows: NDArray[np.float32], mixture: SphericalMixture) -> NDArray[np.int64]:
    """Label each row (N, p) with the component that it most likely came from."""
    p = rows.shape[1]
    labels = np.empty(len(rows), np.int64)
    average = float(mixture.weights @ np.maximum(mixture.variances, 0.0) / mixture.weights.sum())
    variances = np.maximum(mixture.variances, max(_LEAST_SHARE * average, _TINY))
    heights = np.log(mixture.weights) - 0.5 * p * np.log(variances)
    center = mixture.weights @ mixture.means / mixture.weights.sum()
    means = mixture.means - center  # or products cancel where the data lies far out
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
        raise InputError(f"the {n_rows} rows are all the same; there is nothing to decompose")
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
    """Return the strongest axes (p, number) of centered rows (N, p), and their variances."""
    n_rows, p = centered.shape
    if number == 0:
        return np.empty((p, 0)), np.empty(0)
    wide = n_rows < p
    # whichever product is smaller: both have the same eigenvalues
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
    """Return eigenvectors (k, k) of M3 as columns, along the direction that parts them best."""
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
    """Move each of the vectors (k, k) to the component it is nearest to, all at right angles."""
    rows, first = lifted.rows, _first_moment(lifted)
    noise = lifted.noise_shape
    for _ in range(_POWER_STEPS):
        before = vectors
        moved = rows.T @ np.square(rows @ vectors) / len(rows)
        moved -= 2.0 * noise[:, None] * vectors * (first @ vectors)
        moved -= np.outer(first, noise @ np.square(vectors))
        left, _, right = np.linalg.svd(moved)
        vectors = left @ right  # the nearest matrix with columns at right angles
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
