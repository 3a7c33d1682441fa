"""Importing the package is quick: the tests count the modules it loads, not seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

import scrlm_dask

HEAVY = {
    *("numpy", "scipy", "numba", "llvmlite", "sklearn", "pandas", "matplotlib"),
    *("dask", "distributed", "zarr", "numcodecs", "fsspec", "bokeh", "tornado", "threadpoolctl"),
    *("pyarrow", "h5py", "PIL", "torch"),
    *("s3fs", "botocore", "aiohttp"),
}


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after `statement`; it is silent."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 1, lines
    return set(json.loads(lines[0]))


def modules_after(statement: str) -> set[str]:
    """Return the top-level modules that `statement` loads."""
    return {name.split(".")[0] for name in loaded_by(statement)}


def test_importing_the_package_imports_nothing_heavy() -> None:
    modules = modules_after("import scrlm_dask")
    assert "scrlm_dask" in modules
    assert modules & (HEAVY | {"click", "rich"}) == set()


def test_asking_for_the_names_imports_nothing_heavy() -> None:
    assert modules_after("import scrlm_dask; dir(scrlm_dask)") & HEAVY == set()


def test_the_command_line_imports_click_and_nothing_heavy() -> None:
    modules = modules_after("import scrlm_cli.main")
    assert {"scrlm_cli", "click"} <= modules
    assert modules & (HEAVY | {"rich"}) == set()


def test_a_name_brings_what_it_needs() -> None:
    # or the tests above could not fail
    assert {"numpy", "numba"} <= modules_after("from scrlm_dask import FitConfig")


UNUSED_BY_ESTIMATORS = ("sources", "encoders", "reporting", "paper", "pipeline", "clusters")


@pytest.mark.parametrize("name", ["SCRLM", "KMeans"])
def test_an_estimator_loads_no_formats_encoders_or_reports(name: str) -> None:
    loaded = loaded_by(f"from scrlm_dask import {name}")
    folders = {module.split(".")[1] for module in loaded if module.startswith("scrlm_dask.")}
    assert "estimators" in folders
    assert folders & set(UNUSED_BY_ESTIMATORS) == set()


@pytest.mark.parametrize("name", scrlm_dask.__all__)
def test_every_public_name_resolves(name: str) -> None:
    value: Any = getattr(scrlm_dask, name)
    if isinstance(value, ModuleType):
        assert value.__name__ == f"scrlm_dask.{name}"
    else:
        assert value.__name__ == name
        assert value.__module__.startswith("scrlm_dask.")


def test_dir_lists_the_public_names() -> None:
    assert set(scrlm_dask.__all__) <= set(dir(scrlm_dask))
    assert all(hasattr(scrlm_dask, name) for name in dir(scrlm_dask))


def test_the_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert scrlm_dask.__version__ == version("scrlm-dask")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="dbscan"):
        scrlm_dask.dbscan  # noqa: B018
