"""Inject a random fault into small fits at a random moment, and resume them if needed.

    python -m benchmarks.chaos --runs 200

Every run must end with the same bits as an undisturbed run, either directly, or after the fault was
removed and the run was resumed. No unfinished run may look finished. The exit code is 1 if a run
violates this or hangs. Faults: kill -9 of workers, nannies, clients and schedulers; signals; a
worker that hangs; deleted, truncated and flipped chunks; changed rows behind symbolic links and
changed weights; a mount point as output, also with a run that is replaced, and a full disk (require
permission to mount a tmpfs); a broken network link (requires permission to create network
namespaces).
"""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
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
from .faults import BIN, FAULTS, Cluster, Fault, Scene, mount_tmpfs, unmount

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
_HANG_SECONDS = 120
_REJECTED = 3  # exit code
_TMPFS_MEGABYTES = 16
_LOOKS_FINISHED = "unfinished run looks finished"


@dataclass(frozen=True)
class Outcome:
    """Result of a run; `wrong` describes the violation, and is empty if there is none."""

    fault: str
    code: int
    resumed: bool
    seconds: float
    wrong: str = ""


def attempt(*args: Any) -> Any:
    """Run a scrlm command in this process and return its result."""
    return CliRunner().invoke(scrlm, [*map(str, args), "--nworkers", "0"])


def command(*args: Any) -> None:
    """Run a scrlm command in this process; raise `AssertionError` if it fails."""
    result = attempt(*args)
    if result.exit_code != 0:
        raise AssertionError(
            f"{args[:2]} failed with exit code {result.exit_code}: {result.output[-500:]}"
        )


def bits(out: Path) -> dict[str, bytes]:
    """Return the content of all files of labels and model, by relative path."""
    files = [f for name in ("labels.zarr", "model.zarr") for f in (out / name).rglob("*")]
    return {str(file.relative_to(out)): file.read_bytes() for file in files if file.is_file()}


@dataclass(frozen=True)
class Inputs:
    """The command of a run, its features and options."""

    features: Path
    weights: Path | None
    replaces: bool = False

    @property
    def verb(self) -> str:
        return "fit" if self.weights is None else "kmeans"

    @property
    def options(self) -> tuple[Any, ...]:
        if self.weights is not None:
            return ("--sample-weight", self.weights, *KMEANS)
        return (*FIT, *(("--overwrite",) if self.replaces else ()))

    def again(self, out: Path) -> tuple[Any, ...]:
        """Return the command that resumes the run, or repeats it if it has written no record."""
        begun = find_aside(out) is not None if self.replaces else (out / "run.json").exists()
        if begun:
            return (self.verb, "--resume", out)
        return (self.verb, self.features, "--out", out, *self.options)


class Chaos:
    """A series of runs with faults: the features, the expected bits, and the cluster."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.rng = place, random.Random(seed)
        self.features, self.cluster = place / "features.zarr", Cluster(place)
        self.disk = place / "disk"
        self.has_disk = False
        self.expected: dict[str, bytes] = {}
        self.weights = place / "weights.npy"
        self.expected_weighted: dict[str, bytes] = {}
        self.replaced: dict[str, bytes] = {}  # of runs that are replaced

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
        return (self.has_disk or not mounts) and (self.cluster.link.up or not fault.on_link)

    def _wait(self, fit: subprocess.Popen[bytes], out: Path, weighted: bool) -> None:
        """Wait for a random moment: before the run starts, or during one of its passes."""
        folder = self.rng.choice(KMEANS_MOMENTS if weighted else MOMENTS)
        deadline = time.monotonic() + _HANG_SECONDS
        while folder and fit.poll() is None and time.monotonic() < deadline:
            place = Path(str(find_aside(out) or out))
            if any(place.glob(f"checkpoint/{folder}*/group.*")):
                break
            time.sleep(0.002)
        time.sleep(self.rng.uniform(0.0, 1.0 if not folder else 0.3))

    def _start(self, out: Path, fault: Fault, inputs: Inputs) -> subprocess.Popen[bytes]:
        where: tuple[Any, ...] = ("--nworkers", 0)
        if fault.on_cluster:
            self.cluster.repair()
            deadline = time.monotonic() + 60
            while not self.cluster.file.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            where = ("--scheduler-file", self.cluster.file, "--stall-timeout", "40s")
            where += ("--wait-workers", "120s")  # a slow start on a busy machine is not a failure
        words = [BIN / "scrlm", inputs.verb, inputs.features, "--out", out, *inputs.options, *where]
        with (out.parent / f"{out.name}.err").open("wb") as err:
            return subprocess.Popen(
                [str(word) for word in words], stdout=subprocess.DEVNULL, stderr=err
            )

    def run(self, number: int, fault: Fault) -> Outcome:
        """Start a fit, inject the fault, resume if necessary, and check the result."""
        begin = time.monotonic()
        folder = self.disk if fault.on_tmpfs else self.place
        out = folder / f"run-{number}"
        if fault.mounted:
            mount_tmpfs(out, _TMPFS_MEGABYTES)
        if fault.replaces:
            self._write_old(out)
        inputs = self._inputs(number, fault)
        fit = self._start(out, fault, inputs)
        weights = inputs.weights or self.weights
        scene = Scene(fit, self.cluster, inputs.features, weights, out, self.rng)
        self._wait(fit, out, fault.weighted)
        fault.do(scene)
        wrong, code = "", -999
        try:
            code = fit.wait(_HANG_SECONDS)
        except subprocess.TimeoutExpired:
            fit.kill()
            fit.wait()
            wrong = "hung"
        expected = self.expected_weighted if fault.weighted else self.expected
        # A run that was stopped before it wrote its record has read no rows yet.
        if fault.between is not None and code != 0 and not wrong and (out / "run.json").exists():
            fault.between(scene)
            wrong = self._expect_rejection(inputs, out)
        for undo in scene.undo:
            undo()
        stderr = (folder / f"{out.name}.err").read_text()
        wrong = wrong or self._judge(fault, code, out, stderr, expected)
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
        return Outcome(fault.name, code, resumed, time.monotonic() - begin, wrong)

    def _inputs(self, number: int, fault: Fault) -> Inputs:
        """Copy the inputs for a run that may change them."""
        features = self.place / f"features-{number}.zarr"
        shutil.copytree(self.features, features)
        if fault.arrange is not None:
            fault.arrange(features)
        if not fault.weighted:
            return Inputs(features, None, replaces=fault.replaces)
        weights = self.place / f"weights-{number}.npy"
        shutil.copy2(self.weights, weights)
        return Inputs(features, weights)

    def _expect_rejection(self, inputs: Inputs, out: Path) -> str:
        """Resume the run with changed inputs; return the failure unless they are rejected."""
        code = attempt(*inputs.again(out)).exit_code
        return "" if code == _REJECTED else f"exit code {code} of an attempt with changed inputs"

    def _judge(
        self, fault: Fault, code: int, out: Path, stderr: str, expected: dict[str, bytes]
    ) -> str:
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
        try:
            command(*inputs.again(out))
        except AssertionError as error:
            return f"could not be resumed: {error}"
        return ""

    def close(self) -> None:
        self.cluster.stop()
        self.cluster.link.remove()
        if self.has_disk:
            unmount(self.disk)


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
    """Return counts over all runs and per fault."""
    by_fault: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        counts = by_fault.setdefault(outcome.fault, Counter())
        counts["runs"] += 1
        counts[f"exit {outcome.code}"] += 1
        counts["resumed"] += outcome.resumed
        counts["wrong"] += bool(outcome.wrong)
    return {
        "runs": len(outcomes),
        "equal_at_once": sum(not o.resumed and not o.wrong for o in outcomes),
        "equal_when_resumed": sum(o.resumed and not o.wrong for o in outcomes),
        "hung": sum(o.wrong == "hung" for o in outcomes),
        "looked_finished": sum(o.wrong == _LOOKS_FINISHED for o in outcomes),
        "wrong": [f"{o.fault}: {o.wrong}" for o in outcomes if o.wrong],
        "seconds": sum(o.seconds for o in outcomes),
        "faults": {name: dict(counts) for name, counts in by_fault.items()},
    }


def table(faults: dict[str, dict[str, int]]) -> str:
    """Format the counts of each fault as the lines of a table."""
    lines = [f"{'fault':<50}{'runs':>6}{'at once':>9}{'resumed':>9}{'wrong':>7}"]
    for name, counts in sorted(faults.items()):
        resumed, wrong = counts["resumed"], counts["wrong"]
        at_once = counts["runs"] - resumed
        lines.append(f"{name:<50}{counts['runs']:>6}{at_once:>9}{resumed:>9}{wrong:>7}")
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
