"""Numbers of clusters chosen by modularity, and a scan record with them, written by hand."""

from __future__ import annotations

from dataclasses import replace

from by_hand import SCAN

from scrlm_dask.kernels.bandwidth.modularity import CutTrial, Levels
from scrlm_dask.kernels.bandwidth.representation import RepresentationTrial
from scrlm_dask.kernels.bandwidth.search import NullRadius

TRIALS = tuple(
    CutTrial(clusters, same, expected)
    for clusters, same, expected in (
        (2, 0.99, 0.5),
        (8, 0.95, 0.125),
        (11, 0.94, 0.1),
        (19, 0.9, 0.05),
        (54, 0.8, 0.02),
        (76, 0.7, 0.01),
    )
)
LEVELS = Levels(
    clusters=19,
    low=11,
    high=54,
    coarse=8,
    fine=76,
    same=0.9,
    gap=0.43,
    structure="clear",
    agreement=0.75,
    trials=TRIALS,
)
# No interval, no levels, no structure, and clusters that depend on the sample.
NO_LEVELS = replace(
    LEVELS, low=19, high=19, coarse=None, fine=None, gap=0.04, structure="none", agreement=0.25
)
LEVEL_SCAN = replace(
    SCAN,
    preprocess="center",
    representations=[
        RepresentationTrial("standardize", 25, 0.75, 0.44),
        RepresentationTrial("center", 17, 0.78, 0.4),
    ],
    levels=LEVELS,
    null=NullRadius(29.84, 0.091),
    low=0.5,
    high=0.5,
    basis="modularity",
    extraction="merge",
    clusters=19,
    stability=[],
    assumption_1=False,
)
