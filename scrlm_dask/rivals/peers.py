"""k-means of other packages: rows (N, p), clusters and iterations in, centers and labels out.

Each is imported when it is called: most are extras.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_ALL_ROWS = 10**9  # rows a cluster, above which packages would sample
_CHUNK_BYTES = 64 * 2**20


class Clustered(NamedTuple):
    centers: NDArray[Any]  # (k, p)
    labels: NDArray[Any]  # (N,)


def sklearn_kmeans(
    x: NDArray[Any], k: int, iterations: int, seed: int, *, init: str = "k-means++", tol: float
) -> Clustered:
    from sklearn.cluster import KMeans

    fitted = KMeans(
        k,
        init=init,
        n_init=1,
        max_iter=iterations,
        tol=tol,
        algorithm="lloyd",
        random_state=seed,
    ).fit(x)
    return Clustered(fitted.cluster_centers_, fitted.labels_)


def faiss_kmeans(x: NDArray[Any], k: int, iterations: int, seed: int) -> Clustered:
    faiss: Any = import_module("faiss")
    fitted = faiss.Kmeans(
        x.shape[1], k, niter=iterations, seed=seed, max_points_per_centroid=_ALL_ROWS
    )
    fitted.train(x)
    return Clustered(fitted.centroids, fitted.index.search(x, 1)[1][:, 0])


def faiss_superkmeans(x: NDArray[Any], k: int, iterations: int, seed: int) -> Clustered:
    faiss: Any = import_module("faiss")
    # from 1.15 on; it has no early end to switch off
    fitted = faiss.SuperKmeans(
        x.shape[1], k, niter=iterations, seed=seed, max_points_per_centroid=_ALL_ROWS
    )
    fitted.train(x)
    return Clustered(fitted.centroids, fitted.assign(x)[1])


def dask_ml_kmeans(
    x: NDArray[Any], k: int, iterations: int, seed: int, *, init: str, tol: float
) -> Clustered:
    import dask.array as da
    from dask_ml.cluster import KMeans

    rows = _CHUNK_BYTES // x[0].nbytes
    fitted = KMeans(k, init=init, max_iter=iterations, tol=tol, random_state=seed)
    fitted.fit(da.from_array(x, chunks=(rows, -1)))
    return Clustered(fitted.cluster_centers_, np.asarray(fitted.labels_))


def superkmeans(x: NDArray[Any], k: int, iterations: int, seed: int) -> Clustered:
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
