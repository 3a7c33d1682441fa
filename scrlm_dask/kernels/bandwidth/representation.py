"""Choose the preprocessing of a sample without a clear scale.

Each preprocessing map is judged by the modularity of its neighbor graph, on a part of the sample.
Modularity alone would prefer maps in which few features dominate: rows along a line always have
neighbors with the same label. Therefore only maps that also exceed their null clearly are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scrlm_dask.choices import Preprocess
from scrlm_dask.kernels.bandwidth.modularity import WEAK_GAP, NullComparison
from scrlm_dask.kernels.distances.points import prepare_points
from scrlm_dask.kernels.distances.preprocessing import AffineMap, FloatArray

_NEAR_GAP = 0.75  # share of the largest gap above which maps are compared by their modularity
_TIE = 0.02  # difference of modularity that depends on the sample
_JUDGED_ROWS = 2048
LEAST_DIRECTIONS = 16  # with fewer features, the direction of a row is not informative
_UNIT_TOLERANCE, _UNIT_SHARE = 0.01, 0.99


@dataclass(frozen=True)
class RepresentationTrial:
    """A preprocessing map, judged on a part of the sample.

    Attributes
    ----------
    preprocess : str
        Kind of the map.
    clusters : int
        Number of clusters with the highest modularity, or the requested number.
    modularity : float
        Modularity at this number.
    gap : float
        Modularity minus the modularity of the null, and minus the sampling error.
    """

    preprocess: Preprocess
    clusters: int
    modularity: float
    gap: float


def has_unit_rows(rows: FloatArray) -> bool:
    """Return whether nearly all rows (rows, p) that are not zero have unit length.

    Rows of zeros are ignored, because encoders write them for items that they cannot encode.
    """
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))[rows.any(axis=1)]
    if not len(norms):
        return False
    return bool(np.mean(np.abs(norms - 1.0) <= _UNIT_TOLERANCE) >= _UNIT_SHARE)


def judge_maps(
    rows: FloatArray, maps: Sequence[AffineMap], n_clusters: int | None
) -> list[RepresentationTrial]:
    """Judge each map on the first rows of a sample (rows, p), in input units."""
    return [_judge(rows[:_JUDGED_ROWS], affine, n_clusters) for affine in maps]


def _judge(rows: FloatArray, affine: AffineMap, n_clusters: int | None) -> RepresentationTrial:
    comparison = NullComparison(prepare_points(rows, affine))
    part = comparison.part
    if n_clusters is None:
        cut = part.search().best
    else:
        cut = part.cut(min(n_clusters, part.most_clusters))
    gap = comparison.gap(cut.clusters)
    return RepresentationTrial(affine.kind, cut.clusters, cut.modularity(), gap)


def best_representation(trials: Sequence[RepresentationTrial]) -> int:
    """Return the position of the best trial; the first one if no map shows structure.

    If the difference is small, "l2" is preferred, so that the choice does not depend on the sample.
    """
    gaps = [trial.gap for trial in trials]
    if max(gaps) < WEAK_GAP:
        return 0
    near = [i for i, gap in enumerate(gaps) if gap >= _NEAR_GAP * max(gaps)]
    highest = max(trials[i].modularity for i in near)
    best = [i for i in near if trials[i].modularity >= highest - _TIE]
    directions = [i for i in best if trials[i].preprocess == "l2"]
    return max(directions or best, key=lambda i: trials[i].modularity)
