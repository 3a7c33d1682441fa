"""Runs that resume on another type of CPU, and clusters of workers with different CPUs.

Environment variables select code for another type: OpenBLAS then uses other kernels, and NumPy and
Numba use no vector instructions newer than SSE.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from distributed import Client

import scrlm_dask

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

ROWS, FEATURES, BLOCK_ROWS, N_BLOCKS, GROUP_BLOCKS = 4_800, 24, 100, 48, 8
DASK = (str(Path(sys.executable).parent / "dask"),)
LOOPBACK = ("--host", "127.0.0.1")
# The same fits for Python and for the command line. Greedy: with a loss pass over all rows.
LLOYD = scrlm_dask.LloydConfig(max_iter=4, persist="no")
RHO_OF_36 = 0.6**0.5  # the squared radius is then 36
FITS = {
    "rho given": scrlm_dask.FitConfig(
        rho=RHO_OF_36, n_candidates=400, refine=LLOYD, preprocess="none"
    ),
    "rho chosen": scrlm_dask.FitConfig(n_candidates=400, extraction="greedy"),
}
OPTIONS = {
    "rho given": (
        *("--rho", RHO_OF_36, "--candidates", 400, "--preprocess", "none"),
        *("--kmeans-iter", 4, "--persist", "no"),
    ),
    "rho chosen": ("--candidates", 400, "--extraction", "greedy"),
}
LOSS_GROUPS, CENTERS = "checkpoint/centers-steps/loss-1-*/group.*", "checkpoint/centers"
# Largest differences between types: of losses, relative to F + |loss|; of sums and rho, relative.
LOSSES, SUMS, RHO, F = 1e-6, 1e-12, 1e-6, 2.5
KINDS = ("this", "older")


def older_type() -> dict[str, str]:
    """Return variables for a CPU without AVX."""
    simd: Any = np.show_config(mode="dicts")  # type: ignore[call-overload]
    newer = simd.get("SIMD Extensions", {}).get("found", [])
    numpy_variable = {"NPY_DISABLE_CPU_FEATURES": " ".join(newer)} if newer else {}
    return {"OPENBLAS_CORETYPE": "Nehalem", "NUMBA_CPU_NAME": "generic", **numpy_variable}


OLDER = older_type()


class StoppedError(Exception):
    """The error with which a test stops a fit."""


class StopAt:
    """A listener that stops the run as soon as a number of files exist in its directory."""

    def __init__(self, out: Path, files: str, number: int) -> None:
        self._out, self._files, self._number = out, files, number

    def __call__(self, event: object) -> None:
        if self._number and len(list(self._out.glob(self._files))) >= self._number:
            self._number = 0
            raise StoppedError


def run_fit(features: Path, out: Path, name: str, listener: Any = print, threads: int = 2) -> None:
    """Run a fit in threads of this process; resume it if it was stopped."""
    with scrlm_dask.connect(nworkers=0, nthreads=threads):
        scrlm_dask.fit(features, FITS[name], out=out, block_rows=BLOCK_ROWS, listener=listener)


def stop_fit(features: Path, out: Path, name: str, files: str, number: int) -> Path:
    with pytest.raises(StoppedError):
        run_fit(features, out, name, StopAt(out, files, number), threads=3)
    return out


@pytest.fixture(scope="module", autouse=True)
def kernels(start) -> None:
    """Skip the tests if the variables do not change the kernels of BLAS."""
    program = (sys.executable, "-m", "threadpoolctl", "-i", "numpy")
    found = [start(program=program, **environment).outcome().ok() for environment in ({}, OLDER)]
    this, older = (
        [each["architecture"] for each in json.loads(done.stdout) if each["user_api"] == "blas"]
        for done in found
    )
    if older != ["Nehalem"] or this == older:
        pytest.skip(f"needs OpenBLAS with kernels for several CPU types, found {this} and {older}")


@pytest.fixture(scope="module")
def features(tmp_path_factory) -> Path:
    """Write overlapping clusters of integers: many squared distances are equal to that of a radius.

    Whether such a row is inside would depend on the rounding of float32, and therefore on the CPU.
    """
    folder, rng = tmp_path_factory.mktemp("features"), np.random.default_rng(1)
    centers = rng.normal(size=(12, FEATURES)) * 0.8
    rows = centers[rng.integers(0, 12, ROWS)] + rng.normal(size=(ROWS, FEATURES))
    np.save(folder / "x.npy", np.round(rows).astype(np.float32))
    config = scrlm_dask.IngestConfig(chunk_bytes=BLOCK_ROWS * FEATURES * 4)
    with scrlm_dask.connect(nworkers=0):
        scrlm_dask.ingest([folder / "x.npy"], folder / "x.zarr", config)
    return folder / "x.zarr"


@pytest.fixture(scope="module")
def undisturbed(start, features, tmp_path_factory) -> dict[tuple[str, str], Path]:
    """Run the fits without an interruption on both types: in this process, and in another."""
    folder = tmp_path_factory.mktemp("undisturbed")
    runs = {(name, kind): folder / f"{name} {kind}" for name in FITS for kind in KINDS}
    common = ("--nworkers", 0, "--block-rows", BLOCK_ROWS)
    for name in FITS:
        out = ("--out", runs[name, "older"])
        older = start("fit", features, *out, *OPTIONS[name], *common, **OLDER)
        run_fit(features, runs[name, "this"], name)
        older.outcome().ok()
    return runs


def arrays_of(run: Path) -> dict[str, Any]:
    """Return the arrays of the model and of the labels store."""
    stores = [zarr.open_group(run / name, mode="r") for name in ("model.zarr", "labels.zarr")]
    return {name: array[...] for store in stores for name, array in store.arrays()}


def check_close(found: Path, expected: Path) -> None:
    """Check that labels and chosen rows are equal, and that numbers agree to rounding."""
    ours, theirs = arrays_of(found), arrays_of(expected)
    assert ours.keys() == theirs.keys()
    for name in ("labels", "center_rows", "counts", "neighbors"):
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    for name in ("centers", "means", "sigmas", "weights", "shift", "scale", "distances"):
        scale = np.abs(theirs[name]).max() or 1.0
        np.testing.assert_allclose(ours[name] / scale, theirs[name] / scale, 0, SUMS, err_msg=name)
    assert (np.abs(ours["losses"] - theirs["losses"]) <= LOSSES * (F - theirs["losses"])).all()


@pytest.mark.parametrize("name", FITS)
def test_undisturbed_runs(name, undisturbed, record_of):
    this, older = (undisturbed[name, kind] for kind in KINDS)
    # otherwise the tests of this file would show nothing
    assert (arrays_of(this)["losses"] != arrays_of(older)["losses"]).any()
    rho = [record_of(run)["config"]["rho"] for run in (this, older)]
    if name == "rho given":
        assert rho[0] == rho[1]
        check_close(this, older)
    else:
        assert rho[0] == pytest.approx(rho[1], rel=RHO)


def test_resume_on_another_type(start, features, tmp_path, undisturbed, record_of):
    out = stop_fit(features, tmp_path / "run", "rho given", LOSS_GROUPS, 2)
    kept = len(list(out.glob(LOSS_GROUPS)))
    start("fit", "--resume", out, "--nworkers", 0, **OLDER).outcome().ok()
    record = record_of(out)
    assert record["attempts"] == 2
    assert record["taken_over"] == {"survey": N_BLOCKS, "loss": GROUP_BLOCKS * kept}
    for kind in KINDS:
        check_close(out, undisturbed["rho given", kind])


def test_resume_with_another_number_of_cores(
    features, tmp_path, undisturbed, record_of, results_of
):
    out = stop_fit(features, tmp_path / "run", "rho given", LOSS_GROUPS, 2)
    run_fit(features, out, "rho given", threads=1)
    assert record_of(out)["taken_over"]["loss"] > 0
    assert results_of(out) == results_of(undisturbed["rho given", "this"])


def test_resume_on_another_type_after_rho_was_chosen(
    start, features, tmp_path, undisturbed, record_of, results_of
):
    """Rho is chosen again, and losses are used only if they are for the same rho."""
    out = stop_fit(features, tmp_path / "run", "rho chosen", LOSS_GROUPS, 2)
    start("fit", "--resume", out, "--nworkers", 0, **OLDER).outcome().ok()
    rho = {kind: record_of(undisturbed["rho chosen", kind])["config"]["rho"] for kind in KINDS}
    record, expected = record_of(out), undisturbed["rho chosen", "older"]
    assert record["config"]["rho"] == rho["older"]
    if rho["this"] == rho["older"]:
        assert "loss" in record["taken_over"]
        check_close(out, expected)
    else:
        assert "loss" not in record["taken_over"]
        assert results_of(out) == results_of(expected)


def test_resume_on_another_type_after_centers_were_found(
    start, features, tmp_path, undisturbed, record_of
):
    out = stop_fit(features, tmp_path / "run", "rho chosen", CENTERS, 1)
    start("fit", "--resume", out, "--nworkers", 0, **OLDER).outcome().ok()
    record, expected = record_of(out), undisturbed["rho chosen", "this"]
    assert record["config"]["rho"] == record_of(expected)["config"]["rho"]
    assert record["taken_over"]["centers"] == 1
    check_close(out, expected)


def test_workers_with_different_types(start, dask_scheduler, features, tmp_path, undisturbed):
    file, out = tmp_path / "scheduler.json", tmp_path / "run"
    where = (*LOOPBACK, "--port", 0, "--dashboard-address", "127.0.0.1:0")
    scheduler = start("scheduler", *where, "--scheduler-file", file, program=DASK)
    for environment in ({}, OLDER):
        place = ("--scheduler-file", file, *LOOPBACK, "--local-directory", tmp_path)
        options = ("--nthreads", 1, "--no-dashboard", "--no-nanny")
        start("worker", *place, *options, program=DASK, **environment)
    address = dask_scheduler(scheduler, file, workers=2)
    common = ("--block-rows", BLOCK_ROWS, "--scheduler-file", file)
    start("fit", features, "--out", out, *OPTIONS["rho given"], *common).outcome().ok()
    with Client(address, set_as_default=False) as client:
        found = client.run(lambda: __import__("threadpoolctl").threadpool_info()).values()
    older = [any(each.get("architecture") == "Nehalem" for each in listed) for listed in found]
    assert sorted(older) == [False, True]
    for kind in KINDS:
        check_close(out, undisturbed["rho given", kind])
