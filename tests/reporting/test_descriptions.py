"""Descriptions of choices: all numbers, and different words for different choices."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from by_hand import CONFIG, ROWS
from messages import expecting
from reporting.level_records import LEVEL_SCAN, LEVELS, NO_LEVELS

import scrlm_dask
from scrlm_dask.kernels.bandwidth.representation import RepresentationTrial
from scrlm_dask.kernels.bandwidth.search import NullRadius
from scrlm_dask.reporting import descriptions


def numbers_in(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", text)


def test_number_of_clusters_with_interval_levels_and_structure() -> None:
    text = descriptions.describe_clusters(LEVELS)
    assert re.match(expecting("19 clusters", "11 to 54", "coarse 8", "fine 76", "clear"), text)
    assert numbers_in(descriptions.describe_clusters(LEVELS, 18)) == ["18", "11", "54", "8", "76"]
    alone = replace(NO_LEVELS, structure="weak")
    assert numbers_in(descriptions.describe_clusters(alone)) == ["19"]
    assert descriptions.describe_others(alone) == ""


def test_without_structure_the_number_is_not_the_result() -> None:
    found = descriptions.describe_clusters(LEVELS)
    arbitrary = descriptions.describe_clusters(replace(LEVELS, structure="none"))
    assert found.startswith("19")
    assert not arbitrary.startswith("19")
    assert numbers_in(arbitrary) == ["19"]  # other numbers are as arbitrary
    assert "none" in arbitrary


@pytest.mark.parametrize(
    ("structure", "gap", "numbers"),
    [
        ("clear", 0.43, ["0.43", "0.2"]),
        ("weak", 0.15, ["0.15", "0.12", "0.2"]),
        ("none", 0.04, ["0.04", "0.12"]),
        ("none", -0.04, ["0.04", "0.12"]),
    ],
)
def test_structure_has_its_gap_and_limits(structure: Any, gap: float, numbers: list[str]) -> None:
    text = descriptions.describe_structure(replace(LEVELS, structure=structure, gap=gap))
    assert text.startswith(structure)
    assert numbers_in(text) == numbers


def test_sign_of_a_gap() -> None:
    gaps = (0.04, 0.001, -0.001, -0.04)
    texts = [descriptions.describe_structure(replace(LEVELS, gap=gap)) for gap in gaps]
    signs = ["above" in text for text in texts]
    assert signs == [True, True, True, False]
    assert texts[1] == texts[2]  # both are zero with two digits
    trial = descriptions.describe_representation(RepresentationTrial("l2", 9, 0.78, -0.04))
    assert numbers_in(trial) == ["0.78", "0.04"]
    assert "below" in trial


def test_sentences_on_the_choice() -> None:
    choice, others = descriptions.choice_sentences(LEVELS)
    assert re.match(expecting("90%", "15", "clear", "0.43"), choice)
    assert numbers_in(others) == ["11", "54", "8", "76"]
    (alone,) = descriptions.choice_sentences(replace(NO_LEVELS, structure="weak", agreement=0.7))
    assert re.match(expecting("weak", "0.04"), alone)
    arbitrary, unstable = descriptions.choice_sentences(replace(LEVELS, **NONE))
    assert re.match(expecting("arbitrary", "none", "19", "0.04", "--clusters"), arbitrary)
    assert numbers_in(unstable) == ["0.25"]


NONE: dict[str, Any] = {"structure": "none", "gap": 0.04, "agreement": 0.25}


def test_low_agreement_has_a_consequence() -> None:
    assert descriptions.describe_agreement(replace(LEVELS, agreement=0.7)) == "ARI 0.70"
    low = descriptions.describe_agreement(replace(LEVELS, agreement=0.69))
    assert re.match(expecting("ARI 0.69", "sample", "seed"), low)


def test_reason_for_the_radius() -> None:
    def describe(resolved: float | None, **asked: Any) -> str:
        return descriptions.describe_radius(29.84, {"radius": resolved}, asked)

    texts = [
        describe(None),
        describe(29.84, radius=29.84),
        describe(29.84, outlier_share=0.025),
        describe(29.84, outlier_share="auto"),
    ]
    assert len(set(texts)) == 4
    assert [numbers_in(text) for text in texts] == [
        ["29.84"],
        ["29.84"],
        ["29.84", "2.50"],
        ["29.84"],
    ]
    assert "rho" in texts[0]
    assert describe(29.84, robust=True) == texts[3]


def test_requested_and_chosen_preprocessing() -> None:
    config = {"preprocess": "center"}
    assert descriptions.describe_preprocess(config, config) == "center"
    assert descriptions.describe_preprocess(config, {}) == "center"
    chosen = descriptions.describe_preprocess(config, {"preprocess": "auto"})
    assert chosen.startswith("center ")


@pytest.mark.parametrize("record", [{}, {"asked": None}, {"asked": {}}, {"asked": {"config": 1}}])
def test_missing_request(record: dict[str, Any]) -> None:
    assert descriptions.requested_config(record) == {}


def test_request_of_a_run() -> None:
    fitted = scrlm_dask.fit(ROWS, CONFIG)
    assert descriptions.requested_config(fitted.record)["rho"] == CONFIG.rho
    assert descriptions.sigma_units(fitted.model) == "input units"
    unit_length = replace(fitted.model.affine, kind="l2")
    assert "length" in descriptions.sigma_units(replace(fitted.model, affine=unit_length))


def test_share_outside_the_radius() -> None:
    assert LEVEL_SCAN.null is not None
    assert numbers_in(descriptions.describe_outside(LEVEL_SCAN.null)) == ["9.1", "29.8"]
    assert numbers_in(descriptions.describe_outside(NullRadius(0.5, 0.0))) == ["0.0", "0.5"]
