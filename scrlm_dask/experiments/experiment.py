"""What every experiment is: cells to be measured, and what is made of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from scrlm_dask.experiments.cells import Cell

Size = Literal["smoke", "small", "paper"]
SIZES: tuple[str, ...] = get_args(Size)

Result: TypeAlias = dict[str, Any]  # of a cell, as JSON holds it
NOT_RUN = "-"  # in tables, where there is no result


@dataclass(frozen=True)
class Table:
    """Texts for a terminal."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Findings:
    """What an experiment found: a line a measurement, the numbers that count, tables, pictures."""

    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    tables: tuple[Table, ...]
    figures: Callable[[], dict[str, bytes]]  # PNG files by name; they need Matplotlib
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """Cells are independent of each other; `settings` say what they are to those who go on."""

    name: str
    settings: dict[str, Any]
    cells: Sequence[Cell]
    measure: Callable[[Any], Result]
    finish: Callable[[Mapping[Any, Result]], Findings]
