"""How well a fit recovered the mixture that rows were drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.metrics import Contingency, Scores


@dataclass(frozen=True)
class Recovery:
    """Largest relative errors over the clusters that were matched with a true one."""

    weights: float
    sigmas: float


def recovery(
    table: Contingency,
    result: Scores,
    weights: NDArray[np.float64],
    sigmas: NDArray[np.float64],
    true_sigmas: NDArray[np.float64],
) -> Recovery:
    """Compare found weights and sigmas (k,) with the truth, as the scores matched them.

    A cluster's true weight is its share of the rows that were drawn: the sample's own deviation
    from the mixture's weights is no error of the fit.
    """
    if not result.matching:
        return Recovery(float("nan"), float("nan"))
    labels = np.array(list(result.matching), np.int64)
    classes = np.array(list(result.matching.values()), np.int64)
    shares = np.array([table.counts[table.truth_ids == c].sum() for c in classes]) / result.n_rows
    return Recovery(
        weights=_largest(weights[labels], shares),
        sigmas=_largest(sigmas[labels], true_sigmas[classes]),
    )


def _largest(found: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    return float(np.max(np.abs(found / truth - 1.0)))
