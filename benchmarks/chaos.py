"""Inject a random fault into small fits at a random moment, and resume them if needed.

    python -m benchmarks.chaos --runs 200

Every run must end with the same bits as an undisturbed run, either directly, or after the fault was
removed and the run was resumed. No unfinished run may look finished. The exit code is 1 if a run
violates this or hangs. Every attempt, also one that resumes a run, is a process with a time limit.
A run with changed inputs may only be rejected by a message that names the changed input.

Faults: kill -9 of workers, nannies, clients and schedulers; signals, also while rho is chosen and
during a cut of many clusters; a worker that hangs; deleted, truncated and flipped chunks; changed
rows behind symbolic links and changed weights; features on an S3 server that becomes slow, drops
connections, truncates responses and answers with errors (requires SeaweedFS, which the tests use);
a mount point as output, also with a run that is replaced, and a full disk (require permission to
mount a tmpfs); a broken network link (requires permission to create network namespaces).

A fault is too late if the command has already ended, or if a signal has no effect on it. Such runs
are counted, in total and per fault. If inputs are changed in at least five runs and no run is
rejected, the exit code is also 1.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.testing import CliRunner
from scrlm_cli.main import main as scrlm

from scrlm_dask.storage.outputs import find_aside

from .common import scratch
from .faults import BIN, FAULTS, Cluster, Fault, FlakyStore, Scene, mount_tmpfs, unmount

ROWS = 5000
SYNTH = ("--rows", ROWS, "--features", 16, "--clusters", 5, "--chunk-size", "8kB")
FIT = (
    "--rho",
    0.5,
    "--candidates",
    ROWS,
    "--block-rows",
    128,
    "--kmeans-iter",
    2,
    "--persist",
    "no",
)
KMEANS = ("--clusters", 5, "--block-rows", 128, "--max-iter", 8, "--tol", 0, "--persist", "no")
# Moments at which a fault is injected: when the first file appears in this folder of `checkpoint`;
# "" means before the first checkpoint.
MOMENTS = (
    "",
    "centers-steps/survey-",
    *2 * ("centers-steps/loss-",),
    "refined-steps/kmeans-step-",
    "assign-",
)
KMEANS_MOMENTS = ("**/kmeans-step-",)
LONGEST_DELAY = 0.3  # between this moment and the fault, in seconds
# A fit without rho, whose scan begins after its first pass.
SCAN = ("--candidates", 512, "--block-rows", 128, "--kmeans-iter", 2, "--persist", "no")
SCAN_MOMENTS, SCAN_SECONDS = ("centers-steps/survey-",), 4.0
# A cut of this many clusters builds its tree in many calls; it begins when the model is loaded.
CUT_ROWS, CUT_CLUSTERS, CUT_SECONDS = 8000, 7000, 8.0
CUT = ("--clusters", 10)
_HANG_SECONDS = 300
_REJECTED = 3  # exit code
_TMPFS_MEGABYTES = 16
_HUNG = "hung"
_LOOKS_FINISHED = "unfinished run looks finished"
_MOST_UNDETECTED = 4  # runs with changed inputs of which none is rejected


@dataclass(frozen=True)
class Outcome:
    """Result of a run; `wrong` describes the violation, and is empty if there is none."""

    fault: str
    code: int
    changes: bool  # inputs, so that most runs must be rejected
    resumed: bool
    rejected: bool  # because inputs were changed
    late: bool  # the fault came after the end of the command, or had no effect
    seconds: float
    wrong: str = ""


@dataclass(frozen=True)
class Ended:
    """Exit code and messages of a command; the code is None if it hung."""

    code: int | None
    stderr: str

    @property
    def failure(self) -> str:
        """Description of the failure of a command that had to succeed; empty without a failure."""
        if self.code is None:
            return _HUNG
        return f"exit code {self.code}: {self.stderr[-500:]}" if self.code != 0 else ""


def attempt(words: Sequence[Any]) -> Ended:
    """Run a scrlm command in a process of its own, with the time limit of all commands."""
    texts = [str(BIN / "scrlm"), *map(str, words)]
    try:
        done = subprocess.run(texts, capture_output=True, text=True, timeout=_HANG_SECONDS)
    except subprocess.TimeoutExpired:
        return Ended(None, "")
    return Ended(done.returncode, done.stderr)


def command(*args: Any) -> None:
    """Run a scrlm command in this process; raise `AssertionError` if it fails."""
    result = CliRunner().invoke(scrlm, [*map(str, args), "--nworkers", "0"])
    if result.exit_code != 0:
        raise AssertionError(
            f"{args[:2]} failed with exit code {result.exit_code}: {result.output[-500:]}"
        )


def bits(out: Path) -> dict[str, bytes]:
    """Return the content of all files of labels and model, by relative path.

    Zarr writes a chunk to a `.partial` file and renames it. Those of a killed worker are ignored.
    """
    files = [f for name in ("labels.zarr", "model.zarr") for f in (out / name).rglob("*")]
    found = [file for file in files if file.is_file() and file.suffix != ".partial"]
    return {str(file.relative_to(out)): file.read_bytes() for file in found}


@dataclass(frozen=True)
class Inputs:
    """The command of a run, its features and options."""

    features: Path
    weights: Path | None
    replaces: bool = False
    store: FlakyStore | None = None
    scans: bool = False
    cut_of: Path | None = None  # the run of a cut

    @property
    def verb(self) -> str:
        return "fit" if self.weights is None else "kmeans"

    @property
    def changed(self) -> Path:
        """The input that faults change."""
        return self.features if self.weights is None else self.weights

    @property
    def access(self) -> tuple[str, ...]:
        return self.store.options if self.store is not None else ()

    @property
    def _allowed(self) -> tuple[str, ...]:
        return ("--allow-origin", self.store.origin) if self.store is not None else ()

    def command(self, out: Path) -> tuple[Any, ...]:
        """Return the command that starts the run, without the options of its cluster."""
        if self.cut_of is not None:
            return ("cut", self.cut_of, *CUT, "--out", out / "labels.zarr")
        place = self.store.url if self.store is not None else self.features
        words = (self.verb, place, "--out", out, *self.access)
        if self.weights is not None:
            return (*words, "--sample-weight", self.weights, *KMEANS)
        options = SCAN if self.scans else FIT
        return (*words, *options, *(("--overwrite",) if self.replaces else ()))

    def in_threads(self, words: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the command, computed in threads of its own process; a cut has no cluster."""
        return words if self.cut_of is not None else (*words, "--nworkers", 0)

    def again(self, out: Path) -> tuple[Any, ...]:
        """Return the command that resumes the run, or repeats it if it has written no record."""
        begun = find_aside(out) is not None if self.replaces else (out / "run.json").exists()
        if begun:
            return self.in_threads((self.verb, "--resume", out, *self.access, *self._allowed))
        return self.in_threads(self.command(out))


class Chaos:
    """A series of runs with faults: the features, the expected bits, and the cluster."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.seed, self.rng = place, seed, random.Random(seed)
        self.features, self.cluster = place / "features.zarr", Cluster(place)
        self.disk = place / "disk"
        self.has_disk = False
        self.expected: dict[str, bytes] = {}
        self.weights = place / "weights.npy"
        self.expected_weighted: dict[str, bytes] = {}
        self.replaced: dict[str, bytes] = {}  # of runs that are replaced
        self.store: FlakyStore | None = None
        self.expected_scanned: dict[str, bytes] = {}
        self.many_clusters = place / "many-clusters"
        self.expected_cut: dict[str, bytes] = {}

    def prepare(self) -> None:
        self.has_disk = mount_tmpfs(self.disk, _TMPFS_MEGABYTES)
        command("synth", self.features, *SYNTH)
        command("fit", self.features, "--out", self.place / "undisturbed", *FIT)
        self.expected = bits(self.place / "undisturbed")
        np.save(self.weights, np.random.default_rng(0).uniform(0.5, 2.0, ROWS))
        words = ("--sample-weight", self.weights, *KMEANS)
        command("kmeans", self.features, "--out", self.place / "undisturbed-weighted", *words)
        self.expected_weighted = bits(self.place / "undisturbed-weighted")
        self._write_old(self.place / "old")
        self.replaced = bits(self.place / "old")

    def _write_old(self, out: Path) -> None:
        """Write a complete run with another result."""
        command("fit", self.features, "--out", out, "--rho", 0.4, "--candidates", 50)

    def can(self, fault: Fault) -> bool:
        """Return whether this machine supports the fault."""
        mounts = fault.on_tmpfs or fault.mounted
        if fault.flaky and not FlakyStore.is_possible():
            return False
        return (self.has_disk or not mounts) and (self.cluster.link.up or not fault.on_link)

    def _flaky_store(self) -> FlakyStore:
        """Return the S3 server with the features; start it when it is used first."""
        if self.store is None:
            self.store = FlakyStore(self.place / "s3", self.seed, self.cluster.host)
            command("synth", self.store.url, *SYNTH, *self.store.options)
        return self.store

    def _expected(self, fault: Fault) -> dict[str, bytes]:
        """Return the bits of an undisturbed run; run it when a fault needs it first."""
        if fault.scans and not self.expected_scanned:
            out = self.place / "undisturbed-scanned"
            command("fit", self.features, "--out", out, *SCAN)
            self.expected_scanned = bits(out)
        if fault.cuts and not self.expected_cut:
            features, out = self.place / "many-rows.zarr", self.place / "undisturbed-cut"
            command("synth", features, "--rows", CUT_ROWS, "--features", 64, "--clusters", 5)
            options = ("--clusters", CUT_CLUSTERS, "--init", "random", "--max-iter", 1)
            command("kmeans", features, "--out", self.many_clusters, *options)
            ended = attempt(("cut", self.many_clusters, *CUT, "--out", out / "labels.zarr"))
            assert not ended.failure, ended.failure
            self.expected_cut = bits(out)
        if fault.scans or fault.cuts:
            return self.expected_scanned if fault.scans else self.expected_cut
        return self.expected_weighted if fault.weighted else self.expected

    def _wait(self, fit: subprocess.Popen[bytes], out: Path, fault: Fault) -> None:
        """Wait for a random moment: before the run starts, or during one of its passes."""
        if fault.cuts:
            time.sleep(self.rng.uniform(0.0, CUT_SECONDS))
            return
        moments = SCAN_MOMENTS if fault.scans else KMEANS_MOMENTS if fault.weighted else MOMENTS
        folder, longest = self.rng.choice(moments), SCAN_SECONDS if fault.scans else LONGEST_DELAY
        deadline = time.monotonic() + _HANG_SECONDS
        while folder and fit.poll() is None and time.monotonic() < deadline:
            place = Path(str(find_aside(out) or out))
            if any(place.glob(f"checkpoint/{folder}*/group.*")):
                break
            time.sleep(0.002)
        time.sleep(self.rng.uniform(0.0, longest if folder else 1.0))

    def _start(self, out: Path, fault: Fault, inputs: Inputs) -> subprocess.Popen[bytes]:
        words = inputs.in_threads(inputs.command(out))
        if fault.on_cluster:
            self.cluster.repair()
            deadline = time.monotonic() + 60
            while not self.cluster.file.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            where = ("--scheduler-file", self.cluster.file, "--stall-timeout", "40s")
            where += ("--wait-workers", "120s")  # a slow start on a busy machine is not a failure
            words = (*inputs.command(out), *where)
        with (out.parent / f"{out.name}.err").open("wb") as err:
            texts = [str(BIN / "scrlm"), *map(str, words)]
            return subprocess.Popen(texts, stdout=subprocess.DEVNULL, stderr=err)

    def run(self, number: int, fault: Fault) -> Outcome:
        """Start a fit, inject the fault, resume if necessary, and check the result."""
        begin = time.monotonic()
        folder = self.disk if fault.on_tmpfs else self.place
        out = folder / f"run-{number}"
        if fault.mounted:
            mount_tmpfs(out, _TMPFS_MEGABYTES)
        if fault.replaces:
            self._write_old(out)
        inputs, expected = self._inputs(number, fault), self._expected(fault)
        if fault.cuts:
            out.mkdir()  # contains the labels store of the cut
        fit = self._start(out, fault, inputs)
        weights = inputs.weights or self.weights
        scene = Scene(fit, self.cluster, inputs.features, weights, out, self.rng, inputs.store)
        late = self._inject(fault, scene)
        wrong, code, rejected = "", -999, False
        try:
            code = fit.wait(_HANG_SECONDS)
        except subprocess.TimeoutExpired:
            fit.kill()
            fit.wait()
            wrong = _HUNG
        ended = Ended(code, (folder / f"{out.name}.err").read_text(errors="replace"))
        # A run that was stopped before it wrote its record has read no rows yet.
        if fault.between is not None and code != 0 and not wrong and (out / "run.json").exists():
            fault.between(scene)
            wrong = self._expect_rejection(inputs, out)
            rejected = not wrong
        for undo in scene.undo:
            undo()
        if fault.changes and code == _REJECTED:
            wrong = _other_reason(ended, inputs)
            rejected = not wrong
        wrong = wrong or self._judge(fault, ended, out, expected)
        resumed = code != 0
        if resumed and not wrong:
            wrong = self._resume(inputs, out)
        if not wrong and bits(out) != expected:
            wrong = "result differs from the undisturbed run"
        if not wrong and (out / "checkpoint").exists():
            wrong = "checkpoint was not removed"
        if fault.mounted:
            unmount(out)
        if not wrong:
            for path in self.place.glob(f"features-{number}.*"):
                shutil.rmtree(path)
            shutil.rmtree(out)
        seconds = time.monotonic() - begin
        changes = fault.changes or fault.between is not None
        missed = late() or (fault.is_signal and code == 0)
        return Outcome(fault.name, code, changes, resumed, rejected, missed, seconds, wrong)

    def _inject(self, fault: Fault, scene: Scene) -> Callable[[], bool]:
        """Wait for a random moment and inject the fault.

        Return a function that returns whether the fault came too late.
        """
        fit, store = scene.fit, scene.store
        self._wait(fit, scene.out, fault)
        if fault.changes:
            fit.send_signal(signal.SIGSTOP)
        ended, before = fit.poll() is not None, store.faults if store is not None else 0
        fault.do(scene)
        if fault.changes:
            fit.send_signal(signal.SIGCONT)
        missed = ended or scene.missed
        return lambda: missed or (store is not None and store.faults == before)

    def _inputs(self, number: int, fault: Fault) -> Inputs:
        """Copy the inputs for a run that may change them."""
        features = self.place / f"features-{number}.zarr"
        shutil.copytree(self.features, features)
        if fault.arrange is not None:
            fault.arrange(features)
        store = self._flaky_store() if fault.flaky else None
        if not fault.weighted:
            cut_of = self.many_clusters if fault.cuts else None
            return Inputs(features, None, fault.replaces, store, fault.scans, cut_of)
        weights = self.place / f"weights-{number}.npy"
        shutil.copy2(self.weights, weights)
        return Inputs(features, weights, store=store)

    def _expect_rejection(self, inputs: Inputs, out: Path) -> str:
        """Resume the run with changed inputs; return the failure unless they are rejected."""
        ended = attempt(inputs.again(out))
        if ended.code != _REJECTED:
            return f"exit code {ended.code} of an attempt with changed inputs"
        return _other_reason(ended, inputs)

    def _judge(self, fault: Fault, ended: Ended, out: Path, expected: dict[str, bytes]) -> str:
        code, stderr = ended.code, ended.stderr
        if code not in fault.codes:
            return f"unexpected exit code {code}: {stderr[-300:]}"
        if "Traceback" in stderr:
            return f"printed a traceback: {stderr[-300:]}"
        record = out / "run.json"
        if code != 0 and record.exists():
            status = json.loads(record.read_text())["status"]
            if status == "complete" and bits(out) not in (expected, self.replaced):
                return _LOOKS_FINISHED
        return ""

    def _resume(self, inputs: Inputs, out: Path) -> str:
        """Resume or repeat the run; return the failure, or ""."""
        failure = attempt(inputs.again(out)).failure
        if failure == _HUNG:
            return failure
        return f"could not be resumed: {failure}" if failure else ""

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
        self.cluster.stop()
        self.cluster.link.remove()
        if self.has_disk:
            unmount(self.disk)


def _other_reason(ended: Ended, inputs: Inputs) -> str:
    """Return the failure if a run was rejected, but not because of its changed input."""
    if str(inputs.changed) in ended.stderr:
        return ""
    return f"{inputs.changed} was changed, but the message does not name it: {ended.stderr[-300:]}"


def play(place: Path, runs: int, seed: int, seconds: float, only: str | None) -> list[Outcome]:
    """Start up to `runs` fits within `seconds`, and inject the faults in turn.

    Return an empty list if this machine supports none of the faults.
    """
    selected = [fault for fault in FAULTS if (only or "") in fault.name]
    if not selected:
        known = ", ".join(fault.name for fault in FAULTS)
        raise click.UsageError(f"no fault name contains {only!r}; there are {known}")
    chaos = Chaos(place, seed)
    outcomes: list[Outcome] = []
    deadline = time.monotonic() + seconds
    try:
        chaos.prepare()
        faults = [fault for fault in selected if chaos.can(fault)]
        for number in range(runs if faults else 0):
            if time.monotonic() > deadline:
                break
            outcomes.append(chaos.run(number, faults[number % len(faults)]))
            if outcomes[-1].wrong:
                click.echo(f"run {number}, {outcomes[-1].fault}: {outcomes[-1].wrong}", err=True)
    finally:
        chaos.close()
    return outcomes


def play_jobs(
    place: Path, runs: int, seed: int, seconds: float, only: str | None, jobs: int
) -> list[Outcome]:
    """Divide the runs among processes, each with its own inputs and its own cluster."""
    shares = [len(range(job, runs, jobs)) for job in range(jobs)]
    places = [place / f"job-{job}" for job in range(jobs)]
    for folder in places:
        folder.mkdir(exist_ok=True)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        tasks = [
            pool.submit(play, folder, share, seed + job, seconds, only)
            for job, (folder, share) in enumerate(zip(places, shares, strict=True))
        ]
        return [outcome for task in tasks for outcome in task.result()]


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return counts over all runs and per fault, and all violations."""
    wrong = [f"{o.fault}: {o.wrong}" for o in outcomes if o.wrong]
    by_fault: dict[str, dict[str, Any]] = {}
    for fault in {outcome.fault: None for outcome in outcomes}:
        mine = [outcome for outcome in outcomes if outcome.fault == fault]
        rejected = sum(outcome.rejected for outcome in mine)
        by_fault[fault] = {
            "runs": len(mine),
            "exit_codes": dict(sorted(Counter(outcome.code for outcome in mine).items())),
            "too_late": sum(outcome.late for outcome in mine),
            "resumed": sum(outcome.resumed for outcome in mine),
            "wrong": sum(bool(outcome.wrong) for outcome in mine),
        }
        if mine[0].changes:
            by_fault[fault]["rejected"] = rejected
            if not rejected and len(mine) > _MOST_UNDETECTED:
                wrong.append(f"{fault}: no change of inputs in {len(mine)} runs was rejected")
    return {
        "runs": len(outcomes),
        "equal_at_once": sum(not o.resumed and not o.wrong for o in outcomes),
        "equal_when_resumed": sum(o.resumed and not o.wrong for o in outcomes),
        "hung": sum(o.wrong == _HUNG for o in outcomes),
        "too_late": sum(o.late for o in outcomes),
        "looked_finished": sum(o.wrong == _LOOKS_FINISHED for o in outcomes),
        "changed": sum(o.changes for o in outcomes),
        "changed_rejected": sum(o.rejected for o in outcomes),
        "wrong": wrong,
        "seconds": sum(o.seconds for o in outcomes),
        "faults": by_fault,
    }


def table(faults: dict[str, dict[str, Any]]) -> str:
    """Format the counts of each fault as the lines of a table."""
    names = ("runs", "too_late", "resumed", "rejected", "wrong")
    lines = [f"{'fault':<50}" + "".join(f"{name:>9}" for name in names) + "  exit codes"]
    for fault, counts in sorted(faults.items()):
        numbers = "".join(f"{counts.get(name, '-'):>9}" for name in names)
        codes = ", ".join(f"{code} ({times})" for code, times in counts["exit_codes"].items())
        lines.append(f"{fault:<50}{numbers}  {codes}")
    return "\n".join(lines)


@click.command()
@click.option("--runs", default=200, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--seconds", default=7200.0, show_default=True, help="Start no new run after this time."
)
@click.option("--jobs", default=1, show_default=True, help="Runs at a time.")
@click.option("--only", help="Only faults whose name contains this text.")
@click.option("--scratch", "folder", help="Folder for the data; failed runs are kept there.")
def main(
    runs: int, seed: int, seconds: float, jobs: int, only: str | None, folder: str | None
) -> None:
    """Inject faults into fits and print the results."""
    with scratch(folder) as place:
        report = summary(play_jobs(Path(place), runs, seed, seconds, only, jobs))
    print(table(report["faults"]), file=sys.stderr)
    print(json.dumps(report, indent=2))
    sys.exit(1 if report["wrong"] else 0)


if __name__ == "__main__":
    main()
