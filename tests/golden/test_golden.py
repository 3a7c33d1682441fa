"""Comparison of small fixed runs with recorded results, entry by entry.

After a change that is meant to change results, record them again with
`python tests/golden/record.py`; the diff of expected.json shows the changes.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from golden.cases import CASES, ROUGH_RTOL, run_case
from golden.comparing import RTOL, differences, full_digest, masked, rounded

EXPECTED: dict[str, Any] = json.loads((Path(__file__).parent / "expected.json").read_text())
MOST_SHOWN = 40


def test_every_case_is_recorded() -> None:
    assert sorted(CASES) == sorted(EXPECTED)


@pytest.mark.parametrize("name", CASES)
def test_case_gives_the_recorded_result(name: str, tmp_path: Path) -> None:
    result = masked(run_case(name, tmp_path))
    found = differences(result, EXPECTED[name], ROUGH_RTOL.get(name, RTOL))
    more = [f"... and {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else []
    assert not found, "\n".join(
        [f"{name}: {len(found)} entries differ", *found[:MOST_SHOWN], *more]
    )


def fit_result() -> dict[str, Any]:
    """Return a copy of a recorded result, for tests that change it."""
    return copy.deepcopy(EXPECTED["fit_with_rho"])


def test_same_result_has_no_difference() -> None:
    assert differences(fit_result(), fit_result()) == []


def test_changed_integer_is_reported() -> None:
    changed = fit_result()
    changed["record"]["counts"][2] += 1
    (line,) = differences(changed, fit_result())
    assert line.startswith("/record/counts/2: ")


def test_changed_float_is_reported() -> None:
    changed = fit_result()
    changed["model"]["losses"][1] *= 1 + 1e-3
    (line,) = differences(changed, fit_result())
    assert line.startswith("/model/losses/1: ")
    assert full_digest(changed) != full_digest(fit_result())


def test_rounding_is_not_reported() -> None:
    changed = fit_result()
    changed["model"]["losses"][1] *= 1 + 1e-7
    assert differences(changed, fit_result()) == []
    assert full_digest(changed) != full_digest(fit_result())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("record", "seconds"), 1.5),  # its value may change, but the field must exist
        (("record", "phases"), None),
        (("record", "versions", "numpy"), "0"),
        (("record", "pruning", "assign", "pairs"), 1),
        (("labels", "labels", "sha256"), None),
    ],
)
def test_lost_and_new_fields_are_reported(path: tuple[str, ...], value: Any) -> None:
    changed = fit_result()
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    assert differences(changed, fit_result()) == [f"/{'/'.join(path)}: missing"]
    (line,) = differences(fit_result(), changed)
    assert line.startswith(f"/{'/'.join(path)}: new")


@pytest.mark.parametrize("changed", [True, 1.0, "1", None, [1]])
def test_other_type_is_reported(changed: Any) -> None:
    assert differences({"clusters": changed}, {"clusters": 1})


def test_changed_words_are_reported() -> None:
    text = "5 clusters, moved by 1.4e-16, distance 9.4885"
    for other in (
        "5 clusters, moved by 0, distance 9.4884",
        "5 clusters, moved by 2e-16, distance 9.5",
    ):
        assert differences({"stopped": other}, {"stopped": text}) == []
    for other in (text.replace("5 c", "6 c"), text.replace("9.4", "8.4"), text.replace("by", "to")):
        assert differences({"stopped": other}, {"stopped": text})


def test_messages_are_compared_by_their_facts() -> None:
    text = "the output <tmp>/run has 5 rows (n_rows), 0.25 of 20; use --overwrite, or 'merge'"
    reworded = "--overwrite replaces <tmp>/run: 'merge' got 20 rows, n_rows=5 and 0.2501"
    assert differences({"said": reworded}, {"said": text}) == []
    for fact in ("<tmp>/run", "5", "n_rows", "0.2501", "20", "--overwrite"):
        assert differences({"said": reworded.replace(fact, "x")}, {"said": text}), fact


def test_values_of_the_machine_are_not_compared() -> None:
    one = {"seconds": 1.0, "versions": {"numpy": "1"}, "digest": "a", "rho": 0.5}
    other = {"seconds": 2.0, "versions": {"numpy": "2"}, "digest": "b", "rho": 0.5}
    assert differences(masked(one), masked(other)) == []
    assert masked(rounded(one)) == {
        "seconds": "*",
        "versions": {"numpy": "*"},
        "digest": "*",
        "rho": 0.5,
    }
