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
def test_the_environment_of_the_client_is_as_before() -> None:
    before = dict(os.environ)
    with connect(ClusterOptions(nworkers=1, nthreads=1, memory_limit="1GB")):
        pass
    assert {k: v for k, v in os.environ.items() if "THREADS" in k or "MALLOC" in k} == {
        k: v for k, v in before.items() if "THREADS" in k or "MALLOC" in k
    }


@pytest.mark.slow
@pytest.mark.cluster
def test_workers_compile_kernels_also_when_the_main_module_has_imported_numba(
    tmp_path: Path,
) -> None:
    # spawned workers import the main module of a script, and Numba with it, before Dask sets their
    # environment; and on a new machine no kernel is compiled yet
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "no-kernels-yet")}
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


def test_variables_say_the_same_as_the_configuration() -> None:
    variables = worker_environment(2)
    assert variables["DASK_SCRLM__READ_AHEAD"] == "2"
    assert variables["DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE"] == "False"
    assert variables["OMP_NUM_THREADS"] == variables["MALLOC_ARENA_MAX"] == "1"
    # as Dask reads them in a worker
    understood = dask.config.collect(paths=[], env=variables)
    for name, value in worker_config(2).items():
        assert dask.config.get(name, config=understood) == value


def test_workers_inherit_their_environment_for_the_length_of_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    setting = "distributed.nanny.pre-spawn-environ"
    before = dask.config.get(setting, None)
    with environment_before_spawn():
        assert dask.config.get(setting)["OMP_NUM_THREADS"] == "1"
        os.environ.update(BEFORE_START)  # as Dask does it
    assert dask.config.get(setting, None) == before
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ
    assert spawn_settings(1)[setting] == BEFORE_START


@pytest.mark.parametrize("before", [None, "error"])
def test_the_tracker_starts_quiet_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(
        "multiprocessing.resource_tracker.ensure_running",
        lambda: heard.append(os.environ["PYTHONWARNINGS"]),
    )
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONWARNINGS", before)
    start_quiet_tracker()
    assert heard == [",".join(filter(None, (before, "ignore:resource_tracker")))]
    assert os.environ.get("PYTHONWARNINGS") == before
