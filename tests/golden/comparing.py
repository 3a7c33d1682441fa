"""Comparison of results with recorded ones: integers exactly, floats to a tolerance.

Some values change from run to run or from machine to machine. For these only the presence of the
field is compared, so that lost and new fields are still detected.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any

RTOL = 1e-5
ATOL = 1e-8
LIST_ATOL = 1e-7  # absolute tolerance in a list of floats, relative to its largest number
TEXT_RTOL = 0.05  # numbers in a text have few digits
SIGNIFICANT_DIGITS = 8
ANY = "*"  # replaces a value that is not compared

# Values that differ from run to run on one machine.
RUN_VALUES = frozenset(
    {
        "started",
        "seconds",
        "read_seconds",
        "peak_worker_bytes",
        "features_written",
        "attempt",
        "calibration_seconds",
        "start_seconds",
        "memory_limit",
        "files_digest",  # of modification times
        "weights_digest",  # includes the modification time of a file
    }
)
# Values that are the same for the same code on one machine, but may differ on another machine.
MACHINE_VALUES = frozenset({"digest", "features_digest", "bits"})
# Objects whose keys are compared and whose values are not.
MACHINE_OBJECTS = frozenset({"versions"})
# Relative and absolute tolerances for the columns of trial bandwidths. If the radius is much
# smaller than the clusters, many pairs of rows are near the radius, and rounding moves a few of
# them across.
LADDER = "rungs"
LADDER_TOLERANCES = {
    "rho": (1e-3, 0.0),
    "clusters": (0.02, 3.0),
    "coverage": (0.02, 0.01),
    "shell": (0.02, 0.1),
    "neighbors": (0.02, 3.0),
    "held_out": (0.02, 0.0),
}

# Texts for users, which may be reworded.
MESSAGES = frozenset({"why", "said"})
_NAME = re.compile(r"(?<!\S)(?:--[\w-]+|\w*_\w+|\S*/\S+)(?!\S)")
_LIST_MARKS = re.compile(r"[,;:()'=\"]|\.(?!\S)")
_NUMBER = re.compile(r"[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")


def masked(value: Any, *, on_one_machine: bool = False) -> Any:
    """Return the result with `ANY` in place of values that are not compared.

    With `on_one_machine`, values that differ only between machines are kept.
    """
    if isinstance(value, dict):
        return {key: _masked_entry(key, item, on_one_machine) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item, on_one_machine=on_one_machine) for item in value]
    return value


def _masked_entry(key: str, value: Any, on_one_machine: bool) -> Any:
    if key in RUN_VALUES or (key in MACHINE_VALUES and not on_one_machine):
        return ANY
    if key == "workers" and isinstance(value, dict):
        return {name: dict.fromkeys(report, ANY) for name, report in value.items()}
    if key in MACHINE_OBJECTS and isinstance(value, dict):
        return dict.fromkeys(value, ANY)
    if key == "pruning":
        return _masked_pruning(value)
    return masked(value, on_one_machine=on_one_machine)


def _masked_pruning(phases: dict[str, Any]) -> dict[str, Any]:
    """Return phases and keys without values: the pruned share may depend on the processor."""
    return {phase: dict.fromkeys(found, ANY) for phase, found in phases.items()}


def rounded(value: Any) -> Any:
    """Return the result with floats rounded to `SIGNIFICANT_DIGITS`."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return value


def full_digest(value: Any) -> str:
    """Return a SHA-256 of the result, including all bits of its floats."""
    content = _with_hex_floats(masked(value, on_one_machine=True))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _with_hex_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_hex_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_hex_floats(item) for item in value]
    return value.hex() if isinstance(value, float) else value


def differences(found: Any, expected: Any, rtol: float = RTOL) -> list[str]:
    """Return a line for each entry of a masked result that differs from the recorded one."""
    return list(_differences(found, expected, "", rtol))


def _differences(
    found: Any, expected: Any, path: str, rtol: float, atol: float | None = None
) -> Iterator[str]:
    """Yield the differences; with `atol`, integers are also compared with tolerances."""
    if isinstance(expected, dict) and isinstance(found, dict):
        yield from _dict_differences(found, expected, path, rtol)
    elif isinstance(expected, list) and isinstance(found, list):
        yield from _list_differences(found, expected, path, rtol, atol)
    elif type(found) is not type(expected):
        yield f"{path}: {_shown(found)} instead of {_shown(expected)}"
    elif isinstance(expected, float) or (atol is not None and isinstance(expected, int)):
        if not math.isclose(found, expected, rel_tol=rtol, abs_tol=max(ATOL, atol or 0.0)):
            yield f"{path}: {found!r} instead of {expected!r}, off by {found - expected:.3g}"
    elif isinstance(expected, str):
        same = _same_facts if path.rpartition("/")[2] in MESSAGES else _same_text
        if not same(found, expected):
            yield f"{path}: {found!r} instead of {expected!r}"
    elif found != expected:
        yield f"{path}: {_shown(found)} instead of {_shown(expected)}"


def _dict_differences(
    found: dict[str, Any], expected: dict[str, Any], path: str, rtol: float
) -> Iterator[str]:
    for key in sorted(expected.keys() - found.keys()):
        yield f"{path}/{key}: missing"
    for key in sorted(found.keys() - expected.keys()):
        yield f"{path}/{key}: new, {_shown(found[key])}"
    loose = LADDER_TOLERANCES if path.endswith(f"/{LADDER}") else {}
    for key, recorded in expected.items():
        if key in found:
            tolerances = loose.get(key, (rtol, None))
            yield from _differences(found[key], recorded, f"{path}/{key}", *tolerances)


def _list_differences(
    found: list[Any], expected: list[Any], path: str, rtol: float, atol: float | None
) -> Iterator[str]:
    """Yield the differences; the tolerance of floats depends on the largest one of the list."""
    if len(found) != len(expected):
        yield f"{path}: {len(found)} items instead of {len(expected)}"
        return
    floats = [item for item in expected if isinstance(item, float)]
    if atol is None and len(floats) == len(expected):
        largest = max((abs(item) for item in floats), default=0.0)
        size = LIST_ATOL * largest
    else:
        size = atol
    for i, (item, recorded) in enumerate(zip(found, expected, strict=True)):
        yield from _differences(item, recorded, f"{path}/{i}", rtol, size)


def _same_facts(found: str, expected: str) -> bool:
    """Compare two messages: every fact of the recorded one is in the other, in any wording.

    Facts are numbers, paths, options and names with an underscore.
    """
    found, expected = (_LIST_MARKS.sub(" ", text) for text in (found, expected))
    if not set(_NAME.findall(expected)) <= set(found.split()):
        return False
    numbers = _NUMBER.findall(found)
    return all(any(_same_number(n, o) for n in numbers) for o in _NUMBER.findall(expected))


def _same_text(found: str, expected: str) -> bool:
    """Compare words and integers exactly, and other numbers to `TEXT_RTOL`."""
    if found == expected or " " not in expected:  # a single word is a name or a digest
        return found == expected
    if _NUMBER.split(found) != _NUMBER.split(expected):
        return False
    pairs = zip(_NUMBER.findall(found), _NUMBER.findall(expected), strict=True)
    return all(_same_number(one, other) for one, other in pairs)


def _same_number(one: str, other: str) -> bool:
    if one == other:
        return True
    if not any(mark in one + other for mark in ".e"):
        return False
    values = [float(text.replace(",", "")) for text in (one, other)]
    return math.isclose(*values, rel_tol=TEXT_RTOL, abs_tol=ATOL)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
