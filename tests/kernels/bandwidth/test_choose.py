"""The choice of rho from trial bandwidths written by hand."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from scrlm_dask.kernels.bandwidth.choose import choose, clear_scale
from scrlm_dask.kernels.bandwidth.ladder import BandwidthTrial


def contains(text: str, *numbers: object) -> bool:
    """Return whether the text contains all of the numbers."""
    return {str(number) for number in numbers} <= set(re.findall(r"\d+(?:\.\d+)?", text))


def trial(rho, clusters, shell=0.0, coverage=0.8, held_out=None) -> BandwidthTrial:
    return BandwidthTrial(rho, clusters, coverage, shell, (0.0, 1.0, 2.0), held_out)


NOISE = [trial(0.1, 90, 3.0), trial(0.12, 70, 2.0)]
CLEAR = [trial(0.2, 5), trial(0.25, 5), trial(0.3, 5, 0.02)]
MERGED = [trial(0.4, 3, 0.5), trial(0.5, 2, 0.4)]


def test_stable_stretch_is_chosen() -> None:
    found = choose([*NOISE, *CLEAR, *MERGED], None)
    assert (found.basis, found.clusters, found.clear) == ("stretch", 5, True)
    assert (found.low, found.high) == (0.2, 0.3)
    assert found.rho == pytest.approx(math.sqrt(0.06))
    assert contains(found.why, 5, 0.2, 0.3)
    assert choose([*NOISE, *CLEAR, *MERGED], 5) == found


def test_widest_stretch_is_chosen() -> None:
    two = [trial(0.4, 2), trial(0.45, 2), trial(0.5, 2)]
    assert choose([*NOISE, *CLEAR, *two], None).clusters == 5
    assert choose([*NOISE, *CLEAR, *two, trial(0.7, 2)], None).clusters == 2


@pytest.mark.parametrize(
    ("trials", "basis"),
    [
        ([trial(0.2, 5, 0.03), trial(0.3, 5, 0.03)], "dip"),  # rows at the boundary
        ([trial(0.2, 5), trial(0.22, 5)], "dip"),  # too short
        ([trial(0.2, 5), trial(0.25, 6), trial(0.3, 5)], "dip"),  # the count is not stable
        ([trial(0.2, 5, 0.3), trial(0.3, 5, 0.3)], "persistent"),  # many rows at the boundary
        # only some duplicate rows are covered
        ([trial(0.2, 5, coverage=0.04), trial(0.3, 5, coverage=0.04)], "persistent"),
    ],
)
def test_trials_that_are_not_a_stretch(trials, basis) -> None:
    assert choose([*NOISE, *trials, *MERGED], None).basis == basis


def test_three_trials_seven_percent_apart_are_a_stretch() -> None:
    three = [trial(0.2, 5), trial(0.2143, 5), trial(0.2296, 5)]
    assert choose([*NOISE, *three, *MERGED], None).basis == "stretch"


DIP = [trial(0.2, 53, 0.26), trial(0.22, 42, 0.12), trial(0.24, 45, 0.2), trial(0.26, 54, 1.6)]


def test_dip_of_the_boundary_share_is_chosen() -> None:
    found = choose([*NOISE, *DIP], None)
    assert (found.basis, found.rho, found.clusters, found.clear) == ("dip", 0.22, 42, True)
    assert (found.low, found.high) == (0.22, 0.24)
    assert contains(found.why, 42, 0.12, 3, 1.6)
    # nearly the requested number: the count includes pairs of outliers, which are dropped
    assert choose([*NOISE, *DIP], 40) == replace(found, clusters=40)
    assert choose([*NOISE, *DIP], 100) == found
    judged = [*NOISE, *DIP[:-1], replace(DIP[-1], held_out=1.0)]
    assert choose(judged, 20).basis == "held-out"
    assert choose(judged, 40, merge=True).basis == "held-out"


@pytest.mark.parametrize(
    "ladder",
    [
        [*NOISE, trial(0.2, 42, 0.26), trial(0.3, 50, 1.6)],  # too many rows at the boundary
        [*NOISE, trial(0.2, 42, 0.2), trial(0.3, 50, 0.7)],  # not much less than above
        [trial(0.1, 90, 0.7), trial(0.2, 42, 0.2), trial(0.3, 50, 1.6)],  # not much less than below
        [*NOISE, trial(0.2, 42, 0.1)],  # the last trial, so the next one is unknown
        [*NOISE, trial(0.2, 42, 0.1, coverage=0.2), trial(0.3, 50, 1.6)],  # covers few rows
        [trial(0.1, 50, 3.0), trial(0.2, 42, 0.1), trial(0.3, 90, 1.6)],  # before the peak
        [*NOISE, trial(0.2, 1, 0.1), trial(0.3, 1, 1.6)],  # only one cluster
    ],
)
def test_trials_that_are_not_a_dip(ladder) -> None:
    assert choose(ladder, None).basis == "persistent"


def test_smallest_boundary_share_is_chosen_if_no_count_persists() -> None:
    found = choose([*NOISE, trial(0.2, 40, 0.9), trial(0.3, 30, 0.6), trial(0.4, 20, 0.7)], None)
    assert (found.basis, found.rho, found.clusters) == ("persistent", 0.3, 30)
    assert contains(found.why, 0.6)


def test_one_cluster_is_chosen_only_with_outliers_and_without_other_stretches() -> None:
    alone = [trial(0.4, 1), trial(0.5, 1), trial(0.9, 1)]
    assert choose([*NOISE, *alone], None).clusters == 1
    assert choose([*NOISE, *CLEAR, *alone], None).clusters == 5
    everything = [trial(0.5, 1, coverage=1.0), trial(0.9, 1, coverage=1.0)]
    assert choose([*NOISE, *everything], None).basis == "persistent"


def test_given_number_of_clusters_is_judged_on_held_out_rows() -> None:
    ladder = [
        trial(0.1, 90, 3.0),
        trial(0.2, 50, 2.0, held_out=9.0),
        trial(0.3, 40, 2.0, held_out=7.0),
        trial(0.4, 30, 2.0, held_out=7.01),
        trial(0.5, 20, 2.0, held_out=8.0),
    ]
    found = choose(ladder, 10)
    assert (found.basis, found.rho, found.clusters) == ("held-out", 0.3, 10)
    assert (found.low, found.high) == (0.3, 0.4)
    assert contains(found.why, 10)
    # fewer than requested if no trial has more
    few = [replace(r, merged=8) if r.held_out else r for r in ladder]
    found = choose(few, 10)
    assert found.clusters == 8
    assert contains(found.why, 8, 10)
    # if merging is requested, clear clusters do not matter
    assert choose([*CLEAR, *ladder[2:]], 10).basis == "stretch"
    found = choose([*CLEAR, *ladder[2:]], 10, merge=True)
    assert (found.basis, found.clusters) == ("held-out", 10)
    assert contains(found.why, 5, 10)
    # more clear clusters than requested are also merged
    found = choose([*CLEAR, *ladder[2:]], 4)
    assert found.basis == "held-out"
    assert contains(found.why, 5, 4)


def test_missing_scale_is_explained_with_numbers() -> None:
    found = choose([trial(0.1, 3, 2.0), *NOISE, trial(0.2, 4, 0.5), trial(0.3, 4, 0.6)], None)
    assert (found.basis, found.clusters, found.clear) == ("persistent", 4, False)
    assert contains(found.why, 3, 90, 0.6)
    for option in ("--clusters", "n_clusters"):
        assert option in found.why


def test_no_clusters_in_any_trial() -> None:
    with pytest.raises(ValueError, match="cluster"):
        choose([trial(0.1, 0), trial(0.2, 0)], None)


def test_clear_scale_does_not_depend_on_the_number_of_clusters() -> None:
    trials = [*NOISE, *(trial(rho, 12, 0.0) for rho in (0.3, 0.4, 0.5)), trial(0.9, 1, 2.0)]
    found = clear_scale(trials)
    assert found is not None
    assert (found.basis, found.clusters) == ("stretch", 12)
    assert clear_scale([trial(0.2, 40, 0.9), trial(0.3, 30, 0.6), trial(0.4, 20, 0.7)]) is None
