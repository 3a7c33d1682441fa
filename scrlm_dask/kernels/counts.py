"""How often each of some whole numbers occurs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels import OUTLIER


@dataclass(frozen=True)
class Counts:
    """The numbers that occur, and how often: a mergeable part."""

    values: NDArray[np.int64]  # (n,) rising
    counts: NDArray[np.int64]  # (n,)

    @property
    def total(self) -> int:
        return int(self.counts.sum())


@dataclass(frozen=True)
class Classes:
    """What true labels say of rows."""

    n_classes: int  # outliers are none
    outlier_share: float


def count_values(values: NDArray[Any]) -> Counts:
    found, counts = np.unique(values.astype(np.int64), return_counts=True)
    return Counts(found, counts)


def merge_counts(a: Counts, b: Counts) -> Counts:
    values, places = np.unique(np.concatenate([a.values, b.values]), return_inverse=True)
    counts = np.zeros(len(values), np.int64)
    np.add.at(counts, places, np.concatenate([a.counts, b.counts]))
    return Counts(values, counts)


def classes_among(labels: Counts) -> Classes:
    outliers = labels.counts[labels.values == OUTLIER].sum()
    n_classes = int((labels.values != OUTLIER).sum())
    return Classes(n_classes, float(outliers / labels.total))
