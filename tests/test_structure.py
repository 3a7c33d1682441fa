"""The structure of the code base: limits on files, imports and function lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.structure import count_tree

ROOT = Path(__file__).parents[1]
LIMITS = {
    "files": 200,
    "import_lines_percent": 7.2,
    "modules_with_one_importer": 40,
    "stems_in_several_folders": 8,
    "function_body_median": 5,
    "function_body_p90": 16,
    "function_body_max": 55,
}


@pytest.fixture(scope="module")
def counts() -> dict[str, Any]:
    return count_tree()


@pytest.mark.parametrize("name", LIMITS)
def test_count_stays_below_its_limit(counts: dict[str, Any], name: str) -> None:
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


# --- tests mirror the package --------------------------------------------------------------------

WITHOUT_TESTS = {  # modules that need no test file, and why
    "scrlm_dask/results.py": "a list of classes, which tests/test_public_api.py checks",
    "scrlm_dask/watching/preload.py": "a deprecated alias of scrlm_dask/preload.py",
}


def modules_without_tests(root: Path) -> set[str]:
    """Return the modules whose tests cannot be found from their path.

    Tests of `scrlm_dask/a/b.py` are in `tests/a/test_b.py` or `tests/a/test_b_*.py`, tests of
    `cli/a/b.py` in `tests/cli/a/`. A test file belongs to the module with the longest such name.
    """
    missing = set()
    for package, tests in (("scrlm_dask", root / "tests"), ("cli", root / "tests" / "cli")):
        for folder in {path.parent for path in (root / package).rglob("*.py")}:
            modules = {path.stem: path for path in folder.glob("*.py") if path.stem != "__init__"}
            mirror = tests / folder.relative_to(root / package)
            names = [path.stem.removeprefix("test_") for path in mirror.glob("test_*.py")]
            owners = [[m for m in modules if f"{name}_".startswith(f"{m}_")] for name in names]
            tested = {max(owner, key=len) for owner in owners if owner}
            missing |= {modules[m].relative_to(root).as_posix() for m in modules.keys() - tested}
    return missing


def test_every_module_has_a_test_file() -> None:
    missing = modules_without_tests(ROOT)
    assert missing == WITHOUT_TESTS.keys()


def test_modules_without_a_test_file_are_found(tmp_path: Path) -> None:
    modules = [
        *("scrlm_dask/__init__.py", "scrlm_dask/top.py", "scrlm_dask/bare.py"),
        *("scrlm_dask/a/run.py", "scrlm_dask/a/run_state.py", "scrlm_dask/a/runner.py"),
        *("cli/main.py", "cli/a/run.py"),
    ]
    # test_run_state.py is of run_state.py, so run.py has none; nor is test_a_run.py in its place
    tests = ["test_top.py", "a/test_run_state.py", "a/test_runner_twice.py", "test_a_run.py"]
    for name in [*modules, *(f"tests/{test}" for test in [*tests, "cli/test_main.py"])]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    expected = {"scrlm_dask/bare.py", "scrlm_dask/a/run.py", "cli/a/run.py"}
    assert modules_without_tests(tmp_path) == expected
    (tmp_path / "tests/a/test_run.py").touch()
    (tmp_path / "tests/cli/a").mkdir()
    (tmp_path / "tests/cli/a/test_run_fast.py").touch()
    assert modules_without_tests(tmp_path) == {"scrlm_dask/bare.py"}
