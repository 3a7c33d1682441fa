"""The experiments by name."""

from __future__ import annotations

from collections.abc import Callable

from scrlm_dask.experiments.bandwidth import bandwidth
from scrlm_dask.experiments.bounds import bounds
from scrlm_dask.experiments.experiment import Experiment, Size
from scrlm_dask.experiments.methods import methods

ON_MIXTURES: dict[str, Callable[[Size], Experiment]] = {
    "bounds": bounds,
    "bandwidth": bandwidth,
    "methods": methods,
}
IMAGES = "images"  # the one that takes data sets
NAMES = (*ON_MIXTURES, IMAGES)
