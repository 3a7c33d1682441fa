"""Labelled rows of a features store in memory, as every method of a comparison gets them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError
from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.preprocessing import AffineMap, block_moments, fit_map
from scrlm_dask.kernels.sampling import Purpose, sample_rows
from scrlm_dask.storage.arrays import read_rows
from scrlm_dask.storage.features import has_truth, open_features_store
from scrlm_dask.storage.labels import open_labels
from scrlm_dask.storage.locations import Location

_BRIGHTEST = 255


@dataclass(frozen=True)
class Shape:
    """What a store holds, for those who plan."""

    n_rows: int
    n_features: int
    n_classes: int


@dataclass(frozen=True)
class Labelled:
    """Rows (N, p) at deviation 1 a feature, as in the paper, and their classes (N,)."""

    rows: NDArray[np.float32]
    truth: NDArray[np.int64]
    affine: AffineMap
    pixels: bool  # whole numbers from 0 to 255: no features of an encoder

    def pictures(self, labels: NDArray[np.int64]) -> NDArray[np.uint8] | None:
        """The mean of each cluster's rows as a picture (k, h, w[, 3]), largest cluster first.

        Outliers are no cluster.
        """
        frame = picture_frame(self.rows.shape[1])
        if frame is None or not self.pixels:
            return None
        inliers = labels != OUTLIER
        kinds, places, counts = np.unique(labels[inliers], return_inverse=True, return_counts=True)
        if len(kinds) == 0:
            return None
        sums = np.zeros((len(kinds), self.rows.shape[1]))
        np.add.at(sums, places, self.rows[inliers])
        means = sums / counts[:, None] / self.affine.scale + self.affine.shift
        largest = np.argsort(-counts, kind="stable")
        values = np.clip(np.rint(means[largest]), 0, _BRIGHTEST).astype(np.uint8)
        if len(frame) == 2:
            return values.reshape(-1, *frame)
        return values.reshape(-1, *frame).transpose(0, 2, 3, 1)  # colors lie apart in stores


def picture_frame(n_features: int) -> tuple[int, ...] | None:
    """(h, w) of square pictures, (3, h, w) of colored ones; None of anything else."""
    side = math.isqrt(n_features)
    if side * side == n_features:
        return side, side
    side = math.isqrt(n_features // 3)
    return (3, side, side) if 3 * side * side == n_features else None


def shape_of(location: Location) -> Shape:
    """Refuses a store without labels."""
    stored = open_features_store(location)
    if not has_truth(location):
        raise InputError(
            f"the features {location} hold no labels, by which methods are compared; write a store "
            "that has them, as scrlm ingest --labels does"
        )
    truth = open_labels(location, "the truth")
    classes = np.unique(read_rows(truth, 0, truth.shape[0], "the truth"))
    return Shape(stored.shape[0], stored.shape[1], int((classes >= 0).sum()))


def read_labelled(location: Location, n_rows: int) -> Labelled:
    """So many rows of a store, at random but always the same ones."""
    stored, labels = open_features_store(location), open_labels(location, "the truth")
    numbers = sample_rows(0, Purpose.COMPARED_ROWS, stored.shape[0], n_rows)
    parts, step = [], stored.chunks[0]
    for start in range(0, stored.shape[0], step):
        stop = min(start + step, stored.shape[0])
        here = numbers[(numbers >= start) & (numbers < stop)] - start
        if len(here):
            parts.append(read_rows(stored, start, stop, "the features")[here])
    raw = np.concatenate(parts).astype(np.float32)
    truth = read_rows(labels, 0, labels.shape[0], "the truth")[numbers].astype(np.int64)
    affine = fit_map("standardize", raw.shape[1], block_moments(raw))
    rows = ((raw - affine.shift) * affine.scale).astype(np.float32)
    pixels = bool(raw.min() >= 0 and raw.max() <= _BRIGHTEST and (raw == np.rint(raw)).all())
    return Labelled(rows, truth, affine, pixels)
