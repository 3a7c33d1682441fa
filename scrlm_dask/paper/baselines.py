"""Clustering methods under one interface: SCRLM and baselines, some from other libraries.

A library is imported when its method is called. Most libraries are extras, and a process that runs
one method should not load all of them into memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError

_ALL_ROWS = 10**9  # limit of rows per cluster, so high that libraries do not sample the rows
_CHUNK_BYTES = 64 * 2**20


class Clustered(NamedTuple):
    """Centers and labels of a k-means fit."""

    centers: NDArray[Any]  # (k, p)
    labels: NDArray[Any]  # (N,)


def _sklearn(module: str) -> Any:
    return import_module(f"sklearn.{module}")


def sklearn_kmeans(
    x: NDArray[Any], k: int, iterations: int, seed: int, *, init: str = "k-means++", tol: float
) -> Clustered:
    """Run scikit-learn's Lloyd k-means on rows (N, p)."""
    options = {"max_iter": iterations, "tol": tol, "algorithm": "lloyd", "random_state": seed}
    fitted = _sklearn("cluster").KMeans(k, init=init, n_init=1, **options).fit(x)
    return Clustered(fitted.cluster_centers_, fitted.labels_)


def faiss_kmeans(x: NDArray[Any], k: int, iterations: int, seed: int) -> Clustered:
    """Run FAISS k-means on rows (N, p), without sampling."""
    fitted = _train_faiss("Kmeans", x, k, iterations, seed)
    return Clustered(fitted.centroids, fitted.index.search(x, 1)[1][:, 0])


def faiss_superkmeans(x: NDArray[Any], k: int, iterations: int, seed: int) -> Clustered:
    """Run SuperKmeans of FAISS (1.15 or newer) on rows (N, p), without sampling."""
    fitted = _train_faiss("SuperKmeans", x, k, iterations, seed)
    return Clustered(fitted.centroids, fitted.assign(x)[1])


def _train_faiss(name: str, x: NDArray[Any], k: int, iterations: int, seed: int) -> Any:
    options = {"niter": iterations, "seed": seed, "max_points_per_centroid": _ALL_ROWS}
    fitted = getattr(import_module("faiss"), name)(x.shape[1], k, **options)
    fitted.train(x)
    return fitted


def dask_ml_kmeans(
    x: NDArray[Any], k: int, iterations: int, seed: int, *, init: str, tol: float
) -> Clustered:
    """Run dask-ml k-means on rows (N, p) in chunks of about 64 MB."""
    import dask.array as da
    from dask_ml.cluster import KMeans

    rows = _CHUNK_BYTES // x[0].nbytes
    fitted = KMeans(k, init=init, max_iter=iterations, tol=tol, random_state=seed)
    fitted.fit(da.from_array(x, chunks=(rows, -1)))
    return Clustered(fitted.cluster_centers_, np.asarray(fitted.labels_))


def superkmeans(x: NDArray[Any], k: int, iterations: int, seed: int) -> Clustered:
    """Run the superkmeans package on rows (N, p), without sampling or early termination."""
    from superkmeans import SuperKMeans

    fitted = SuperKMeans(
        n_clusters=k,
        dimensionality=x.shape[1],
        iters=iterations,
        hierarchical=False,
        early_termination=False,
        sampling_fraction=1.0,
        max_points_per_cluster=_ALL_ROWS,
        seed=seed,
    )
    centers = fitted.train(x)
    return Clustered(np.asarray(centers), np.asarray(fitted.assign(x, centers)))


Fit: TypeAlias = Callable[[NDArray[np.float32], int, int], NDArray[np.int64]]


_ITERATIONS = 300  # upper bound for methods with a stopping rule
_FIXED_ITERATIONS = 25  # FAISS's default, for methods without a stopping rule
_TOL = 1e-4
_PERPLEXITY = 30.0
_MODULES = {"faiss-cpu": "faiss", "dask-ml": "dask_ml", "superkmeans": "superkmeans"}


@dataclass(frozen=True)
class Method:
    """A clustering method.

    `fit(rows, n_clusters, seed)` takes rows (N, p) and returns labels (N,); -1 marks outliers.
    """

    name: str
    finds_outliers: bool
    fit: Fit
    package: str | None = None  # PyPI name of the optional package that the method requires


def find_missing_requirement(name: str) -> str | None:
    """Return the reason why a method cannot run in this environment, or None if it can run."""
    package = find_method(name).package
    if package is None:
        return None
    if find_spec(_MODULES[package]) is None:
        return f"needs {package}, which is not installed; pip install {package}"
    if name == "faiss-superkmeans" and not hasattr(import_module("faiss"), "SuperKmeans"):
        return f"needs {package} 1.15 or newer; pip install --upgrade {package}"
    return None


def find_method(name: str) -> Method:
    """Return the method with this name; raise `InputError` if the name is unknown."""
    if name not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {name!r}")
    return METHODS[name]


def _scrlm(x: NDArray[np.float32], k: int, seed: int, *, refine: int) -> NDArray[np.int64]:
    from scrlm_dask.estimators.scrlm import SCRLM

    fitted = SCRLM(n_clusters=k, preprocess="none", random_state=seed, refine=refine).fit(x)
    return _integers(fitted.labels_)


def _k_means_plus_plus(x: NDArray[Any], k: int, seed: int) -> NDArray[np.int64]:
    return _integers(sklearn_kmeans(x, k, _ITERATIONS, seed, tol=_TOL).labels)


def _minibatch(x: NDArray[np.float32], k: int, seed: int) -> NDArray[np.int64]:
    return _integers(
        _sklearn("cluster").MiniBatchKMeans(k, n_init=1, random_state=seed).fit_predict(x)
    )


def _complete_linkage(x: NDArray[np.float32], k: int, seed: int) -> NDArray[np.int64]:
    return _integers(
        _sklearn("cluster").AgglomerativeClustering(k, linkage="complete").fit_predict(x)
    )


def _spectral(x: NDArray[np.float32], k: int, seed: int) -> NDArray[np.int64]:
    fitted = _sklearn("cluster").SpectralClustering(
        k, affinity="nearest_neighbors", n_neighbors=min(10, len(x)), random_state=seed
    )
    return _integers(_quietly(fitted.fit_predict, x))


def _em(x: NDArray[np.float32], k: int, seed: int) -> NDArray[np.int64]:
    fitted = _sklearn("mixture").GaussianMixture(k, covariance_type="spherical", random_state=seed)
    return _integers(_quietly(fitted.fit_predict, x))


def _tsne(x: NDArray[np.float32], k: int, seed: int) -> NDArray[np.int64]:
    # t-SNE requires a perplexity below the number of rows.
    perplexity = min(_PERPLEXITY, max((len(x) - 1) / 3, 1.0))
    embedded = _sklearn("manifold").TSNE(perplexity=perplexity, random_state=seed).fit_transform(x)
    return _k_means_plus_plus(embedded, k, seed)


def _td(x: NDArray[np.float32], k: int, seed: int) -> NDArray[np.int64]:
    from scrlm_dask.paper.moment_tensor import most_likely, spherical_mixture

    return most_likely(x, spherical_mixture(x, k, np.random.default_rng(seed)))


def _hdbscan(x: NDArray[np.float32], k: int, seed: int) -> NDArray[np.int64]:
    # HDBSCAN determines the number of clusters itself.
    return _integers(_sklearn("cluster").HDBSCAN(copy=True).fit_predict(x))


def _fixed(kmeans: Callable[..., Clustered]) -> Fit:
    def fit(x: NDArray[np.float32], k: int, seed: int) -> NDArray[np.int64]:
        return _integers(kmeans(x, k, _FIXED_ITERATIONS, seed).labels)

    return fit


def _dask_ml(x: NDArray[np.float32], k: int, seed: int) -> NDArray[np.int64]:
    fitted = dask_ml_kmeans(x, k, _ITERATIONS, seed, init="k-means||", tol=_TOL)
    return _integers(fitted.labels)


def _integers(labels: Any) -> NDArray[np.int64]:
    return np.asarray(labels).astype(np.int64)


def _quietly(run: Callable[..., Any], *args: Any) -> Any:
    """Call `run` without warnings: labels are scored even if a method did not converge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(*args)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("scrlm", True, partial(_scrlm, refine=0)),
        Method("scrlm+kmeans", True, partial(_scrlm, refine=_ITERATIONS)),
        Method("k-means++", False, _k_means_plus_plus),
        Method("complete-linkage", False, _complete_linkage),
        Method("spectral", False, _spectral),
        Method("em", False, _em),
        Method("t-sne+k-means++", False, _tsne),
        Method("td", False, _td),
        Method("hdbscan", True, _hdbscan),
        Method("minibatch", False, _minibatch),
        Method("faiss", False, _fixed(faiss_kmeans), "faiss-cpu"),
        Method("faiss-superkmeans", False, _fixed(faiss_superkmeans), "faiss-cpu"),
        Method("dask-ml", False, _dask_ml, "dask-ml"),
        Method("superkmeans", False, _fixed(superkmeans), "superkmeans"),
    )
}
