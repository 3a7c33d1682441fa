"""Fuzz files of all formats: damage a small file, run a command, and judge its result.

Hypothesis draws the damage of each case and reduces a failing case to a minimal one. A case is
rejected (exit code 2, 3 or 4, with an error), or its rows equal the rows of the undamaged file, or,
if the format has no checksum for the damaged bytes, the rows that the format's own library reads.
Cases run in forked processes with limits of memory and time, so that a crash of a native library is
counted and does not end the benchmark.
"""

from __future__ import annotations

import csv
import gc
import json
import multiprocessing
import os
import resource
import shutil
import signal
import struct
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from numpy.typing import NDArray
from scrlm_cli.main import main as scrlm

from scrlm_dask.config import FitConfig, LloydConfig
from scrlm_dask.events import Event, PhaseFinished
from scrlm_dask.pipeline.cut import cut_run
from scrlm_dask.pipeline.fit import fit

from .mutations import Change, byte_changes, change_bytes, change_json, json_changes

Rows = NDArray[Any]
SHAPE = (24, 4)
_FORK, _SPAWN = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
_REJECTED = (2, 3, 4)
_GOOD = ("rejected", "unchanged", "changed")
_PER_ROW = ("labels", "distances", "margins")  # arrays of a labels store
# Columns that an export omits if damage hides their array; of source rows, with a note.
_OPTIONAL = ("margin", "source_row")
_MOST_FAILURES = 5  # of a target
_CASES_PER_PROCESS = 200
_SECONDS_PER_CASE = 30.0
# Address space above that of the process at its start: stacks and heaps of threads reserve most.
_ADDRESSES = 4 * 2**30
_PEAK_BYTES = 2**30  # a case that uses more memory fails
_CUT_CLUSTERS = 2
_SCANNED = FitConfig(n_clusters=3, preprocess="standardize")
_FIT = FitConfig(rho=0.5, n_clusters=5, n_candidates=10, refine=LloydConfig(2))


def rows() -> Rows:
    """Return the undamaged rows."""
    return np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)


@dataclass(frozen=True)
class Target:
    """Files of a format, the part that is damaged, and a command that reads them.

    `read` returns the rows that another reader finds in the damaged files; without it, a command
    that succeeds must return the rows of the undamaged files.
    """

    write: Callable[[Path], None]
    name: str  # of the file or folder that is given to the command
    pattern: str  # of the damaged files in it; "" if it is a file
    read: Callable[[Path], Rows] | None = None
    options: tuple[str, ...] = ()
    focus: tuple[int, int] | None = None  # range of bytes with metadata, from the begin or the end
    command: str = "ingest"


def _npy(path: Path) -> None:
    np.save(path, rows())


def _npz(path: Path) -> None:
    np.savez(path, emb=rows(), other=np.arange(3))


def _npz_deflated(path: Path) -> None:
    np.savez_compressed(path, emb=rows(), other=np.arange(3))


def _fbin(path: Path) -> None:
    path.write_bytes(struct.pack("<II", *SHAPE) + rows().tobytes())


def _fvecs(path: Path) -> None:
    path.write_bytes(b"".join(struct.pack("<i", SHAPE[1]) + row.tobytes() for row in rows()))


def _hdf5(path: Path, latest: bool = False) -> None:
    with h5py.File(path, "w", libver="latest" if latest else "earliest") as file:
        file.create_dataset("emb", data=rows(), chunks=(6, 4), fletcher32=True)
        file["label"] = np.arange(SHAPE[0])


def _hdf5_latest(path: Path) -> None:
    _hdf5(path, latest=True)


def _table() -> pa.Table:
    items = pa.array(rows().reshape(-1))
    vectors = pa.FixedSizeListArray.from_arrays(items, SHAPE[1])
    return pa.table({"name": [f"{i}.jpg" for i in range(SHAPE[0])], "emb": vectors})


def _parquet(path: Path) -> None:
    pq.write_table(_table(), path, row_group_size=9, write_page_checksum=True)


def _parquet_lists(path: Path) -> None:
    table = _table()
    lists = table["emb"].cast(pa.list_(pa.float32()))
    pq.write_table(table.set_column(1, "emb", lists), path, row_group_size=9)


def _parquet_columns(path: Path) -> None:
    columns = {f"f{i}": rows()[:, i] for i in range(SHAPE[1])}
    pq.write_table(pa.table(columns), path, row_group_size=9)


def _arrow(path: Path) -> None:
    table = _table()
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)


def _arrow_lists(path: Path) -> None:
    table = _table()
    table = table.set_column(1, "emb", table["emb"].cast(pa.list_(pa.float32())))
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)


def _csv(path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([f"f{i}" for i in range(SHAPE[1])])
        writer.writerows([repr(float(v)) for v in row] for row in rows())


def _zarr(path: Path, **options: Any) -> None:
    array = zarr.create_array(
        path,
        shape=SHAPE,
        dtype="f4",
        config={"write_empty_chunks": True},
        **{"chunks": (6, 4), **options},
    )
    array[...] = rows()


def _zarr_2(path: Path) -> None:
    _zarr(path, zarr_format=2)


def _zarr_sharded(path: Path) -> None:
    _zarr(path, chunks=(2, 4), shards=(6, 4))


def _zarr_checksums(path: Path) -> None:
    _zarr(path, compressors=[zarr.codecs.Crc32cCodec()])


def _store(path: Path) -> None:
    """Write a features store with a manifest."""
    np.save(path.parent / "rows.npy", rows())
    _run("ingest", path.parent / "rows.npy", path, "--chunk-size", "96B", "--nworkers", 0)


def _shuffled_store(path: Path) -> None:
    """Write a complete run, and at `path` its features store, which has source rows."""
    np.save(path.parent / "rows.npy", rows())
    size = ("--chunk-size", "96B", "--nworkers", 0)
    _run("ingest", path.parent / "rows.npy", path, "--shuffle", *size)
    fit(path, _FIT, out=path.parent / "run")


def _run_of(path: Path) -> None:
    """Write a complete run."""
    _store(path.parent / "features.zarr")
    fit(path.parent / "features.zarr", _FIT, out=path)


def _run_with_truth(path: Path) -> None:
    """Write a complete run, and its labels as true labels."""
    _run_of(path)
    np.save(path.parent / "truth.npy", _array(path / "labels.zarr" / "labels"))


def _scanned_run(path: Path) -> None:
    """Write a complete run that chose rho, so that its record contains the trials."""
    _store(path.parent / "features.zarr")
    fit(path.parent / "features.zarr", _SCANNED, out=path)
    assert json.loads((path / "run.json").read_text())["scan"]["rungs"]


def _unfinished_run(path: Path) -> None:
    """Write a run that was killed before its last pass, and the same run without interruption."""
    _run_of(path.parent / "undisturbed")
    # a new process, because this one has threads; the record names the killed process
    killed = _SPAWN.Process(target=_fit_until_killed, args=(path.parent / "features.zarr", path))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert json.loads((path / "run.json").read_text())["process"]["pid"] == killed.pid


def _fit_until_killed(features: Path, out: Path) -> None:
    def kill(event: Event) -> None:
        if isinstance(event, PhaseFinished) and event.name == "kmeans-step":
            os.kill(os.getpid(), signal.SIGKILL)

    fit(features, _FIT, out=out, listener=kill)


def _read_npy(path: Path) -> Rows:
    return np.asarray(np.load(path, allow_pickle=False))


def _read_npz(path: Path) -> Rows:
    with np.load(path, allow_pickle=False) as archive:
        tables = [archive[name] for name in archive.files if archive[name].ndim == 2]
    return np.asarray(tables[0])


def _read_fbin(path: Path) -> Rows:
    data = path.read_bytes()
    n, p = struct.unpack("<II", data[:8])
    return np.frombuffer(data[8:], "<f4").reshape(n, p)


def _read_fvecs(path: Path) -> Rows:
    p = struct.unpack("<i", path.read_bytes()[:4])[0]
    records = np.fromfile(path, "<i4").reshape(-1, p + 1)
    assert (records[:, 0] == p).all()
    return records[:, 1:].copy().view("<f4")


def _read_hdf5(path: Path) -> Rows:
    tables: list[Any] = []

    def visit(_: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and len(node.shape) == 2:
            tables.append(node)

    with h5py.File(path, "r") as file:
        file.visititems(visit)
        table = tables[0]
        if table.chunks is not None:  # rows of missing chunks would be read as zeros
            grid = [-(-n // step) for n, step in zip(table.shape, table.chunks, strict=True)]
            assert table.id.get_num_chunks() == np.prod(grid)
        return np.asarray(table[...])


def _of_table(table: pa.Table) -> Rows:
    lists = [c for c in table.column_names if pa.types.is_nested(table.schema.field(c).type)]
    if lists:
        return np.array(table[lists[0]].to_pylist(), np.float64)
    return np.stack([table[name].to_numpy() for name in table.column_names], axis=1)


def _read_parquet(path: Path) -> Rows:
    """Read the lists, or all columns if there are none; no other column is used."""
    names = [name for name in pq.read_schema(path).names if name != "name"]
    return _of_table(pq.read_table(path, columns=names, use_threads=False))


def _read_arrow(path: Path) -> Rows:
    """Read the lists, or the numbers if there are none; no other column is used."""
    table = pa.ipc.open_stream(path.read_bytes()).read_all()
    lists = [field.name for field in table.schema if pa.types.is_nested(field.type)]
    numbers = [f.name for f in table.schema if pa.types.is_floating(f.type)]
    table = table.select(lists or numbers)
    table.validate(full=True)
    return _of_table(table)


def _read_csv(path: Path) -> Rows:
    """Read numbers separated by the first separator; a first line without numbers is a header."""
    text = path.read_bytes().decode("utf-8-sig")
    delimiter = next((sign for sign in ",;\t" if sign in text.splitlines()[0]), None)
    lines = [line for line in csv.reader(text.splitlines(), delimiter=delimiter or ",") if line]
    try:
        [float(field) for field in lines[0]]
    except ValueError:
        lines = lines[1:]
    return np.array([[float(field) for field in line] for line in lines])


def _read_zarr(path: Path) -> Rows:
    node = zarr.open(path, mode="r")
    array = node["features"] if isinstance(node, zarr.Group) else node
    assert isinstance(array, zarr.Array)
    assert array.nchunks_initialized == array.nchunks  # missing chunks would be read as zeros
    return np.asarray(array[...])


_ANY_JSON = "**/zarr.json"
TARGETS: dict[str, Target] = {
    "npy": Target(_npy, "x.npy", "", _read_npy, focus=(0, 128)),
    "npz": Target(_npz, "x.npz", "", _read_npz),
    "npz deflated": Target(_npz_deflated, "x.npz", "", _read_npz),
    "fbin": Target(_fbin, "x.fbin", "", _read_fbin, focus=(0, 8)),
    "fvecs": Target(_fvecs, "x.fvecs", "", _read_fvecs, focus=(0, 4)),
    "hdf5": Target(_hdf5, "x.h5", "", _read_hdf5),
    "hdf5 with checksums": Target(_hdf5_latest, "x.h5", "", _read_hdf5),
    "parquet": Target(_parquet, "x.parquet", "", _read_parquet, focus=(-900, 0)),
    "parquet lists": Target(_parquet_lists, "x.parquet", "", _read_parquet, focus=(-900, 0)),
    "parquet columns": Target(_parquet_columns, "x.parquet", "", _read_parquet, focus=(-900, 0)),
    "arrow": Target(_arrow, "x.arrow", "", _read_arrow),
    "arrow lists": Target(_arrow_lists, "x.arrow", "", _read_arrow),
    "csv": Target(_csv, "x.csv", "", _read_csv),
    "zarr 3": Target(_zarr, "x.zarr", "zarr.json", _read_zarr),
    "zarr 2": Target(_zarr_2, "x.zarr", ".zarray", _read_zarr),
    "zarr sharded": Target(_zarr_sharded, "x.zarr", "zarr.json", _read_zarr),
    "zarr shards": Target(_zarr_sharded, "x.zarr", "c/*/*", _read_zarr),
    "zarr checksums": Target(_zarr_checksums, "x.zarr", "c/*/*"),
    "store metadata": Target(_store, "x.zarr", _ANY_JSON, _read_zarr, command="inspect"),
    "store chunks": Target(_store, "x.zarr", "**/c/*/*", command="inspect"),
    "source rows": Target(_shuffled_store, "x.zarr", "source_*/**/*", command="export of the run"),
    "run record": Target(_run_of, "run", "run.json", command="export"),
    "model": Target(_run_of, "run", f"model.zarr/{_ANY_JSON}", command="predict"),
    "labels": Target(_run_of, "run", f"labels.zarr/{_ANY_JSON}", command="export"),
    "record for an evaluation": Target(_run_with_truth, "run", "run.json", command="evaluate"),
    "record for a verification": Target(_run_of, "run", "run.json", command="verify"),
    "record for a cut": Target(_run_of, "run", "run.json", command="cut"),
    "record for a report": Target(_scanned_run, "run", "run.json", command="report"),
    "events": Target(_run_of, "run", "events.jsonl", command="report"),
    "labels of a cut": Target(_run_of, "run", f"labels.zarr/{_ANY_JSON}", command="cut"),
    "record of an unfinished run": Target(_unfinished_run, "run", "run.json", command="resume"),
    "checkpoint": Target(_unfinished_run, "run", "checkpoint/**/*", command="resume"),
}
# Commands on runs take longer than commands on files, so they are a smaller share of the cases.
_SLOW = (
    *("export", "export of the run", "predict", "resume"),
    *("cut", "evaluate", "report", "verify"),
)


def _run(*words: Any) -> Any:
    return CliRunner().invoke(scrlm, [str(word) for word in words])


def execute(target: Target, folder: Path) -> Any:
    """Run the command of the target on the damaged files."""
    path, out = folder / target.name, folder / "out.zarr"
    threads = ("--nworkers", 0)
    if target.command == "resume":
        return _run("fit", "--resume", path, *threads)
    if target.command == "predict":
        return _run("predict", path, folder / "features.zarr", "--out", out, *threads)
    if target.command == "export":
        return _run("export", path, "--out", out, "--format", "csv")
    if target.command == "cut":
        return _run("cut", path, "--clusters", _CUT_CLUSTERS, "--out", out)
    if target.command == "evaluate":
        return _run("evaluate", path, "--truth", folder / "truth.npy", "--json", *threads)
    if target.command == "verify":
        return _run("verify", path, "--json", *threads)
    if target.command == "report":
        return _run("report", path, "--out", folder / "report.html", "--rows-each", 1)
    if target.command == "export of the run":
        record = folder / "run" / "run.json"  # names the undamaged store that the run read
        content = json.loads(record.read_text())
        content["features"]["path"] = str(path)
        record.write_text(json.dumps(content))
        return _run("export", folder / "run", "--out", out, "--format", "csv")
    if target.command == "inspect":
        result = _run("inspect", path, "--verify", *threads)
        return result if result.exit_code else _run("ingest", path, out, *threads)
    return _run("ingest", path, out, *target.options, *threads)


def complaint(result: Any) -> str:
    """Return what is wrong with the end of a command; an empty string if nothing is."""
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        last = traceback.extract_tb(error.__traceback__)[-1]
        ours = [f for f in traceback.extract_tb(error.__traceback__) if "scrlm_dask" in f.filename]
        at = ours[-1] if ours else last
        return f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}: {str(error)[:200]}"
    if "Traceback" in result.output:
        return f"traceback: {result.output[-600:]}"
    if result.exit_code not in (0, *_REJECTED):
        return f"exit code {result.exit_code}: {result.output[-300:]}"
    if result.exit_code in (3, 4) and result.stderr.count("Error: ") < 1:
        return f"exit code {result.exit_code} without a message: {result.output[-300:]}"
    return ""


def _is_unchanged(target: Target, folder: Path, pristine: Path, result: Any) -> bool:
    """Return whether the command gave the result of undamaged files."""
    out = folder / "out.zarr"
    if target.command in ("evaluate", "verify"):
        printed = json.loads(result.stdout)  # the truth is the labels of the undamaged run
        return printed["accuracy"] == 1.0 if target.command == "evaluate" else printed["ok"]
    if target.command == "report":  # most fields of the record are only shown
        page = (folder / "report.html").read_text()
        return page.rstrip().endswith("</html>") and any((folder / "report").glob("*.png"))
    if target.command == "cut":
        groups = cut_run(pristine / "run", _CUT_CLUSTERS).groups
        labels = _array(pristine / "run" / "labels.zarr" / "labels")
        joined = np.where(labels < 0, labels, groups[labels])
        return bool(np.array_equal(_array(out / "labels"), joined))
    if target.command == "resume":
        return _results(folder / target.name) == _results(pristine / "undisturbed")
    labels = pristine / "run" / "labels.zarr"
    if target.command == "predict":
        return all(np.array_equal(_array(out / n), _array(labels / n)) for n in _PER_ROW)
    if target.command.startswith("export"):
        columns = {name[:-1]: _array(labels / name) for name in _PER_ROW}
        if target.command == "export of the run":
            columns["source_row"] = _array(pristine / target.name / "source_row")
        return _has_columns(out, columns)
    stored = _array(out / "features")
    return bool(np.array_equal(stored, rows()))


def _has_columns(out: Path, columns: dict[str, Rows]) -> bool:
    """Return whether the exported columns are right; only an optional column may be missing."""
    with (out / "labels.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    return len(lines) == SHAPE[0] and all(
        name in lines[0]
        and np.array_equal(np.array([line[name] for line in lines], column.dtype), column)
        for name, column in columns.items()
        if name in lines[0] or name not in _OPTIONAL
    )


def _results(run: Path) -> dict[str, bytes]:
    """Return the content of all files of labels and model, by relative path."""
    files = [f for name in ("labels.zarr", "model.zarr") for f in (run / name).rglob("*")]
    return {str(file.relative_to(run)): file.read_bytes() for file in files if file.is_file()}


def _array(path: Path) -> Rows:
    return np.asarray(zarr.open_array(path, mode="r")[...])


def judge(target: Target, folder: Path, pristine: Path, result: Any) -> str:
    """Return the verdict: "rejected", "unchanged", "changed", or a description of the failure."""
    wrong = complaint(result)
    if wrong:
        return f"wrong: {wrong}"
    if result.exit_code != 0:
        return "rejected"
    if _is_unchanged(target, folder, pristine, result):
        return "unchanged"
    if target.read is None:
        return "wrong: exit code 0 with a different result"
    stored = _array(folder / "out.zarr" / "features")
    try:
        found = target.read(folder / target.name).astype(stored.dtype)
    except Exception as error:
        return f"wrong: accepted, but another reader raises {error!r:.200}"
    if np.array_equal(found, stored):
        return "changed"
    return f"wrong: rows of shape {stored.shape} differ from another reader's {found.shape}"


@dataclass
class Report:
    """Verdicts per target, failures with their changes, and the largest process."""

    verdicts: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    peak_bytes: int = 0
    slowest: float = 0.0

    def add(self, other: Report) -> None:
        for name, counts in other.verdicts.items():
            self.verdicts.setdefault(name, Counter()).update(counts)
        self.failures += other.failures
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)
        self.slowest = max(self.slowest, other.slowest)


def run_case(place: Path, name: str, file: str, changes: list[Change]) -> str:
    """Run one case in this process and return its verdict."""
    target, pristine, folder = TARGETS[name], place / "pristine" / name, place / "case"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(pristine, folder)
    path = folder / file
    change = change_json if _is_json(path) else change_bytes
    path.write_bytes(change(path.read_bytes(), changes))
    return judge(target, folder, pristine, execute(target, folder))


def _is_json(path: Path) -> bool:
    return path.suffix == ".json" or path.name == ".zarray"


def _prepare(place: Path) -> None:
    warnings.simplefilter("ignore")
    for name, target in TARGETS.items():
        folder = place / "pristine" / name
        if not folder.exists():
            folder.mkdir(parents=True)
            target.write(folder / target.name)


def _work(place: Path, pipe: Connection) -> None:
    """Run the cases that arrive and send each verdict; the parent process watches the time."""
    warnings.simplefilter("ignore")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _ADDRESSES, used + _ADDRESSES))
    for number in range(_CASES_PER_PROCESS):
        name, file, changes = pipe.recv()
        begin = time.monotonic()
        verdict = run_case(place, name, file, changes)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if peak > _PEAK_BYTES:
            verdict = f"wrong: used {peak // 2**20} MB of memory; {verdict}"
        pipe.send((verdict, time.monotonic() - begin, peak))
        if number % 50 == 0:
            gc.collect()


class Workers:
    """Forked processes that run cases, one process at a time.

    A process ends after some cases, and after a failure, so that no failure depends on an earlier
    one.
    """

    def __init__(self, place: Path, report: Report) -> None:
        self._place, self._report = place, report
        self._process: Any = None
        self._cases = 0

    def verdict(self, name: str, file: str, changes: list[Change]) -> str:
        """Run a case in the current process and return its verdict."""
        if self._process is None or self._cases == _CASES_PER_PROCESS:
            self._start()
        self._cases += 1
        verdict = self._ask(name, file, changes)
        kind = verdict.partition(":")[0]
        self._report.verdicts.setdefault(name, Counter())[kind] += 1
        if kind not in _GOOD:
            self.close()
        return verdict

    def _ask(self, *case: Any) -> str:
        self._pipe.send(case)
        if not self._pipe.poll(_SECONDS_PER_CASE):
            return f"hung: more than {_SECONDS_PER_CASE:.0f} s"
        try:
            verdict, seconds, peak = self._pipe.recv()
        except (EOFError, ConnectionResetError):  # the process ended before it sent a verdict
            self._process.join()
            return f"crashed: exit code {self._process.exitcode}"
        self._report.peak_bytes = max(self._report.peak_bytes, peak)
        self._report.slowest = max(self._report.slowest, seconds)
        return str(verdict)

    def _start(self) -> None:
        self.close()
        self._pipe, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=_work, args=(self._place, theirs))
        self._process.start()
        theirs.close()
        self._cases = 0

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


def damages(target: Target, folder: Path) -> st.SearchStrategy[tuple[str, list[Change]]]:
    """Return a strategy for a file of the target, relative to `folder`, and its changes."""
    path = folder / target.name
    files = sorted(path.glob(target.pattern)) if target.pattern else [path]

    def of_file(file: Path) -> st.SearchStrategy[tuple[str, list[Change]]]:
        data = file.read_bytes()
        focus = target.focus
        if focus is not None and focus[0] < 0:
            focus = (len(data) + focus[0], len(data))
        changes = json_changes(data) if _is_json(file) else byte_changes(len(data), focus)
        return st.tuples(st.just(str(file.relative_to(folder))), changes)

    return st.one_of([of_file(file) for file in files if file.is_file()])


def fuzz_target(
    name: str, cases: int, seed: str, damaged: st.SearchStrategy[Any], workers: Workers
) -> list[str]:
    """Let Hypothesis draw the cases of a target; return the failures, reduced to minimal ones."""
    failures: dict[str, str] = {}  # by verdict
    done, last = 0, ""

    def check(case: tuple[str, list[Change]]) -> None:
        nonlocal done, last
        done += 1
        verdict = workers.verdict(name, *case)
        if verdict.partition(":")[0] not in _GOOD and verdict not in failures:
            last = verdict
            found[verdict] = f"{name}, {case}: {verdict}"
            raise AssertionError

    # After a failure, the remaining cases are drawn with other random numbers.
    while done < cases and len(failures) < _MOST_FAILURES:
        found: dict[str, str] = {}
        limits = settings(
            max_examples=cases - done,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        try:
            hypothesis_seed(f"{seed}-{name}-{len(failures)}")(limits(given(damaged)(check)))()
            break
        except AssertionError:
            failures[last] = found[last]
        except Flaky:
            failures[last] = f"{found[last]} (not every time)"
    return list(failures.values())


def shares(cases: int) -> dict[str, int]:
    """Return the number of cases of each target; their sum is `cases`."""
    weights = [1 if target.command in _SLOW else 4 for target in TARGETS.values()]
    ends = [cases * sum(weights[:i]) // sum(weights) for i in range(len(weights) + 1)]
    return {name: ends[i + 1] - ends[i] for i, name in enumerate(TARGETS)}


def fuzz_files(place: Path, cases: int, seed: str = "0", only: str = "") -> Report:
    """Run the cases of the targets whose name contains `only`, and return their verdicts."""
    report = Report()
    # This process starts no thread, so that its children can use threads.
    writer = _FORK.Process(target=_prepare, args=(place,))
    writer.start()
    writer.join()
    assert writer.exitcode == 0
    workers = Workers(place, report)
    try:
        for name, share in shares(cases).items():
            if only in name and share:
                damaged = damages(TARGETS[name], place / "pristine" / name)
                report.failures += fuzz_target(name, share, seed, damaged, workers)
    finally:
        workers.close()
    return report
