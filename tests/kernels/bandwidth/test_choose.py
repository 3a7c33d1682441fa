"""The rule that chooses rho, on ladders written by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scrlm_dask.kernels.bandwidth.choose import choose, clear_scale
from scrlm_dask.kernels.bandwidth.ladder import BandwidthTrial


def trial(rho, clusters, shell=0.0, coverage=0.8, held_out=None) -> BandwidthTrial:
    return BandwidthTrial(rho, clusters, coverage, shell, (0.0, 1.0, 2.0), held_out)


NOISE = [trial(0.1, 90, 3.0), trial(0.12, 70, 2.0)]
CLEAR = [trial(0.2, 5), trial(0.25, 5), trial(0.3, 5, 0.02)]
MERGED = [trial(0.4, 3, 0.5), trial(0.5, 2, 0.4)]


def test_the_stable_stretch_wins() -> None:
    found = choose([*NOISE, *CLEAR, *MERGED], None)
    assert (found.basis, found.clusters, found.clear) == ("stretch", 5, True)
    assert (found.low, found.high) == (0.2, 0.3)
    assert found.rho == pytest.approx(math.sqrt(0.06))
    assert "5 cluster(s) for every rho from 0.2 to 0.3" in found.why
    assert choose([*NOISE, *CLEAR, *MERGED], 5) == found


def test_the_widest_of_several() -> None:
    two = [trial(0.4, 2), trial(0.45, 2), trial(0.5, 2)]
    assert choose([*NOISE, *CLEAR, *two], None).clusters == 5
    assert choose([*NOISE, *CLEAR, *two, trial(0.7, 2)], None).clusters == 2


@pytest.mark.parametrize(
    ("spoilt", "basis"),
    [
        ([trial(0.2, 5, 0.03), trial(0.3, 5, 0.03)], "dip"),  # rows in the shell
        ([trial(0.2, 5), trial(0.22, 5)], "dip"),  # too short
        ([trial(0.2, 5), trial(0.25, 6), trial(0.3, 5)], "dip"),  # the count is not stable
        ([trial(0.2, 5, 0.3), trial(0.3, 5, 0.3)], "persistent"),  # many rows in the shell
        # some rows stored twice
        ([trial(0.2, 5, coverage=0.04), trial(0.3, 5, coverage=0.04)], "persistent"),
    ],
)
def test_what_is_no_stretch(spoilt, basis) -> None:
    assert choose([*NOISE, *spoilt, *MERGED], None).basis == basis


def test_three_rungs_seven_percent_apart_are_a_stretch() -> None:
    three = [trial(0.2, 5), trial(0.2143, 5), trial(0.2296, 5)]
    assert choose([*NOISE, *three, *MERGED], None).basis == "stretch"


DIP = [trial(0.2, 53, 0.26), trial(0.22, 42, 0.12), trial(0.24, 45, 0.2), trial(0.26, 54, 1.6)]


def test_a_dip_of_the_shell_is_a_scale() -> None:
    found = choose([*NOISE, *DIP], None)
    assert (found.basis, found.rho, found.clusters, found.clear) == ("dip", 0.22, 42, True)
    assert (found.low, found.high) == (0.22, 0.24)
    assert "0.12 rows in the shell" in found.why
    assert "up to 3 below and 1.6 above" in found.why
    # nearly as many as asked for: pairs of outliers are counted, too, and are left out then
    assert choose([*NOISE, *DIP], 40) == replace(found, clusters=40)
    assert choose([*NOISE, *DIP], 100) == found
    judged = [*NOISE, *DIP[:-1], replace(DIP[-1], held_out=1.0)]
    assert choose(judged, 20).basis == "held-out"
    assert choose(judged, 40, merge=True).basis == "held-out"


@pytest.mark.parametrize(
    "ladder",
    [
        [*NOISE, trial(0.2, 42, 0.26), trial(0.3, 50, 1.6)],  # not empty enough
        [*NOISE, trial(0.2, 42, 0.2), trial(0.3, 50, 0.7)],  # not much emptier than above
        [trial(0.1, 90, 0.7), trial(0.2, 42, 0.2), trial(0.3, 50, 1.6)],  # nor than below
        [*NOISE, trial(0.2, 42, 0.1)],  # nobody knows what comes after it
        [*NOISE, trial(0.2, 42, 0.1, coverage=0.2), trial(0.3, 50, 1.6)],  # of few rows
        [trial(0.1, 50, 3.0), trial(0.2, 42, 0.1), trial(0.3, 90, 1.6)],  # before the peak
        [*NOISE, trial(0.2, 1, 0.1), trial(0.3, 1, 1.6)],  # of one cluster
    ],
)
def test_what_is_no_dip(ladder) -> None:
    assert choose(ladder, None).basis == "persistent"


def test_where_no_count_persists_the_emptiest_shell_is_taken() -> None:
    found = choose([*NOISE, trial(0.2, 40, 0.9), trial(0.3, 30, 0.6), trial(0.4, 20, 0.7)], None)
    assert (found.basis, found.rho, found.clusters) == ("persistent", 0.3, 30)
    words = "none persists beyond its peak, where the shell is emptiest at 0.3, with up to 0.6 rows"
    assert words in found.why


def test_one_cluster_only_where_there_are_no_more_and_outliers() -> None:
    alone = [trial(0.4, 1), trial(0.5, 1), trial(0.9, 1)]
    assert choose([*NOISE, *alone], None).clusters == 1
    assert choose([*NOISE, *CLEAR, *alone], None).clusters == 5
    everything = [trial(0.5, 1, coverage=1.0), trial(0.9, 1, coverage=1.0)]
    assert choose([*NOISE, *everything], None).basis == "persistent"


def test_a_number_of_clusters_is_judged_on_rows_held_out() -> None:
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
    assert "merged to 10" in found.why
    # fewer than asked for, where no rung has more
    few = [replace(r, merged=8) if r.held_out else r for r in ladder]
    found = choose(few, 10)
    assert found.clusters == 8
    assert "merged to 8, fewer than the 10 asked for" in found.why
    # merging asked for: that there are clear clusters does not matter
    assert choose([*CLEAR, *ladder[2:]], 10).basis == "stretch"
    found = choose([*CLEAR, *ladder[2:]], 10, merge=True)
    assert (found.basis, found.clusters) == ("held-out", 10)
    assert "5 clear clusters, but merging to 10 was asked for" in found.why
    # more clear clusters than are wanted: they are merged, too
    found = choose([*CLEAR, *ladder[2:]], 4)
    assert found.basis == "held-out"
    assert "5 clear clusters" in found.why


def test_no_scale_is_said_with_numbers() -> None:
    found = choose([trial(0.1, 3, 2.0), *NOISE, trial(0.2, 4, 0.5), trial(0.3, 4, 0.6)], None)
    assert (found.basis, found.clusters, found.clear) == ("persistent", 4, False)
    for words in ("no clear scale", "from 3 to 90", "up to 0.6 rows in the shell", "scrlm rho"):
        assert words in found.why


def test_no_cluster_anywhere() -> None:
    with pytest.raises(ValueError, match="no rung"):
        choose([trial(0.1, 0), trial(0.2, 0)], None)


def test_a_clear_scale_is_there_whatever_is_asked_for() -> None:
    trials = [*NOISE, *(trial(rho, 12, 0.0) for rho in (0.3, 0.4, 0.5)), trial(0.9, 1, 2.0)]
    found = clear_scale(trials)
    assert found is not None
    assert (found.basis, found.clusters) == ("stretch", 12)
    assert clear_scale([trial(0.2, 40, 0.9), trial(0.3, 30, 0.6), trial(0.4, 20, 0.7)]) is None
