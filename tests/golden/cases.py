"""Small fixed runs whose results are recorded.

A case is a function that takes an empty folder and returns a plain dict. Cases use only the public
interface: the names at the root of `scrlm_dask`, and the command line.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr
from golden.mixture_rows import BLOCK_ROWS, FEATURES, RHO, ROWS, SIZES, features_store, mixture
from golden.source_files import INGESTED, WRITERS, ingested_rows
from golden.summaries import (
    Result,
    column_of,
    digest_of,
    features_of,
    labels_of,
    labels_store_of,
    model_of,
    plain,
    record_of,
    run_of,
)

import scrlm_dask
from scrlm_dask import (
    SCRLM,
    EmbedConfig,
    FitConfig,
    IngestConfig,
    KMeans,
    KMeansConfig,
    LloydConfig,
    MixtureSpec,
    ScrlmWarning,
    SourceOptions,
)
from scrlm_dask.pipeline.cut import cut_run
from scrlm_dask.pipeline.evaluate import evaluate
from scrlm_dask.pipeline.export import export
from scrlm_dask.pipeline.inspect import verify_store
from scrlm_dask.pipeline.predict import predict
from scrlm_dask.pipeline.stores import open_features, write_features
from scrlm_dask.pipeline.verify import verify_run
from scrlm_dask.storage.model_store import load_model

THREADS = 2  # the planned memory of a run depends on the number of threads

Case = Callable[[Path], Result]
CASES: dict[str, Case] = {}
# Floats of these cases depend on a bandwidth near the smallest distances between rows, which have
# fewer exact digits in float32.
ROUGH_RTOL = {"fit_merged": 5e-4, "rho_scanned": 1e-4}


def run_case(name: str, folder: Path) -> Result:
    """Return the result of a case after a round trip through JSON, with `<tmp>` for the folder."""
    folder = folder.resolve()
    settings = {"scheduler": "threads", "num_workers": THREADS, "scrlm.checkpoint-seconds": 0}
    with warnings.catch_warnings(), dask.config.set(settings):
        warnings.simplefilter("ignore", ScrlmWarning)
        found = CASES[name](folder)
    text = json.dumps(plain(found)).replace(str(folder), "<tmp>")
    return dict(json.loads(text))


def case(function: Case) -> Case:
    """Register a function as a case under its name."""
    CASES[function.__name__] = function
    return function


def quiet(event: Any) -> None:
    """Ignore all events."""


class StopAfter:
    """Interrupt a run, as Ctrl-C does, after the given number of blocks."""

    def __init__(self, blocks: int) -> None:
        self._left = blocks

    def __call__(self, event: Any) -> None:
        """Count the block, and interrupt the run at the last one."""
        if type(event).__name__ == "BlockDone":
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt


def command(*args: Any, cluster: bool = True) -> Result:
    """Run `scrlm ARGS --json` in threads of this process; return exit code and parsed output."""
    texts = [str(arg) for arg in args] + ["--json"]
    if cluster:
        texts += ["--nworkers", "0", "--nthreads", str(THREADS)]
    result = _invoke(texts)
    content = json.loads(result.stdout) if result.stdout else None
    return {"code": result.exit_code, "json": content}


def _invoke(texts: list[str]) -> Any:
    from click.testing import CliRunner
    from scrlm_cli.main import main

    result = CliRunner(env={"DASK_SCHEDULER_ADDRESS": None}).invoke(main, texts)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def run_by_command(folder: Path, verb: str, *args: Any) -> Result:
    """Run `scrlm fit` or `scrlm kmeans` on the mixture; return its output and the run."""
    store, run = features_store(folder), folder / "run"
    done = command(verb, store, *args, "--block-rows", BLOCK_ROWS, "--out", run)
    record = json.loads((run / "run.json").read_text())
    printed = {
        key: "as in the record" if key in record and value == record[key] else value
        for key, value in done["json"].items()
    }
    return {"code": done["code"], "printed": printed, **run_of(run)}


def fit_to_run(folder: Path, config: FitConfig, **options: Any) -> Result:
    """Fit the mixture in blocks, and return the run directory."""
    store, run = features_store(folder), folder / "run"
    options = {"block_rows": BLOCK_ROWS, "collect_labels": True, "listener": quiet, **options}
    found = scrlm_dask.fit(store, config, out=run, **options)
    return {**run_of(run), "collected": labels_of(found.labels)}


def kmeans_to_run(folder: Path, config: KMeansConfig, **options: Any) -> Result:
    """Run k-means on the mixture in blocks, and return the run directory."""
    store, run = features_store(folder), folder / "run"
    options = {"block_rows": BLOCK_ROWS, "collect_labels": True, "listener": quiet, **options}
    found = scrlm_dask.kmeans(store, config, out=run, **options)
    return {**run_of(run), "collected": labels_of(found.labels)}


# SCRLM


@case
def fit_with_rho(folder: Path) -> Result:
    """Fit with a given bandwidth by the method of the paper."""
    return fit_to_run(folder, FitConfig(rho=RHO))


@case
def fit_command(folder: Path) -> Result:
    """Fit by the command line, with a bandwidth and at most 4 clusters."""
    return run_by_command(folder, "fit", "--rho", RHO, "--clusters", 4, "--seed", 3)


@case
def fit_with_rho_auto(folder: Path) -> Result:
    """Fit with a bandwidth that is chosen on a sample."""
    return fit_to_run(folder, FitConfig())


@case
def fit_greedy_with_rho_auto(folder: Path) -> Result:
    """Fit by the method of the paper with a bandwidth that is chosen on a sample."""
    return fit_to_run(folder, FitConfig(extraction="greedy", n_clusters=5, seed=1))


@case
def fit_merged(folder: Path) -> Result:
    """Fit by merging centers to more clusters than exist, and refine them.

    With fewer clusters several values of rho are equally good, and rounding would decide.
    """
    lloyd = LloydConfig(max_iter=4)
    return fit_to_run(folder, FitConfig(n_clusters=7, extraction="merge", refine=lloyd))


@case
def fit_merged_with_rho(folder: Path) -> Result:
    """Fit by merging without k-means, which keeps the tree; then merge clusters along the tree."""
    config = FitConfig(rho=0.12, n_clusters=5, extraction="merge", refine=0)
    found = fit_to_run(folder, config)
    return {**found, "cut": cut_run(folder / "run", 3)}


@case
def fit_residual(folder: Path) -> Result:
    """Fit with losses of the rows that are not covered by a center yet."""
    return fit_to_run(folder, FitConfig(rho=RHO, extraction="residual"))


@case
def fit_with_robust_kmeans(folder: Path) -> Result:
    """Fit by the command line and refine within the radius, first on a sample of blocks."""
    options = ("--rho", RHO, "--kmeans-iter", 4, "--robust", "--kmeans-sample", 0.4)
    return run_by_command(folder, "fit", *options)


@case
def fit_with_kmeans_on_all_rows(folder: Path) -> Result:
    """Fit by the command line and refine with all rows, as in the paper."""
    options = ("--rho", RHO, "--kmeans-iter", 3, "--no-robust", "--persist", "no")
    return run_by_command(folder, "fit", *options)


@case
def fit_polished(folder: Path) -> Result:
    """Fit and move each center to the mean of its rows."""
    return fit_to_run(folder, FitConfig(rho=RHO, polish=True, min_neighbors=5))


@case
def fit_l2(folder: Path) -> Result:
    """Fit by cosine distance."""
    return fit_to_run(folder, FitConfig(rho=0.06, preprocess="l2", min_neighbors=5))


@case
def fit_without_preprocessing(folder: Path) -> Result:
    """Fit rows without preprocessing, with another value of F."""
    return fit_to_run(folder, FitConfig(rho=1.0, F=3.0, preprocess="none"))


@case
def fit_centered_and_scaled(folder: Path) -> Result:
    """Fit with each of the two remaining preprocessing maps."""
    rows, _ = mixture()
    found: Result = {}
    for kind, rho in (("center", 1.0), ("scale", RHO)):
        config = FitConfig(rho=rho, preprocess=kind)  # type: ignore[arg-type]
        done = scrlm_dask.fit(
            rows, config, block_rows=BLOCK_ROWS, collect_labels=True, listener=quiet
        )
        found[kind] = {"labels": labels_of(done.labels), "model": model_of(done.model)}
    return found


@case
def fit_on_samples(folder: Path) -> Result:
    """Fit with few candidates, whose losses are computed on a subset of the rows."""
    return fit_to_run(folder, FitConfig(rho=RHO, n_candidates=80, loss_rows=250, seed=5))


@case
def fit_pruned(folder: Path) -> Result:
    """Fit with a fixed number of axes for pruning, and without margins."""
    return fit_to_run(folder, FitConfig(rho=RHO, prune=3, margins=False))


@case
def fit_resumed(folder: Path) -> Result:
    """Interrupt a fit and resume it: the result equals that of an uninterrupted fit."""
    lloyd = LloydConfig(max_iter=3, tol=0.0, inertia_tol=0.0, persist="no")
    config = FitConfig(rho=RHO, n_clusters=5, polish=True, refine=lloyd)
    return _resumed(folder, partial(scrlm_dask.fit, config=config), "fit", blocks=20)


@case
def kmeans_resumed(folder: Path) -> Result:
    """Interrupt k-means and resume it: the result equals that of an uninterrupted run."""
    lloyd = LloydConfig(max_iter=4, tol=0.0, inertia_tol=0.0, persist="no")
    config = KMeansConfig(n_clusters=6, init="k-means++", lloyd=lloyd)
    return _resumed(folder, partial(scrlm_dask.kmeans, config=config), "kmeans", blocks=21)


def _resumed(folder: Path, run: Callable[..., Any], verb: str, blocks: int) -> Result:
    """Interrupt and resume a run, and compare it with an uninterrupted one."""
    store, whole, stopped = features_store(folder), folder / "whole", folder / "stopped"
    with dask.config.set(num_workers=1):  # blocks are computed one after the other
        run(store, out=whole, block_rows=BLOCK_ROWS, listener=quiet)
        try:
            run(store, out=stopped, block_rows=BLOCK_ROWS, listener=StopAfter(blocks))
        except KeyboardInterrupt:
            status = json.loads((stopped / "run.json").read_text())["status"]
            kept = (stopped / "checkpoint").is_dir()
        done = _invoke(
            [verb, "--resume", str(stopped), "--json", "--nworkers", "0", "--nthreads", "1"]
        )
    taken = json.loads((stopped / "run.json").read_text())["taken_over"]
    assert taken, "the second attempt reused no checkpoints of the first one"
    same = all(_bytes_below(whole / name) == _bytes_below(stopped / name)
               for name in ("labels.zarr", "model.zarr"))  # fmt: skip
    assert same, "the result of the interrupted run differs"
    return {
        "status": status,
        "kept": kept,
        "same": same,
        "code": done.exit_code,
        **run_of(stopped),
    }


def _bytes_below(path: Path) -> dict[str, bytes]:
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@case
def fit_without_clusters(folder: Path) -> Result:
    """Fit with a bandwidth that is too small; return result and warnings."""
    rows, _ = mixture()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        done = scrlm_dask.fit(rows, FitConfig(rho=1e-3), block_rows=BLOCK_ROWS)
    recorded = [
        {
            "category": warning.category.__name__,
            "file": Path(warning.filename).name,
            "text": str(warning.message),
        }
        for warning in caught
    ]
    return {"model": model_of(done.model), "record": done.record, "warnings": recorded}


# k-means


@case
def kmeans_from_scrlm(folder: Path) -> Result:
    """Run k-means with initial centers from SCRLM on a sample."""
    return kmeans_to_run(folder, KMeansConfig(n_clusters=5, init="scrlm"))


@case
def kmeans_plus_plus(folder: Path) -> Result:
    """Run k-means with k-means++ on a sample of standardized rows."""
    config = KMeansConfig(n_clusters=6, init="k-means++", preprocess="standardize", seed=2)
    return kmeans_to_run(folder, config)


@case
def kmeans_parallel(folder: Path) -> Result:
    """Run k-means with k-means||."""
    return kmeans_to_run(folder, KMeansConfig(n_clusters=5, init="k-means||"))


@case
def kmeans_random(folder: Path) -> Result:
    """Run k-means with random rows as centers, by the command line."""
    options = ("--clusters", 5, "--init", "random", "--max-iter", 8, "--no-margins")
    return run_by_command(folder, "kmeans", *options)


@case
def kmeans_given_array(folder: Path) -> Result:
    """Run k-means with given centers."""
    rows, labels = mixture()
    centers = np.stack([rows[labels == k][0] for k in range(len(SIZES))])
    lloyd = LloydConfig(max_iter=10, tol=0.0, inertia_tol=0.0)
    return kmeans_to_run(
        folder, KMeansConfig(n_clusters=5, init="given", lloyd=lloyd), centers=centers
    )


@case
def kmeans_given_run(folder: Path) -> Result:
    """Run k-means with the centers of another run, by the command line."""
    first = folder / "first"
    scrlm_dask.fit(
        mixture()[0], FitConfig(rho=RHO), out=first, block_rows=BLOCK_ROWS, listener=quiet
    )
    return run_by_command(folder, "kmeans", "--init", first, "--preprocess", "standardize")


@case
def kmeans_weighted(folder: Path) -> Result:
    """Run k-means with sample weights from a file."""
    weights = folder / "weights.npy"
    np.save(weights, 1.0 + np.arange(ROWS) % 3)
    config = KMeansConfig(n_clusters=5, init="k-means++")
    return kmeans_to_run(folder, config, sample_weight=weights)


@case
def kmeans_spherical(folder: Path) -> Result:
    """Run k-means on rows of unit length, first on a sample of blocks."""
    lloyd = LloydConfig(max_iter=6, sample=0.3)
    config = KMeansConfig(n_clusters=5, init="k-means||", preprocess="l2", lloyd=lloyd, prune=2)
    return kmeans_to_run(folder, config)


# Commands after a run


@case
def predicted(folder: Path) -> Result:
    """Label other rows, by Python and by the command line."""
    store, run = features_store(folder), folder / "run"
    scrlm_dask.fit(store, FitConfig(rho=RHO), out=run, block_rows=BLOCK_ROWS, listener=quiet)
    rows, _ = mixture()
    other = (rows[::-1] + np.float32(0.01))[:250]
    found = predict(run, other, collect_labels=True, block_rows=60, listener=quiet)
    lazy = predict(load_model(run), da.from_array(other, chunks=(77, -1)), collect_labels=True)
    out = folder / "predicted.zarr"
    done = command("predict", run, store, "--out", out, "--block-rows", 150)
    return {
        "array": {**asdict(found), "labels": labels_of(found.labels)},
        "dask": {**asdict(lazy), "labels": labels_of(lazy.labels)},
        "command": done,
        "stored": labels_store_of(out),
    }


@case
def cut(folder: Path) -> Result:
    """Merge the clusters of a run to fewer clusters."""
    store, run, out = features_store(folder), folder / "run", folder / "cut.zarr"
    scrlm_dask.fit(store, FitConfig(rho=RHO), out=run, block_rows=BLOCK_ROWS, listener=quiet)
    return {
        "found": cut_run(run, 2),
        "command": command("cut", run, "--clusters", 3, "--out", out, cluster=False),
        "stored": labels_store_of(out),
    }


@case
def evaluated(folder: Path) -> Result:
    """Score the labels of a run with the labels of the store, and with other true labels."""
    store, run = folder / "drawn.zarr", folder / "run"
    spec = MixtureSpec(24, 4, outliers=0.2, seed=1)
    scrlm_dask.synth(store, ROWS, spec, chunk_bytes=BLOCK_ROWS * 24 * 4, listener=quiet)
    config = FitConfig(rho=0.4)
    scrlm_dask.fit(store, config, out=run, block_rows=BLOCK_ROWS, listener=quiet)
    drawn = zarr.open_group(store, mode="r")
    other = np.arange(ROWS) % 4
    return {
        "drawn": {
            "labels": labels_of(drawn["labels"][:]),
            "first": drawn["features"][0],
            "features": column_of(drawn["features"][:].ravel()),
        },
        "found": asdict(evaluate(run, listener=quiet)),
        "other": asdict(evaluate(run, other, listener=quiet)),
        "command": command("evaluate", run),
    }


@case
def verified(folder: Path) -> Result:
    """Recompute a part of a run, before and after a label is changed."""
    store, run = features_store(folder), folder / "run"
    scrlm_dask.fit(store, FitConfig(rho=RHO), out=run, block_rows=BLOCK_ROWS, listener=quiet)
    sound = verify_run(run, blocks=4, losses=3, seed=1, listener=quiet)
    labels = zarr.open_array(run / "labels.zarr" / "labels", mode="r+")
    labels[217] = int(labels[217]) + 1
    damaged = command("verify", run, "--blocks", 6, "--losses", 5)
    return {
        "sound": {**asdict(sound), "ok": sound.ok},
        "damaged": damaged,
        "store": verify_store(store, listener=quiet),
    }


@case
def rho_scanned(folder: Path) -> Result:
    """Estimate the bandwidth from a sample."""
    store = features_store(folder)
    found = scrlm_dask.scan_rho(store, block_rows=50, seed=2, listener=quiet)
    few = scrlm_dask.scan_rho(store, n_clusters=3, block_rows=50, listener=quiet)
    done = command("rho", store, "--block-rows", 50, "--seed", 2)
    return {
        "record": record_of(found.record),
        "rho": found.rho,
        "radius": found.radius_at(found.rho),
        "clusters": found.n_clusters,
        "sigma_max": found.sigma_max,
        "assumption_1": found.assumption_1,
        "choice": asdict(found.choice),
        # for few clusters several values of rho are equally good, and rounding decides
        "few": {name: few.record[name] for name in ("basis", "extraction", "clusters")},
        "code": done["code"],
        "same": done["json"] == found.record,
    }


@case
def exported(folder: Path) -> Result:
    """Export the labels and centers of a run."""
    import pyarrow.csv
    import pyarrow.parquet

    rows, _ = mixture()
    np.save(folder / "rows.npy", rows)
    np.save(folder / "ids.npy", np.array([f"item {i}" for i in range(ROWS)]))
    store, run = folder / "features.zarr", folder / "run"
    config = IngestConfig(ids=str(folder / "ids.npy"), chunk_bytes=BLOCK_ROWS * FEATURES * 4)
    scrlm_dask.ingest([folder / "rows.npy"], store, config, listener=quiet)
    scrlm_dask.fit(store, FitConfig(rho=RHO), out=run, listener=quiet)
    done = export(run, folder / "parquet", listener=quiet)
    other = command("export", run, "--out", folder / "csv", "--format", "csv", cluster=False)
    tables = {
        "parquet": pyarrow.parquet.read_table(folder / "parquet" / "labels.parquet"),
        "csv": pyarrow.csv.read_csv(folder / "csv" / "labels.csv"),
    }
    return {
        "done": asdict(done),
        "command": other,
        "tables": {name: _table_of(table) for name, table in tables.items()},
        "centers": np.load(folder / "parquet" / "centers.npy"),
        "fbin": {
            "shape": np.fromfile(folder / "csv" / "centers.fbin", "<u4", 2),
            "values": np.fromfile(folder / "csv" / "centers.fbin", "<f4", offset=8),
        },
        "names": sorted(entry.name for entry in (folder / "parquet").iterdir()),
    }


def _table_of(table: Any) -> Result:
    """Return the columns of an Arrow table."""
    found: Result = {"types": {field.name: str(field.type) for field in table.schema}}
    for name in table.column_names:
        values = np.array(table.column(name).to_pylist())
        if name == "source_file":  # the folder of a case changes
            values = np.array([Path(path).name for path in values])
        is_float = values.dtype.kind == "f"
        found[name] = column_of(values) if is_float else {"sha256": digest_of(values)}
    return found


@case
def inspected(folder: Path) -> Result:
    """Describe a store, compute statistics of its rows and verify its digests."""
    store = features_store(folder)
    return command("inspect", store, "--stats", "--verify", "--rho", RHO)


@case
def planned(folder: Path) -> Result:
    """Plan a fit; times are not recorded."""
    rows, _ = mixture()
    lloyd = LloydConfig(max_iter=3)
    plan = scrlm_dask.plan_fit(rows, FitConfig(rho=RHO, n_clusters=5, refine=lloyd))
    options = ("--rows", 100_000, "--features", 640, "--clusters", 50)
    theory = command("theory", *options, cluster=False)
    return {"plan": {**asdict(plan), "notes": "*"}, "theory": theory}


# Estimators


def _estimated(estimator: Any, folder: Path, inputs: dict[str, Any]) -> Result:
    """Fit an estimator to each input; return its attributes."""
    found: Result = {"parameters": sorted(estimator.get_params())}
    for name, X in inputs.items():
        estimator.fit(X)
        labels = estimator.labels_
        found[name] = {
            "attributes": sorted(key for key in vars(estimator) if key.endswith("_")),
            "labels": labels_of(labels.compute() if isinstance(labels, da.Array) else labels),
            "lazy": isinstance(labels, da.Array),
            "centers": estimator.cluster_centers_,
            "inertia": estimator.inertia_,
            "iterations": estimator.n_iter_,
            "predicted": labels_of(np.asarray(estimator.predict(X))),
            "record": estimator.record_ if name == "numpy" else sorted(estimator.record_),
        }
    return found


def _inputs(folder: Path) -> dict[str, Any]:
    """Return the mixture as each kind of input."""
    rows, _ = mixture()
    store = features_store(folder)
    return {
        "numpy": rows,
        "dask": da.from_array(rows, chunks=(130, -1)),
        "zarr": zarr.open_array(store / "features", mode="r"),
        "path": store,
    }


@case
def scrlm_estimator(folder: Path) -> Result:
    """Fit the estimator SCRLM to each kind of input."""
    return _estimated(SCRLM(rho=RHO, block_rows=BLOCK_ROWS), folder, _inputs(folder))


@case
def kmeans_estimator(folder: Path) -> Result:
    """Fit the estimator KMeans to each kind of input."""
    estimator = KMeans(5, init="k-means++", max_iter=5, block_rows=BLOCK_ROWS, random_state=4)
    return _estimated(estimator, folder, _inputs(folder))


# Files of other formats


def _ingest(folder: Path, *, writer: Callable[[Path], tuple[Any, ...]]) -> Result:
    """Ingest files of one format by the command line."""
    args = writer(folder)
    sources = [arg for arg in args if isinstance(arg, Path)]
    options = args[len(sources) :]
    out = folder / "out.zarr"
    done = command("ingest", *sources, out, *options, "--chunk-size", f"{17 * FEATURES * 4}B")
    return {**done, "stored": features_of(out)}


for _name, _writer in WRITERS.items():
    CASES[f"ingest_{_name}"] = partial(_ingest, writer=_writer)


@case
def ingest_with_options(folder: Path) -> Result:
    """Ingest as float16: shuffled without non-finite rows, and limited to the first rows."""
    rows = ingested_rows()
    rows[[7, 31]] = np.nan
    np.save(folder / "x.npy", rows)
    np.save(folder / "labels.npy", np.arange(INGESTED) % 4)
    labels, chunk = str(folder / "labels.npy"), 16 * FEATURES * 2
    common: Result = {"labels": labels, "dtype": "float16", "chunk_bytes": chunk}
    configs = {
        "shuffled": IngestConfig(shuffle=True, seed=3, nan="drop", **common),
        "limited": IngestConfig(limit=20, nan="keep", **common),
    }
    found: Result = {}
    for name, config in configs.items():
        out = folder / f"{name}.zarr"
        options = SourceOptions(format="npy")
        done = scrlm_dask.ingest([folder / "x.npy"], out, config, options=options, listener=quiet)
        found[name] = {"done": asdict(done), "stored": features_of(out)}
    lazy = open_features(folder / "limited.zarr", block_rows=8)
    found["opened"] = {"chunks": lazy.chunks, "dtype": str(lazy.dtype)}
    return found


@case
def embedded(folder: Path) -> Result:
    """Encode texts by hashing."""
    lines = [f"the {('red', 'green', 'blue')[i % 3]} item number {i}" for i in range(40)]
    (folder / "texts.txt").write_text("\n".join(lines) + "\n")
    out = folder / "out.zarr"
    done = scrlm_dask.embed(
        str(folder / "texts.txt"), out, EmbedConfig("hashing:32"), listener=quiet
    )
    rows = zarr.open_group(out, mode="r")["features"][:]
    return {"done": asdict(done), "first": rows[0], "rows": column_of(rows.ravel())}


# Public interface


@case
def public_names(folder: Path) -> Result:
    """List the public names with their parameters and methods."""
    return {name: _signature_of(getattr(scrlm_dask, name)) for name in sorted(scrlm_dask.__all__)}


def _signature_of(value: Any) -> Result:
    if isinstance(value, ModuleType):
        return {"module": value.__name__}
    if isinstance(value, type) and issubclass(value, Exception | Warning):
        bases = value.__mro__[1:]
        return {"bases": [base.__name__ for base in bases if base is not object]}
    parameters = inspect.signature(value).parameters.values()
    return {
        "module": value.__module__.partition(".")[0],
        "parameters": [f"{p.kind.name[0]} {p.name}{_default_of(p)}" for p in parameters],
        "methods": _methods_of(value) if isinstance(value, type) else [],
    }


def _methods_of(kind: type) -> list[str]:
    """Return methods and properties of the package; those of scikit-learn depend on its version."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("scrlm_dask")]
    names = {name for base in ours for name, value in vars(base).items() if _is_own(value)}
    return sorted(name for name in names if not name.startswith(("_", "set_", "get_")))


def _is_own(value: Any) -> bool:
    return inspect.isfunction(value) or isinstance(value, property | classmethod)


def _default_of(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if default is inspect.Parameter.empty:
        return ""
    if callable(default):
        return f" = {getattr(default, '__name__', 'a function')}"
    return f" = {default!r}" if type(default).__repr__ is not object.__repr__ else " = ..."


COMMANDS = (
    *("compare", "cut", "demo", "embed", "evaluate", "experiment", "export", "fit", "ingest"),
    *("inspect", "kmeans", "plan", "predict", "report", "rho", "synth", "theory", "verify"),
)


@case
def command_options(folder: Path) -> Result:
    """List the commands in `COMMANDS` with their arguments and options."""
    import click
    from scrlm_cli.main import main

    context = click.Context(main)
    found: Result = {"": _parameters_of(main)}
    for name in COMMANDS:
        found[name] = _parameters_of(main.get_command(context, name))
    return found


def _parameters_of(found: Any) -> list[str]:
    words = []
    for parameter in found.params:
        names = "/".join([*parameter.opts, *parameter.secondary_opts])
        word = f"{names} {parameter.type.name}"
        words.append(f"{word} {parameter.default!r}" if _has_default(parameter) else word)
    return words


def _has_default(parameter: Any) -> bool:
    default = parameter.default
    return isinstance(default, str | int | float) and not isinstance(default, bool)


@case
def refusals(folder: Path) -> Result:
    """Run commands with invalid input; return exit codes and messages."""
    store, rows = features_store(folder), mixture()[0]
    bad = rows.copy()
    bad[123, 4] = np.nan
    write_features(rows[:, :5], folder / "narrow.zarr", listener=quiet)
    run = folder / "run"
    scrlm_dask.fit(store, FitConfig(rho=RHO), out=run, listener=quiet)
    commands: dict[str, tuple[Any, ...]] = {
        "missing": ("fit", folder / "nothing.zarr", "--rho", 1, "--out", folder / "a"),
        "in the way": ("fit", store, "--rho", 1, "--out", run),
        "too many": ("kmeans", store, "--clusters", 601, "--out", folder / "b"),
        "too narrow": ("predict", run, folder / "narrow.zarr", "--out", folder / "c"),
        "no number": ("fit", store, "--extraction", "merge", "--rho", 1, "--out", folder / "d"),
        "usage": ("fit", store, "--rho", "small", "--out", folder / "e"),
    }
    found: Result = {}
    for name, args in commands.items():
        done = _invoke([*map(str, args), "--nworkers", "0"])
        last = done.stderr.splitlines()[-1]
        found[name] = {"code": done.exit_code, "said": last}
    try:
        scrlm_dask.fit(bad, FitConfig(rho=RHO), block_rows=BLOCK_ROWS, listener=quiet)
    except ValueError as error:
        found["not finite"] = {"class": type(error).__name__, "said": str(error)}
    return found


@case
def events_told(folder: Path) -> Result:
    """Return the events of a fit, in order."""
    rows, _ = mixture()
    events: list[Any] = []
    config = FitConfig(rho=RHO, refine=LloydConfig(max_iter=2, persist="no"))
    scrlm_dask.fit(rows, config, block_rows=BLOCK_ROWS, listener=events.append)
    others = [event for event in events if type(event).__name__ != "BlockDone"]
    return {
        "blocks": Counter(event.name for event in events if type(event).__name__ == "BlockDone"),
        "order": [type(event).__name__ for event in others],
        "events": [_event_of(event) for event in others],
    }


def _event_of(event: Any) -> Result:
    """Return the fields of an event without the text of notes, which may depend on the machine."""
    content = asdict(event)
    return {**content, "text": "*"} if "text" in content else content
