"""Fuzz options of `scrlm fit`, features stores, files of all input formats, and runs.

    python -m benchmarks.fuzz --cases 20000

Hypothesis draws all cases and reduces failing cases to minimal ones. One case in 40 is a fit with
unusual options, one in 40 is a fit of a changed features store, and the others are damaged files
(`benchmarks.fuzz_files`). The command must end with a documented exit code and without a traceback.
If the exit code is 0, every label of a fit must equal the label that a naive implementation
computes from the model, and the rows of a file must be correct. The exit code of the benchmark is 1
if a case fails.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
import zarr
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from scrlm_cli.main import main as scrlm

from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.synth import synth
from scrlm_dask.storage.model_store import load_model

from .common import scratch
from .fuzz_files import Report, fuzz_files
from .mutations import JSON_VALUES

ROWS = 60
CODES = (0, 1, 2, 3)
FITS = 40  # one case in this number is a fit with other options, and one a changed store
STALLED = 4  # also correct for a --stall-timeout that is shorter than a block takes

_NUMBERS = st.one_of(
    st.integers(-2, 70).map(str),
    st.sampled_from(
        [
            "0.5",
            "1e-300",
            "1e300",
            "nan",
            "inf",
            "-inf",
            "-0",
            "x",
            "",
            "1e9",
            "0x10",
            " ",
            "1e999h",
        ]
    ),
    st.floats(0.01, 2.0).map(str),
)
_WORDS = st.sampled_from(
    ["none", "l2", "standardize", "auto", "yes", "5s", "-1m", "{}", "[", "é", "a=" + "[" * 99999]
)
_VALUED = (
    *("--rho", "--clusters", "--candidates", "--loss-rows", "--min-neighbors", "--F"),
    *("--preprocess", "--kmeans-iter", "--tol", "--inertia-tol", "--max-time", "--kmeans-sample"),
    *("--persist", "--seed", "--block-rows", "--prune", "--storage-option", "--wait-workers"),
    "--stall-timeout",
)
_FLAGS = ("--polish", "--no-robust", "--no-margins", "--overwrite", "--json", "-v")
OPTIONS = st.lists(
    st.tuples(st.sampled_from(_VALUED), _NUMBERS | _WORDS)
    | st.sampled_from(_FLAGS).map(lambda flag: (flag,)),
    max_size=4,
).map(lambda options: [word for option in options for word in option])

_KEYS = (
    *("shape", "data_type", "chunk_grid", "codecs", "fill_value", "attributes", "zarr_format"),
    *("node_type", "chunk_key_encoding", "dimension_names", "storage_transformers"),
)
CHANGES = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(_KEYS), JSON_VALUES),
    st.tuples(st.just("drop"), st.sampled_from(_KEYS), st.none()),
    st.tuples(st.just("flip"), st.integers(0, 10**6), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.integers(0, 10**6), st.none()),
    st.tuples(st.just("text"), st.binary(max_size=40), st.none()),
)


def make_store(place: Path) -> Path:
    store = place / "features.zarr"
    synth(store, ROWS, MixtureSpec(3, 2), chunk_bytes=20 * 12)
    return store


def changed(store: Path, place: Path, change: Any) -> Path:
    """Return a copy of the store with one change."""
    copy = place / "changed.zarr"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store, copy)
    kind, target, value = change
    metadata = copy / "features" / "zarr.json"
    chunks = sorted(path for path in (copy / "features" / "c").rglob("*") if path.is_file())
    if kind == "text":
        metadata.write_bytes(target)
    elif kind in ("set", "drop"):
        content = json.loads(metadata.read_text())
        content.pop(target, None)
        metadata.write_text(json.dumps(content | ({target: value} if kind == "set" else {})))
    else:
        chunk = chunks[target % len(chunks)]
        content = bytearray(chunk.read_bytes())
        at = target % len(content)
        if kind == "flip":
            content[at] ^= value
        chunk.write_bytes(content if kind == "flip" else content[:at])
    return copy


def judge(store: Path, out: Path, options: list[str]) -> str:
    """Run a fit with these options; return a description of the failure, or an empty string."""
    shutil.rmtree(out, ignore_errors=True)
    words = ["fit", str(store), "--out", str(out), "--nworkers", "0", *options]
    result = CliRunner().invoke(scrlm, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"{words}: {result.exception!r}"
    codes = (*CODES, STALLED) if "--stall-timeout" in options else CODES
    # A stalled run can end inside a listing of files, whose iterator then warns with a traceback.
    stalled = result.exit_code == STALLED and "unclosed scandir" in result.output
    quiet = "-v" not in options and not stalled
    if result.exit_code not in codes or ("Traceback" in result.output and quiet):
        return f"{words}: exit code {result.exit_code}: {result.output[-300:]}"
    if result.exit_code == 0 and "-h" not in options and not labels_agree(store, out):
        return f"{words}: labels differ from the labels that the model assigns"
    return ""


def labels_agree(store: Path, out: Path) -> bool:
    """Return whether each row has the label that Algorithm 1 assigns; rounding may decide ties."""
    array = zarr.open_array(store / "features", mode="r")
    if array.nchunks_initialized < array.nchunks:
        return False  # missing chunks would be read as zeros
    rows = np.asarray(array[:], np.float64)
    labels = zarr.open_array(out / "labels.zarr" / "labels", mode="r")[:]
    model = load_model(out)
    if model.n_clusters == 0:
        return bool((labels == -1).all())
    if model.affine.unit_length:
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows / np.where(norms > 0, norms, 1.0)
        sizes = np.linalg.norm(model.centers, axis=1, keepdims=True)
        centers = model.centers / np.where(sizes > 0, sizes, 1.0)
    else:
        centers = (model.centers - model.affine.shift) * model.affine.scale
        rows = (rows - model.affine.shift) * model.affine.scale
    distances = np.sqrt(((rows[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2))
    nearest = distances.min(axis=1)
    close = 1e-4 * (1e-30 + np.abs(distances).max())
    inside = labels >= 0
    right = distances[np.arange(len(rows)), np.maximum(labels, 0)] <= nearest + close
    within = nearest <= model.radius + close
    beyond = nearest >= model.radius - close
    return len(labels) == len(rows) and bool(np.where(inside, right & within, beyond).all())


def fuzz_fits(place: Path, cases: int, seed: str = "0") -> list[str]:
    """Return a description of each failure, reduced to a minimal case by Hypothesis."""
    store, wrong = make_store(place), []
    check = settings(
        max_examples=max(1, cases // 2),
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )

    @hypothesis_seed(seed)
    @check
    @given(OPTIONS)
    def options_at_random(options: list[str]) -> None:
        failure = judge(store, place / "run", options)
        assert not failure, failure

    @hypothesis_seed(seed)
    @check
    @given(CHANGES)
    def stores_at_random(change: Any) -> None:
        copy = changed(store, place, change)
        failure = judge(copy, place / "run", ["--candidates", "1"])
        assert not failure, (change, failure)

    for test in (options_at_random, stores_at_random):
        try:
            test()
        except AssertionError as error:
            wrong.append(str(error))
    return wrong


def play(place: Path, files: int, fits: int, seed: str, only: str) -> Report:
    """Run damaged files, and then fits; the files are first, because they require no threads."""
    place.mkdir(exist_ok=True)
    report = fuzz_files(place, files, seed, only)
    if fits:
        report.failures += fuzz_fits(place, fits, seed)
    return report


def play_jobs(place: Path, files: int, fits: int, seed: int, only: str, jobs: int) -> Report:
    """Divide the cases among processes."""
    report, context = Report(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        tasks = []
        for job in range(jobs):
            shares = (len(range(job, files, jobs)), len(range(job, fits, jobs)))
            tasks.append(pool.submit(play, place / f"job-{job}", *shares, f"{seed}-{job}", only))
        for task in tasks:
            report.add(task.result())
    return report


@click.command()
@click.option("--cases", default=20_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="Processes that run cases.")
@click.option("--only", default="", help="Only damaged files whose kind contains this text.")
@click.option("--scratch", "folder", help="Folder for the data; it is kept.")
def main(cases: int, seed: int, jobs: int, only: str, folder: str | None) -> None:
    """Fuzz files, options and stores, and print the verdicts and the failures."""
    fits = 0 if only else 2 * (cases // FITS)
    begin = time.monotonic()
    with scratch(folder) as place:
        files = play_jobs(place, cases - fits, fits, seed, only, jobs)
    report = {
        "cases": cases,
        "fits": fits,
        "seconds": round(time.monotonic() - begin),
        "peak_megabytes": files.peak_bytes // 2**20,
        "slowest_case_seconds": round(files.slowest, 1),
        "files": {name: dict(counts) for name, counts in sorted(files.verdicts.items())},
        "wrong": files.failures,
    }
    print(json.dumps(report, indent=2))
    sys.exit(1 if files.failures else 0)


if __name__ == "__main__":
    main()
