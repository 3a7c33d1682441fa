"""The code base stays easy to find one's way in: counts of files, imports and function lengths."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.structure import count_tree

LIMITS = {
    "files": 200,
    "import_lines_percent": 7.2,
    "modules_with_one_importer": 40,
    "stems_in_several_folders": 8,
    "function_body_median": 5,
    "function_body_p90": 16,
    "function_body_max": 55,
}


@pytest.mark.parametrize("name", LIMITS)
def test_count_stays_below_its_limit(name: str) -> None:
    counts = count_tree()
    assert counts[name] <= LIMITS[name], "run `python -m benchmarks.structure --names`"


def test_counts_of_a_small_tree(tmp_path: Path) -> None:
    package, cli = tmp_path / "scrlm_dask", tmp_path / "cli"
    (package / "inner").mkdir(parents=True)
    cli.mkdir()
    (package / "__init__.py").write_text('"""A package."""\n')
    (package / "used.py").write_text("def double(x):\n    y = 2 * x\n    return y\n")
    (package / "inner" / "used.py").write_text("from scrlm_dask.used import double\n\ndouble(1)\n")
    (cli / "main.py").write_text("from scrlm_dask.inner import used\nimport sys\n")
    counts = count_tree(tmp_path)
    assert counts["files"] == 4
    assert counts["lines"] == 9
    assert counts["import_lines_percent"] == round(100 * 3 / 9, 2)
    assert counts["one_importer"] == ["scrlm_dask.inner.used", "scrlm_dask.used"]
    assert counts["repeated_stems"] == ["used"]
    assert counts["function_body_max"] == 2
