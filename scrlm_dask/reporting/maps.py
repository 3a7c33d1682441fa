"""Centers on a plane."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.axes import principal_axes

_LEAST_FOR_UMAP = 16  # fewer points have no neighbourhoods to keep


@dataclass(frozen=True)
class PlaneMap:
    """Where each center lies, and how that was found."""

    xy: NDArray[np.float64]  # (k, 2)
    method: str


def plane_map(points: NDArray[np.float64]) -> PlaneMap | None:
    """Centers (k, p) in two dimensions: by UMAP where it is installed, else by PCA."""
    if len(points) < 2:
        return None
    if len(points) >= _LEAST_FOR_UMAP and find_spec("umap") is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a seed that costs it its threads
            found = import_module("umap").UMAP(n_components=2, random_state=0).fit_transform(points)
        return PlaneMap(np.asarray(found, np.float64), "UMAP")
    return _by_pca(points)


def _by_pca(points: NDArray[np.float64]) -> PlaneMap:
    centered = points - points.mean(axis=0)
    axes = principal_axes(centered.astype(np.float32), 2).astype(np.float64)
    # a picture must not be mirrored by rounding: the strongest feature of an axis points up
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    xy = centered @ axes
    if xy.shape[1] == 1:  # features of one dimension
        xy = np.column_stack([xy, np.zeros(len(xy))])
    total = float(np.square(centered).sum())
    share = float(np.square(xy).sum()) / total if total > 0.0 else 1.0
    return PlaneMap(xy, f"PCA, {share:.0%} of the centers' spread")
