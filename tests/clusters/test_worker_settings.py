"""Environment and configuration of workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dask
import pytest

from scrlm_dask.clusters.connect import connect
from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.clusters.worker_settings import (
    BEFORE_START,
    environment_before_spawn,
    spawn_settings,
    start_quiet_tracker,
    worker_config,
    worker_environment,
)


@pytest.mark.slow
@pytest.mark.cluster
def test_environment_of_the_client_is_restored() -> None:
    before = dict(os.environ)
    with connect(ClusterOptions(nworkers=1, nthreads=1, memory_limit="1GB")):
        pass
    assert {k: v for k, v in os.environ.items() if "THREADS" in k or "MALLOC" in k} == {
        k: v for k, v in before.items() if "THREADS" in k or "MALLOC" in k
    }


@pytest.mark.slow
@pytest.mark.cluster
def test_workers_compile_kernels_if_the_main_module_imports_numba(
    tmp_path: Path,
) -> None:
    # Spawned workers import the main module, and with it Numba, before Dask sets their environment.
    # The empty cache makes them compile all kernels.
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "empty-cache")}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "{1}"


_SCRIPT = """
import numpy as np
from scrlm_dask import SCRLM, connect
from scrlm_dask.clusters.options import ClusterOptions

if __name__ == "__main__":
    with connect(ClusterOptions(nworkers=1, nthreads=1, memory_limit="1GB")):
        x = np.random.default_rng(0).normal(size=(100, 4)).astype("float32")
        x[-1] = 100
        model = SCRLM(rho=1.0, preprocess="none").fit(x)
        threads = {n for w in model.record_["workers"].values() for n in w["threads"].values()}
        print(threads)
"""


def test_variables_equal_the_configuration() -> None:
    variables = worker_environment(2)
    assert variables["DASK_SCRLM__READ_AHEAD"] == "2"
    assert variables["DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE"] == "False"
    assert variables["OMP_NUM_THREADS"] == variables["MALLOC_ARENA_MAX"] == "1"
    # a worker reads them in this way
    config = dask.config.collect(paths=[], env=variables)
    for name, value in worker_config(2).items():
        assert dask.config.get(name, config=config) == value


def test_environment_of_workers_is_set_only_inside_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    setting = "distributed.nanny.pre-spawn-environ"
    before = dask.config.get(setting, None)
    with environment_before_spawn():
        assert dask.config.get(setting)["OMP_NUM_THREADS"] == "1"
        os.environ.update(BEFORE_START)  # as Dask does
    assert dask.config.get(setting, None) == before
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ
    assert spawn_settings(1)[setting] == BEFORE_START


@pytest.mark.parametrize("before", [None, "error"])
def test_only_the_resource_tracker_ignores_warnings(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(
        "multiprocessing.resource_tracker.ensure_running",
        lambda: seen.append(os.environ["PYTHONWARNINGS"]),
    )
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONWARNINGS", before)
    start_quiet_tracker()
    assert seen == [",".join(filter(None, (before, "ignore:resource_tracker")))]
    assert os.environ.get("PYTHONWARNINGS") == before
