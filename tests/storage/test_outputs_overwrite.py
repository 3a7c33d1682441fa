"""A command that fails or is killed leaves the output that it was to replace as it was."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask
import fsspec
import numpy as np
import psutil
import pytest
import zarr
from PIL import Image
from sklearn.datasets import load_digits
from trees import tree

from scrlm_dask.config import FitConfig, KMeansConfig
from scrlm_dask.errors import ScrlmError, StoreError
from scrlm_dask.events import BlockDone, PhaseFinished
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.cut import cut_run
from scrlm_dask.pipeline.embed import EmbedConfig, embed
from scrlm_dask.pipeline.export import export
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.ingest import ingest
from scrlm_dask.pipeline.ingest_job import IngestConfig
from scrlm_dask.pipeline.kmeans import kmeans
from scrlm_dask.pipeline.predict import predict
from scrlm_dask.pipeline.stores import FeatureStore, write_features
from scrlm_dask.pipeline.synth import synth
from scrlm_dask.reporting.report import write_report
from scrlm_dask.runs.lifecycle import load_fit
from scrlm_dask.runs.resume import read_unfinished
from scrlm_dask.storage import outputs
from scrlm_dask.storage.arrays import read_rows
from scrlm_dask.storage.feature_store import open_features_store
from scrlm_dask.storage.label_store import open_labels
from scrlm_dask.storage.locations import Location, is_within, locate
from scrlm_dask.storage.outputs import RUN_KIND, check_output_free, discard, find_aside
from scrlm_dask.storage.run_directory import RunDirectory

SPEC = MixtureSpec(8, 2, 0.1)
CONFIG = FitConfig(rho=0.5, n_clusters=2, seed=1, refine=0)  # type: ignore[arg-type]
KMEANS = KMeansConfig(n_clusters=2)


def places(root: Path, memory: str) -> list[Location]:
    """Return outputs that do not exist: in a new folder, in a prepared folder, in memory."""
    (root / "prepared").mkdir(mode=0o700)
    return [locate(root / "out"), locate(root / "prepared"), locate(f"{memory}/out")]


class StoppedError(Exception):
    """Raised by a listener."""


def stop(event: object) -> None:
    if isinstance(event, PhaseFinished):
        raise StoppedError


def content(place: Location) -> dict[str, bytes | None]:
    """Return the files of an output, on disk or in memory."""
    if not place.is_remote:
        return tree(Path(place.url))
    files = fsspec.filesystem("memory")
    return {name: files.cat_file(name) for name in files.find(place.url)}


def write_nan_features(path: Location) -> None:
    synth(path, 40, SPEC)
    array = zarr.open_array((path / "features").store(), mode="r+")
    array[5] = np.nan


@pytest.fixture(scope="module")
def original_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with features, a run, and features and sources that commands reject."""
    tmp_path = tmp_path_factory.mktemp("inputs")
    synth(tmp_path / "x.zarr", 40, SPEC)
    write_nan_features(locate(tmp_path / "nan.zarr"))
    fit(tmp_path / "x.zarr", CONFIG, out=tmp_path / "a-run")
    rows = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    rows[7] = np.nan
    np.save(tmp_path / "nan.npy", rows)
    for name in ("photos", "damaged"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8), "white").save(tmp_path / name / "a.png")
    (tmp_path / "damaged/a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return tmp_path


@pytest.fixture
def inputs(original_inputs: Path, tmp_path: Path) -> Path:
    """Return a copy of the inputs that a test may change."""
    return Path(shutil.copytree(original_inputs, tmp_path / "inputs"))


def damage_labels(run: Path) -> None:
    for chunk in (run / "labels.zarr/labels/c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(b"damaged")


def fit_(root: Path, out: Location, bad: bool) -> Any:
    fit(root / ("nan.zarr" if bad else "x.zarr"), CONFIG, out=out, overwrite=True)


def kmeans_(root: Path, out: Location, bad: bool) -> Any:
    kmeans(root / ("nan.zarr" if bad else "x.zarr"), KMEANS, out=out, overwrite=True)


def predict_(root: Path, out: Location, bad: bool) -> Any:
    x = root / ("nan.zarr" if bad else "x.zarr")
    predict(root / "a-run", x, out=out, overwrite=True)


def cut_(root: Path, out: Location, bad: bool) -> Any:
    if bad:
        damage_labels(root / "a-run")
    cut_run(root / "a-run", 1, out=out, overwrite=True)


def export_(root: Path, out: Location, bad: bool) -> Any:
    if bad:
        damage_labels(root / "a-run")
    export(root / "a-run", out, overwrite=True)


def ingest_(root: Path, out: Location, bad: bool) -> Any:
    ingest(str(root / ("nan.npy" if bad else "rows.npy")), out, overwrite=True)


def embed_(root: Path, out: Location, bad: bool) -> Any:
    embed(root / ("damaged" if bad else "photos"), out, EmbedConfig("pixels:4"), overwrite=True)


def write_(root: Path, out: Location, bad: bool) -> Any:
    rows = np.full((20, 4), 1e6 if bad else 1.0)
    write_features(rows, out, dtype="float16", overwrite=True)


def synth_(root: Path, out: Location, bad: bool) -> Any:
    synth(out, 20, SPEC, overwrite=True, **({"listener": stop} if bad else {}))


COMMANDS: dict[str, Callable[[Path, Location, bool], Any]] = {
    "fit": fit_,
    "kmeans": kmeans_,
    "predict": predict_,
    "cut": cut_,
    "export": export_,
    "ingest": ingest_,
    "embed": embed_,
    "write": write_,
    "synth": synth_,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_failed_command_leaves_the_old_output(inputs: Path, memory: str, command: str) -> None:
    outs = places(inputs, memory)
    if command not in ("fit", "predict"):  # one kind of run and of store in all kinds of places
        outs = outs[:1]
    for out in outs:
        COMMANDS[command](inputs, out, bad=False)
    before = [content(out) for out in outs]
    for out, old in zip(outs, before, strict=True):
        with pytest.raises((ScrlmError, StoppedError)):
            COMMANDS[command](inputs, out, bad=True)
        assert content(out) == old
        assert find_aside(out) is None


def test_output_is_replaced(inputs: Path, memory: str) -> None:
    for out in places(inputs, memory):
        fit(inputs / "x.zarr", CONFIG, out=out)
        result = kmeans(inputs / "x.zarr", KMEANS, out=out, overwrite=True, collect_labels=True)
        assert load_fit(out).record["method"] == "k-means"
        assert result.labels is not None
        assert len(result.labels) == 40
        assert find_aside(out) is None
    prepared = inputs / "prepared"
    assert sorted(p.name for p in prepared.iterdir()) == sorted(
        p.name for p in (inputs / "out").iterdir()
    )
    assert prepared.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("command", COMMANDS)
def test_files_of_the_user_in_an_output_are_not_removed(inputs: Path, command: str) -> None:
    """Every entry that a command writes is known, so only the file of the user is reported."""
    out = locate(inputs / "out")
    COMMANDS[command](inputs, out, bad=False)
    notes = inputs / "out/notes.txt"
    notes.write_text("precious")
    with pytest.raises(StoreError, match=r"contains notes\.txt, which"):
        COMMANDS[command](inputs, out, bad=False)
    assert notes.read_text() == "precious"
    notes.unlink()
    COMMANDS[command](inputs, out, bad=False)


def test_optional_files_of_a_run_are_known(inputs: Path) -> None:
    rows = load_digits().data[:600]  # no clear scale, so there are levels
    out, config = inputs / "out", FitConfig()
    for _ in range(2):
        fit(rows, config, out=out, overwrite=True, listener=lambda event: None)
        write_report([out])
    assert {path.name for path in (out / "labels.zarr").iterdir()} >= {"labels", "fine", "margins"}


def test_optional_files_of_features_are_known(inputs: Path) -> None:
    names = {"labels": str(inputs / "labels.npy"), "ids": str(inputs / "labels.npy")}
    np.save(names["ids"], np.arange(30, dtype=np.int32))
    config = IngestConfig(shuffle=True, nan="drop", **names)  # type: ignore[arg-type]
    for _ in range(2):
        ingest(str(inputs / "nan.npy"), inputs / "out", config, overwrite=True)
    written = {path.name for path in (inputs / "out").iterdir()}
    assert written >= {"labels", "ids", "source_row", "source_file", "dropped"}


def test_run_inside_an_output_is_not_removed(inputs: Path, memory: str) -> None:
    for store in (locate(inputs / "store.zarr"), locate(f"{memory}/store.zarr")):
        synth(store, 20, SPEC)
        fit(store, CONFIG, out=store / "run")
        with pytest.raises(StoreError, match=r"contains run, which"):
            synth(store, 20, SPEC, overwrite=True)
        assert load_fit(store / "run").record["status"] == "complete"


def test_file_that_appears_while_a_run_is_replaced(inputs: Path) -> None:
    out = inputs / "out"
    fit(inputs / "x.zarr", CONFIG, out=out)

    def add_notes(event: object) -> None:
        (out / "notes.txt").write_text("precious")

    with pytest.raises(StoreError, match="did not write as run"):
        fit(inputs / "x.zarr", CONFIG, out=out, overwrite=True, listener=add_notes)
    assert (out / "notes.txt").read_text() == "precious"
    (out / "notes.txt").rename(inputs / "notes.txt")
    fit(inputs / "x.zarr", CONFIG, out=out, overwrite=True)


def test_interrupted_import_is_not_owned_by_its_process(inputs: Path) -> None:
    """Another process can resume it, also while this process (a notebook) stays alive."""
    out = locate(inputs / "out")
    with pytest.raises(StoppedError):
        ingest(str(inputs / "rows.npy"), out, listener=stop)
    attributes = json.loads((inputs / "out/zarr.json").read_text())["attributes"]
    assert attributes["complete"] is False
    assert not outputs.is_alive(attributes["owner"] | {"token": "of another process"})
    assert "pid" not in attributes["owner"]


@pytest.mark.parametrize(
    "name",
    [
        *("report/notes.txt", "report/mine.png", "labels.zarr/mine.npy", "model.zarr/mine.npy"),
        *("checkpoints.txt", "mine.partial", "mine.scrlm-old", "report.html.partial"),
        *("report", "report.scrlm-notes"),
    ],
)
def test_files_of_the_user_in_a_run_are_not_removed(inputs: Path, name: str) -> None:
    """Names that are similar to those of this package, and files in its folders."""
    run = RunDirectory(inputs / "a-run")
    if name != "report":  # a file in the place of the folder
        write_report([run.path])
    mine = inputs / "a-run" / name
    mine.write_text("precious")
    with pytest.raises(StoreError, match=re.escape(name)):
        kmeans(inputs / "x.zarr", KMEANS, out=run.path, overwrite=True)
    assert run.check_complete()["method"] == "scrlm"
    discard(run.path, RUN_KIND)
    left = {name for name, text in tree(inputs / "a-run").items() if text is not None}
    assert left == {name}


def test_report_of_an_earlier_version_is_replaced(inputs: Path) -> None:
    """Its record does not name the figures."""
    run = inputs / "a-run"
    write_report([run])
    record = json.loads((run / "report/report.json").read_text())
    del record["files"]
    (run / "report/report.json").write_text(json.dumps(record))
    write_report([run])
    assert json.loads((run / "report/report.json").read_text())["files"]


def test_failed_export_keeps_a_table_of_the_user(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table in the other format is not written by this export."""
    out = inputs / "out"

    def add_table(*_: object) -> None:
        (out / "labels.csv").write_text("precious")
        raise StoreError("damaged")

    monkeypatch.setattr("scrlm_dask.pipeline.export._write_table", add_table)
    with pytest.raises(StoreError, match="damaged"):
        export(inputs / "a-run", out, table="parquet")
    assert (out / "labels.csv").read_text() == "precious"


def test_links_to_parts_of_a_run_are_not_followed(inputs: Path) -> None:
    labels = inputs / "a-run/labels.zarr"
    labels.rename(inputs / "elsewhere.zarr")
    labels.symlink_to(inputs / "elsewhere.zarr")
    before = tree(inputs / "elsewhere.zarr")
    kmeans(inputs / "x.zarr", KMEANS, out=inputs / "a-run", overwrite=True)
    assert not labels.is_symlink()
    assert tree(inputs / "elsewhere.zarr") == before


@pytest.mark.parametrize("name", ["labels.xlsx", "labels.csv", "centers.txt", "mine.png"])
@pytest.mark.parametrize("command", ["export", "report"])
def test_files_with_similar_names_are_not_removed(inputs: Path, command: str, name: str) -> None:
    run, out = inputs / "a-run", inputs / "out"

    def call() -> None:
        if command == "export":
            export(run, out, overwrite=True)
        else:
            write_report([run], inputs / "out.html")

    call()
    (out / name).write_text("precious")
    with pytest.raises(StoreError, match=name):
        call()
    assert (out / name).read_text() == "precious"


def keep_notes(out: Path) -> Callable[[object], None]:
    """Return a listener that puts a file of the user into an output when the output exists."""

    def listener(_event: object) -> None:
        if out.is_dir():
            (out / "notes.txt").write_text("precious")

    return listener


def fail_fit(root: Path, out: Path, listener: Any) -> Any:
    fit(root / "nan.zarr", CONFIG, out=out, listener=listener)


def fail_kmeans(root: Path, out: Path, listener: Any) -> Any:
    kmeans(root / "nan.zarr", KMEANS, out=out, listener=listener)


def fail_predict(root: Path, out: Path, listener: Any) -> Any:
    predict(root / "a-run", root / "nan.zarr", out=out, block_rows=10, listener=listener)


def fail_ingest(root: Path, out: Path, listener: Any) -> Any:
    config = IngestConfig(chunk_bytes=64, nan="error")
    ingest(str(root / "nan.npy"), out, config, listener=listener)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("fail", [fail_fit, fail_kmeans, fail_predict, fail_ingest])
def test_failed_command_keeps_files_of_the_user(
    inputs: Path, fail: Callable[[Path, Path, Any], Any], overwrite: bool
) -> None:
    out = inputs / "out"
    out.mkdir()
    with dask.config.set(scheduler="synchronous"), pytest.raises(ScrlmError):
        fail(inputs, out, keep_notes(out))
    assert tree(out) == {"notes.txt": b"precious"}
    with pytest.raises(StoreError, match=f"{out}"):
        fit(inputs / "x.zarr", CONFIG, out=out, overwrite=overwrite)
    with pytest.raises(StoreError, match=f"{out}"):
        ingest(str(inputs / "rows.npy"), out, overwrite=overwrite)
    assert tree(out) == {"notes.txt": b"precious"}


def test_file_of_the_user_next_to_the_output_stays(inputs: Path) -> None:
    """The user puts a file into the folder of the new output while it is written."""
    out, aside = inputs / "a-run", inputs / "a-run.scrlm-new"
    old = tree(out)
    with dask.config.set(scheduler="synchronous"), pytest.raises(ScrlmError):
        fit(inputs / "nan.zarr", CONFIG, out=out, overwrite=True, listener=keep_notes(aside))
    assert tree(out) == old
    assert tree(aside) == {"notes.txt": b"precious"}
    assert find_aside(out) is None
    for call in (fit_, kmeans_):
        with pytest.raises(StoreError, match=f"(?=.*{aside})(?=.*notes.txt)"):
            call(inputs, locate(out), bad=False)
    assert read_unfinished(out, "scrlm") is None  # the old run is complete
    (aside / "notes.txt").unlink()
    fit(inputs / "x.zarr", CONFIG, out=out, overwrite=True)
    assert not aside.exists()


@pytest.mark.parametrize("files", [["thesis.txt"], ["labels", "run.json", "features"]])
@pytest.mark.parametrize("suffix", [".scrlm-new", ".scrlm-old", "/.scrlm-new", "/.scrlm-old"])
@pytest.mark.parametrize("exists", [False, True])
def test_folders_of_the_user_with_reserved_names_are_not_removed(
    inputs: Path, exists: bool, suffix: str, files: list[str]
) -> None:
    out = inputs / ("x.zarr" if exists else "out")
    theirs = Path(f"{out}{suffix}")
    theirs.mkdir(parents=True)
    for name in files:
        (theirs / name).write_text("precious")
    with pytest.raises(StoreError, match=f"(?=.*{theirs})(?=.*{files[0]})"):
        ingest(str(inputs / "rows.npy"), out, overwrite=True)
    with pytest.raises(StoreError, match=str(theirs)):
        outputs.open_output(out, True, outputs.FEATURES_KIND)
    assert tree(theirs) == dict.fromkeys(files, b"precious")


@pytest.mark.parametrize("command", ["fit", "ingest", "export"])
def test_temporary_file_of_a_killed_process_is_ignored(inputs: Path, command: str) -> None:
    """A process was killed while it wrote the first file of an output."""
    out = locate(inputs / "out")
    Path(out.url).mkdir()
    for name in ("", "zarr"):
        (inputs / "out" / f"{name}.{uuid4().hex}.partial").write_text("{")
    check_output_free(out, False, RUN_KIND)
    COMMANDS[command](inputs, out, bad=False)
    assert not list((inputs / "out").glob("*.partial"))


class Killed(BaseException):
    """Stands for a process that ends at once."""


@pytest.mark.parametrize("step", range(8))
def test_process_is_killed_while_it_removes_an_unfinished_store(
    inputs: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, config = inputs / "out.zarr", IngestConfig(chunk_bytes=64)
    with pytest.raises(StoppedError):
        ingest(str(inputs / "rows.npy"), out, config, listener=stop)
    calls = iter(range(100))

    def kill(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if next(calls) == step:
                raise Killed
            return function(*args, **options)

        return call

    with monkeypatch.context() as patch, suppress(Killed):
        for module, name in ((shutil, "rmtree"), (Path, "unlink"), (Path, "rmdir")):
            patch.setattr(module, name, kill(getattr(module, name)))
        outputs.open_output(out, True, outputs.FEATURES_KIND)
    ingest(str(inputs / "rows.npy"), out, config)
    expected = np.load(inputs / "rows.npy")
    found = read_rows(open_features_store(out), 0, len(expected), "the features")
    np.testing.assert_array_equal(found, expected)


# --- resume ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_unfinished_replacement_is_resumed(inputs: Path, memory: str) -> None:
    expected = fit(inputs / "x.zarr", CONFIG).model.centers
    for out in places(inputs, memory):
        kmeans(inputs / "x.zarr", KMEANS, out=out)
        old = content(out)
        with pytest.raises(StoppedError) as caught:
            fit(inputs / "x.zarr", CONFIG, out=out, overwrite=True, listener=stop)
        assert out.url in caught.value.__notes__[0]
        assert "scrlm-new" not in caught.value.__notes__[0]
        aside = find_aside(out)
        assert aside is not None
        assert old.items() <= content(out).items()
        assert load_fit(out).record["method"] == "k-means"  # the old run can be read
        record = read_unfinished(out, "scrlm")
        assert record is not None
        assert record.attempts == 1
        with pytest.raises(StoreError, match="rho"):
            fit(inputs / "x.zarr", FitConfig(rho=0.6), out=out)
        resumed = fit(inputs / "x.zarr", CONFIG, out=out)
        assert resumed.record["attempts"] == 2
        np.testing.assert_array_equal(load_fit(out).model.centers, expected)
        assert find_aside(out) is None
        assert read_unfinished(out, "scrlm") is None


def test_overwrite_starts_an_unfinished_replacement_again(inputs: Path) -> None:
    out = locate(inputs / "a-run")
    for _ in range(2):
        with pytest.raises(StoppedError):
            fit(inputs / "x.zarr", CONFIG, out=out, overwrite=True, listener=stop)
    assert fit(inputs / "x.zarr", CONFIG, out=out, overwrite=True).record["attempts"] == 1
    assert not list(inputs.glob("a-run.*"))


def test_unfinished_ingest_of_a_replacement_is_resumed(inputs: Path) -> None:
    out, config = inputs / "out.zarr", IngestConfig(chunk_bytes=64)
    ingest(str(inputs / "rows.npy"), out)
    old = tree(out)
    with pytest.raises(StoppedError):
        ingest(str(inputs / "rows.npy"), out, config, overwrite=True, listener=stop)
    assert tree(out) == old
    done = ingest(str(inputs / "rows.npy"), out, config)
    assert done.kept_blocks == done.n_blocks > 1
    assert done.path == str(out)
    assert not list(inputs.glob("out.zarr.*"))


KILLED_FIT = """
import os, signal, sys
from scrlm_dask.config import FitConfig
from scrlm_dask.events import BlockDone, PhaseFinished
from scrlm_dask.pipeline.fit import fit

def kill(event):
    if isinstance(event, PhaseFinished):
        os.kill(os.getpid(), signal.SIGKILL)

config = FitConfig(rho=0.5, n_clusters=2, seed=1, refine=0)
fit(sys.argv[1], config, out=sys.argv[2], overwrite=True, listener=kill)
"""


@pytest.mark.slow
def test_killed_command_leaves_the_old_run(inputs: Path) -> None:
    out = inputs / "a-run"
    old = tree(out)
    words = [sys.executable, "-c", KILLED_FIT, str(inputs / "x.zarr"), str(out)]
    ended = subprocess.run(words, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert tree(out) == old
    assert fit(inputs / "x.zarr", CONFIG, out=out).record["attempts"] == 2
    assert not list(inputs.glob("a-run.*"))


# --- inputs inside the output ------------------------------------------------------------------


@pytest.mark.parametrize("link", ["no", "outside", "inside"])
@pytest.mark.parametrize("what", ["centers", "weights"])
def test_inputs_of_kmeans_inside_the_output_are_rejected(
    inputs: Path, what: str, link: str
) -> None:
    out = inputs / "a-run"
    values = {"centers": np.zeros((2, 8)), "weights": np.ones(40)}
    given = out / "given.npy"
    np.save(inputs / "elsewhere.npy" if link == "inside" else given, values[what])
    if link == "inside":
        given.symlink_to(inputs / "elsewhere.npy")
    elif link == "outside":
        (inputs / "link.npy").symlink_to(given)
        given = inputs / "link.npy"
    before = tree(out)
    config = KMeansConfig(n_clusters=2, init="given" if what == "centers" else "random")
    name = "centers" if what == "centers" else "sample_weight"
    with pytest.raises(StoreError, match=f"(?=.*{what})(?=.*{given})(?=.*{out})"):
        kmeans(inputs / "x.zarr", config, out=out, overwrite=True, **{name: given})
    assert tree(out) == before


def test_inputs_in_memory_inside_the_output_are_rejected(inputs: Path, memory: str) -> None:
    out = locate(f"{memory}/out")
    fit(inputs / "x.zarr", CONFIG, out=out)
    before = content(out)
    config = KMeansConfig(n_clusters=2, init="given")
    for given in (out, out / "model.zarr"):
        with pytest.raises(StoreError, match=f"(?=.*centers)(?=.*{given.url})"):
            kmeans(inputs / "x.zarr", config, centers=given, out=out, overwrite=True)
    assert content(out) == before


@pytest.mark.parametrize(
    "command",
    ["predict", "cut", "export", "export features", pytest.param("report", marks=pytest.mark.slow)],
)
def test_inputs_inside_the_output_are_rejected(inputs: Path, command: str) -> None:
    run, x, out = inputs / "a-run", inputs / "x.zarr", inputs / "out"
    inner = out / "inner"
    if command == "predict":
        predict(run, x, out=out)
        run.rename(inner)
    elif command == "cut":
        cut_run(run, 1, out=out)
        run.rename(inner)
    elif command == "export":
        export(run, out)
        run.rename(inner)
    elif command == "export features":
        export(run, out)
        synth(inner, 40, SPEC)
        run = inputs / "second"
        fit(inner, CONFIG, out=run)
    else:
        write_report([run], inputs / "out.html")
        np.save(inner.with_suffix(".npy"), np.zeros((40, 2, 2), np.uint8))
        inner = inner.with_suffix(".npy")
    before = tree(inputs)
    calls: dict[str, Callable[[], Any]] = {
        "predict": lambda: predict(inner, x, out=out, overwrite=True),
        "cut": lambda: cut_run(inner, 1, out=out, overwrite=True),
        "export": lambda: export(inner, out, overwrite=True),
        "export features": lambda: export(run, out, overwrite=True),
        "report": lambda: write_report([run], inputs / "out.html", items=inner),
    }
    with pytest.raises(StoreError, match=f"(?=.*{inner})(?=.*{out})"):
        calls[command]()
    assert tree(inputs) == before


@pytest.mark.parametrize("column", ["rows", "labels"])
def test_sources_inside_the_output_are_rejected(inputs: Path, column: str) -> None:
    out = inputs / "x.zarr"
    given = out / "given.npy"
    np.save(given, np.zeros((30, 4)) if column == "rows" else np.zeros(30, int))
    source = given if column == "rows" else inputs / "rows.npy"
    config = IngestConfig(labels=str(given) if column == "labels" else None)
    before = tree(out)
    with pytest.raises(StoreError, match=f"(?=.*{given})(?=.*{out})"):
        ingest(str(source), out, config, overwrite=True)
    assert tree(out) == before


@pytest.mark.parametrize("name", ["features", "features/c", "features/c/0"])
def test_links_from_an_input_to_the_output_are_rejected(inputs: Path, name: str) -> None:
    store, out = inputs / "x.zarr", inputs / "out.zarr"
    shutil.copytree(store, out)
    shutil.rmtree(store / name)
    (store / name).symlink_to(out / name)
    before = tree(out)
    given = store / "features" if name == "features/c/0" else store
    with pytest.raises(StoreError, match=f"(?=.*{given})(?=.*{out})"):
        ingest(str(given), out, overwrite=True)
    with pytest.raises(StoreError, match=f"(?=.*{store})(?=.*{out})"):
        write_features(FeatureStore(given), out, overwrite=True)
    assert tree(out) == before


def test_local_urls_are_local_paths(tmp_path: Path) -> None:
    assert (
        locate(f"local://{tmp_path}/a") == locate(tmp_path / "a") == locate(f"file://{tmp_path}/a")
    )
    assert is_within(locate(f"local://{tmp_path}/a/b"), locate(tmp_path / "a"))


RESERVED = ("{}.scrlm-new", "{}.scrlm-old", "{}/.scrlm-new", "{}/.scrlm-old", "{}/.scrlm-ready")


def check_reserved_links(out: Path, precious: Path, command: Callable[[], Any]) -> None:
    """Require that a command rejects links at reserved names, and leaves their targets."""
    precious.mkdir()
    (precious / "file").write_text("1")
    for name in RESERVED:
        link = Path(name.format(out))
        link.symlink_to(precious)
        with pytest.raises(StoreError, match=f"{re.escape(str(link))} is"):
            command()
        assert (precious / "file").read_text() == "1"
        link.unlink()


@pytest.mark.parametrize("command", COMMANDS)
def test_links_at_reserved_names_are_rejected(inputs: Path, command: str) -> None:
    """Another user of a folder must not choose what is replaced."""
    out = locate(inputs / "out")
    COMMANDS[command](inputs, out, bad=False)
    again = partial(COMMANDS[command], inputs, out, bad=False)
    check_reserved_links(Path(out.url), inputs / "precious", again)


def test_report_does_not_follow_links_in_a_run(inputs: Path) -> None:
    """The author of a run must not choose what is replaced."""
    run = inputs / "a-run"
    (inputs / "victim").write_text("1")
    (run / "report.partial").symlink_to(inputs / "victim")
    write_report([run])
    assert (inputs / "victim").read_text() == "1"
    check_reserved_links(run / "report", inputs / "precious", lambda: write_report([run]))


@pytest.mark.parametrize("suffix", [".scrlm-new", ".scrlm-old"])
def test_reserved_names_are_rejected(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(StoreError, match=f"run{suffix}"):
        check_output_free(tmp_path / f"run{suffix}", True, RUN_KIND)


def test_reader_names_the_runs_of_an_interrupted_replacement(inputs: Path) -> None:
    run = RunDirectory(inputs / "a-run")
    Path(run.location.url).rename(inputs / "a-run.scrlm-old")
    with pytest.raises(StoreError, match=r"a-run\.scrlm-old"):
        run.read_record()
    assert read_unfinished(run.path, "scrlm") is None
    assert run.check_complete()["method"] == "scrlm"


@pytest.mark.parametrize("suffix", [".scrlm-old", ".scrlm-new"])
def test_readers_of_stores_name_the_complete_copy_and_its_command(
    inputs: Path, memory: str, suffix: str
) -> None:
    x, labels = inputs / "x.zarr", inputs / "labels"
    predict(inputs / "a-run", x, out=labels)
    for path in (x, labels):
        path.rename(f"{path}{suffix}")
    with pytest.raises(StoreError, match=f"(?=.*{x}{suffix})(?=.*scrlm ingest)"):
        open_features_store(x)
    for read in (open_labels, lambda path, _: RunDirectory(path).read_record()):
        with pytest.raises(StoreError, match=f"(?=.*{labels}{suffix})(?=.*scrlm predict)"):
            read(labels, "the labels")
    if suffix == ".scrlm-new":
        synth(f"{memory}/x.zarr-2", 10, SPEC)
        locate(f"{memory}/x.zarr-2").copy_to(locate(f"{memory}/x.zarr{suffix}"), last=())
        with pytest.raises(StoreError, match=f"(?=.*{memory}/x.zarr{suffix})(?=.*scrlm ingest)"):
            open_features_store(f"{memory}/x.zarr")


# --- two processes, one output -----------------------------------------------------------------

SMALL = IngestConfig(chunk_bytes=64)


def write_sources(root: Path) -> tuple[str, str]:
    """Write two sources with the same shape and other values."""
    for value in (1, 2):
        np.save(root / f"{value}.npy", np.full((80, 4), value, np.float32))
    return str(root / "1.npy"), str(root / "2.npy")


def at_first_block(action: Callable[[], Any]) -> Callable[[Any], None]:
    blocks = iter(range(10**6))

    def listen(event: Any) -> None:
        if isinstance(event, BlockDone) and next(blocks) == 0:
            action()

    return listen


def stop_at_first_block() -> Callable[[Any], None]:
    def stop_now() -> None:
        raise StoppedError

    return at_first_block(stop_now)


def values_in(store: Location) -> list[float]:
    assert FeatureStore(store).verify() == ()
    return sorted({float(value) for value in np.unique(FeatureStore(store).array.compute())})


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
def test_second_ingest_of_a_process_is_rejected(
    root: Location, tmp_path: Path, exists: bool, overwrite: bool
) -> None:
    one, two = write_sources(tmp_path)
    out = root / "out.zarr"
    if exists:
        ingest(two, out, SMALL)
    messages = []

    def start_second() -> None:
        for source in (one, two):
            with pytest.raises(StoreError, match=f"{out}") as caught:
                ingest(source, out, SMALL, overwrite=overwrite)
            messages.append(str(caught.value))

    with dask.config.set(scheduler="synchronous"):
        ingest(one, out, SMALL, overwrite=exists, listener=at_first_block(start_second))
    assert len(messages) == 2
    assert all(str(os.getpid()) in message for message in messages)
    assert values_in(out) == [1.0]


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("stopped", [False, True])
def test_ingest_that_another_host_takes_over(
    root: Location, tmp_path: Path, exists: bool, stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "is_alive", lambda _owner: False)  # the process is not known
    one, two = write_sources(tmp_path)
    out = root / "out.zarr"
    if exists:
        ingest(two, out, SMALL)

    def take_over() -> None:
        with suppress(StoppedError):
            listener = stop_at_first_block() if stopped else lambda _: None
            ingest(two, out, SMALL, overwrite=True, listener=listener)

    with dask.config.set(scheduler="synchronous"), pytest.raises(StoreError, match=f"{out}"):
        ingest(one, out, SMALL, overwrite=exists, listener=at_first_block(take_over))
    if stopped:
        assert ingest(two, out, SMALL).kept_blocks >= 1
    assert values_in(out) == [2.0]


def test_ingest_that_another_host_resumes(
    root: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "is_alive", lambda _owner: False)
    one, _ = write_sources(tmp_path)
    out = root / "out.zarr"

    def resume() -> None:
        assert ingest(one, out, SMALL).kept_blocks >= 1

    with dask.config.set(scheduler="synchronous"), pytest.raises(StoreError, match=f"{out}"):
        ingest(one, out, SMALL, listener=at_first_block(resume))
    assert values_in(out) == [1.0]


@pytest.mark.parametrize("alive", [True, False])
def test_unfinished_store_of_another_process(root: Location, tmp_path: Path, alive: bool) -> None:
    one, two = write_sources(tmp_path)
    out = root / "out.zarr"
    with pytest.raises(StoppedError):
        ingest(one, out, SMALL, listener=stop_at_first_block())
    parent = psutil.Process(os.getppid())
    process = outputs.describe_process(parent.pid) | ({} if alive else {"began": "earlier"})
    metadata = json.loads((out / "zarr.json").read_text())
    metadata["attributes"]["owner"] |= process
    (out / "zarr.json").write_text(json.dumps(metadata))
    if alive:
        for call in (
            lambda: ingest(one, out, SMALL),
            lambda: ingest(two, out, SMALL, overwrite=True),
            lambda: synth(out, 20, SPEC, overwrite=True),
        ):
            with pytest.raises(StoreError, match=f"(?=.*{out})(?=.*{parent.pid})"):
                call()
        metadata["attributes"]["owner"]["host"] = "another"
        (out / "zarr.json").write_text(json.dumps(metadata))
    assert ingest(one, out, SMALL).kept_blocks >= 1
    assert values_in(out) == [1.0]
    assert "owner" not in json.loads((out / "zarr.json").read_text())["attributes"]


@pytest.mark.parametrize("other_host", [False, True])
def test_two_predictions_to_one_output(
    inputs: Path, other_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, x = inputs / "labels", inputs / "x.zarr"
    if other_host:
        monkeypatch.setattr(outputs, "is_alive", lambda _owner: False)
    kmeans(x, KMEANS, out=inputs / "b-run")
    expected = [predict(inputs / run, x, block_rows=10).labels for run in ("a-run", "b-run")]

    def predict_other() -> None:
        with nullcontext() if other_host else pytest.raises(StoreError, match=f"{out}"):
            predict(inputs / "b-run", x, out=out, overwrite=True, block_rows=10)

    listener = at_first_block(predict_other)
    with (
        dask.config.set(scheduler="synchronous"),
        pytest.raises(StoreError, match=f"{out}") if other_host else nullcontext(),
    ):
        predict(inputs / "a-run", x, out=out, block_rows=10, listener=listener)
    labels = open_labels(out, "the labels")
    np.testing.assert_array_equal(read_rows(labels, 0, 40, "the labels"), expected[other_host])
