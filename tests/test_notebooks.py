"""Notebooks run from the first cell to the last, contain their outputs and define no functions.

Each notebook runs in its own folder and kernel, and writes only to temporary folders.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_core.utils import ensure_event_loop
from nbmake.nb_run import NotebookRun

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 500_000
# Paths of the machine on which the notebook ran; URLs such as "tcp://..." do not match.
MACHINE = re.compile(r"(?<![\w/.])/(?:tmp|home|root|work|Users|var|data)/")
LOGIC = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def name_of(path: Path) -> str:
    return path.stem


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def source_of(cell: dict[str, Any]) -> str:
    """Return the Python code of a cell, without magic commands."""
    return "".join(line for line in cell["source"] if not line.startswith("%"))


@pytest.fixture
def _own_loop() -> Iterator[None]:
    """Close the event loop that the kernel's client creates."""
    yield
    ensure_event_loop().close()
    asyncio.set_event_loop(None)


@pytest.mark.cluster
@pytest.mark.usefixtures("_own_loop")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("DASK_SCRLM__WAIT_WORKERS", "120s")  # other tests may run at the same time
    before = sorted(FOLDER.rglob("*"))
    result = NotebookRun(path, default_timeout=200).execute()
    assert result.error is None, f"{result.error.summary}\n{result.error.trace}"
    assert sorted(FOLDER.rglob("*")) == before


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebook_defines_no_functions(path: Path) -> None:
    """Functions and classes belong in the package."""
    for cell in code_cells(path):
        for node in ast.walk(ast.parse(source_of(cell))):
            assert not isinstance(node, LOGIC), source_of(cell)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_notebook_contains_its_outputs(path: Path) -> None:
    """Outputs are in order, without errors or local paths, and not too large."""
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs
    assert [output for output in outputs if output["output_type"] == "error"] == []
    assert MACHINE.findall(json.dumps(outputs)) == []
    assert path.stat().st_size < MOST_BYTES
