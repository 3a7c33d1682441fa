"""Experiments and their folders: one small JSON file per finished cell of the grid."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, get_args

from scrlm_dask.errors import StoreError
from scrlm_dask.storage.locations import Location
from scrlm_dask.storage.outputs import KIND
from scrlm_dask.storage.run_directory import write_json

RECORD, CELLS, EXPERIMENT_KIND = "experiment.json", "cells", "experiment"
Size = Literal["smoke", "small", "paper"]
SIZES: tuple[str, ...] = get_args(Size)
Result: TypeAlias = dict[str, Any]  # result of a cell, as JSON values
NOT_RUN = "-"  # shown in tables if there is no result


class Cell(Protocol):
    """One measurement of an experiment: a frozen dataclass of plain values.

    The result of a cell depends on these values only.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def n_rows(self) -> int:
        """Number of rows that the cell processes, for the progress display."""


def cell_key(parameters: Mapping[str, Any]) -> str:
    """Return a digest of the parameters that does not depend on their order."""
    text = json.dumps(parameters, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def seed_for(parameters: Mapping[str, Any], number: int) -> int:
    """Return the seed for repetition `number` of a cell; it depends on no other cell."""
    return int(cell_key({"parameters": dict(parameters), "run": number})[:15], 16)


@dataclass(frozen=True)
class Folder:
    """Output folder of an experiment: its record, and one file per finished cell."""

    location: Location

    def open(self, record: dict[str, Any]) -> None:
        """Create the folder, or resume its experiment; raise if the folder has other content."""
        if not self.location.is_occupied():
            if not self.location.is_remote:
                (Path(self.location.url) / CELLS).mkdir(parents=True, exist_ok=True)
            write_json(self.location / RECORD, {KIND: EXPERIMENT_KIND, **record})
            return
        before = self._record()
        for name, value in json.loads(json.dumps(record)).items():
            if before.get(name) != value:
                raise StoreError(
                    f"{self.location} contains an experiment with another {name}: "
                    f"{_describe_change(before.get(name), value)}; "
                    "use another --out, or remove the folder"
                )

    def read(self, cell: Cell) -> dict[str, Any] | None:
        """Return the stored result of a cell, or None if the cell is not finished."""
        parameters = asdict(cell)
        path = self._cell_path(parameters)
        if not path.is_file():
            return None
        try:
            stored = json.loads(path.read_text())
            result = stored["result"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None  # damaged: the cell is computed again
        same = stored.get("cell") == json.loads(json.dumps(parameters))
        return result if same and isinstance(result, dict) else None

    def write(self, cell: Cell, result: dict[str, Any]) -> None:
        """Write the result of a finished cell."""
        parameters = asdict(cell)
        write_json(self._cell_path(parameters), {"cell": parameters, "result": result})

    def _cell_path(self, parameters: dict[str, Any]) -> Location:
        return self.location / CELLS / f"{cell_key(parameters)}.json"

    def _record(self) -> dict[str, Any]:
        try:
            record = json.loads((self.location / RECORD).read_text())
        except (OSError, ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or record.get(KIND) != EXPERIMENT_KIND:
            raise StoreError(
                f"{self.location} exists and does not contain an experiment, so nothing was "
                "written; use another --out"
            )
        return record


def _describe_change(before: Any, now: Any) -> str:
    """Return both values as text; for mappings, the first three entries that differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = [n for n in sorted(before.keys() | now.keys()) if before.get(n) != now.get(n)]
        return "; ".join(f"{n} was {before.get(n)}, is now {now.get(n)}" for n in names[:3])
    return f"was {before}, is now {now}"


@dataclass(frozen=True)
class Table:
    """A table of strings, printed on the terminal."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ExperimentResult:
    """Output of an experiment: rows of the results file, summary, tables, figures and notes."""

    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    tables: tuple[Table, ...]
    figures: Callable[[], dict[str, bytes]]  # PNG files by name; requires Matplotlib
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """Independent cells, and the functions that measure a cell and summarize all results.

    A folder is resumed only if it was started with the same `settings`.
    """

    name: str
    settings: dict[str, Any]
    cells: Sequence[Cell]
    measure: Callable[[Any], Result]
    finish: Callable[[Mapping[Any, Result]], ExperimentResult]


def doubling(first: int, last: int) -> tuple[int, ...]:
    """Return `first`, 2 `first`, 4 `first` and so on, up to `last`."""
    return steps(first, last, 2.0)


def steps(first: int, last: int, ratio: float) -> tuple[int, ...]:
    """Return integers from `first` up to `last`, each about `ratio` times the previous one."""
    count = math.floor(math.log(last / first) / math.log(ratio) + 1e-9)
    return tuple(sorted({round(first * ratio**k) for k in range(count + 1)}))
