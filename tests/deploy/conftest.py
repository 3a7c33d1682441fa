"""A fit that tests can pause, and the expected result of an undisturbed run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from holding import Hold

import scrlm_dask
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.storage.model_store import load_model

ROWS, BLOCK_ROWS, CANDIDATES = 8_000, 250, 400
RHO = 0.5  # with a given rho the loss pass reads all blocks
_ARRAYS = ("labels.zarr/labels", "labels.zarr/distances", "model.zarr/centers", "model.zarr/sigmas")


@dataclass(frozen=True)
class Fit:
    """The command of a fit, and its expected result."""

    features: Path
    expected: dict[str, Any]

    def command(self, out: Path) -> list[str]:
        size = ["--candidates", str(CANDIDATES), "--block-rows", str(BLOCK_ROWS)]
        return ["fit", str(self.features), "--out", str(out), "--rho", str(RHO), *size]

    def check(self, out: Path) -> None:
        """Check that the run is complete and equals an undisturbed one bit for bit."""
        assert load_model(out).n_rows == ROWS
        for name, expected in self.expected.items():
            np.testing.assert_array_equal(zarr.open_array(out / name, mode="r")[:], expected)


@pytest.fixture(scope="session")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("features") / "features.zarr"
    with scrlm_dask.connect(nworkers=0):
        scrlm_dask.synth(path, ROWS, MixtureSpec(32, 5, 0.5, 1 / 16, 1 / 4, 0), chunk_bytes=32_000)
    return path


@pytest.fixture(scope="session")
def fit(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Fit:
    out = tmp_path_factory.mktemp("fit") / "run"
    config = scrlm_dask.FitConfig(rho=RHO, n_candidates=CANDIDATES)
    with scrlm_dask.connect(nworkers=0):
        scrlm_dask.fit(features, config, out=out, block_rows=BLOCK_ROWS)
    return Fit(features, {name: zarr.open_array(out / name, mode="r")[:] for name in _ARRAYS})


@pytest.fixture
def hold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hold]:
    """Return a hold that is taken: with its environment, all blocks of the loss pass wait."""
    hold = Hold(tmp_path_factory.mktemp("hold") / "hold")
    hold.take()
    yield hold
    hold.release()


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Return our environment with the tested commands in PATH, without settings of clusters."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DASK_", "SLURM_", "SSH_"))}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    return {**kept, "PATH": path, "DASK_SCRLM__DASHBOARD_PORT": "0"}


@pytest.fixture(scope="session")
def run(environment: dict[str, str]) -> Callable[..., str]:
    """Return a function that runs a program, checks its exit code and returns its output."""

    def to_end(
        *command: Any, code: int = 0, cwd: Path | None = None, timeout: float = 240, **more: str
    ) -> str:
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            env=environment | more,
        )
        assert done.returncode == code, f"{command}: exit code {done.returncode}\n{done.stderr}"
        return done.stdout + done.stderr

    return to_end


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    """Return a function that waits for a condition; `output` is shown after a timeout."""

    def wait(true: Callable[[], object], output: Callable[[], str], timeout: float = 240) -> None:
        end = time.monotonic() + timeout
        while not true():
            assert time.monotonic() < end, output()
            time.sleep(0.1)

    return wait
