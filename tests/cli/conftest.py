"""Fixtures that run commands: in a separate process, or in the test process where that is enough.

Helpers are fixtures because test files cannot import from each other in importlib mode.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from holding import Hold
from scrlm_cli.main import main
from zarr.codecs import Crc32cCodec

SCRLM = str(Path(sys.executable).parent / "scrlm")
DASK = str(Path(sys.executable).parent / "dask")
ROWS, FEATURES, CLUSTERS, CHUNK_ROWS = 4000, 64, 5, 1024
# Folders of absolute paths; the temporary ones contain test names and numbers.
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[^\s/]+/)+")
SYNTH = ("--rows", ROWS, "--features", FEATURES, "--clusters", CLUSTERS, "--outliers", 0.3)


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> dict[str, Any]:
        """Return the single object on stdout; NaN and infinity are not valid JSON."""
        assert self.code == 0, self.stderr
        assert self.stdout.count("\n") == 1, self.stdout
        content = json.loads(self.stdout, parse_constant=_no_constant)
        assert isinstance(content, dict)
        return content

    def ok(self) -> Outcome:
        assert self.code == 0, self.stderr
        return self

    def rejected(self, *facts: str, code: int = 3) -> str:
        """Return the error message; it must be a single line that contains all facts."""
        assert self.code == code, f"exit {self.code}\n{self.stderr}"
        assert self.stdout == ""
        assert "Traceback" not in self.stderr
        assert "Warning" not in self.stderr
        lines = self.stderr.splitlines()
        assert [line for line in lines if line.startswith("Error: ")] == lines[-1:], self.stderr
        for fact in facts:
            assert _contains(lines[-1], fact), f"{fact!r} is not in {lines[-1]!r}"
        return lines[-1]


def _contains(message: str, fact: str) -> bool:
    """Check that a message contains a value, a name or a path as a whole word.

    A parameter counts with or without its prefix: "clusters" matches "n_clusters". A fact without
    a slash is not searched in the folders of paths, which may contain any number or name.
    """
    text = message if "/" in fact else _FOLDERS.sub("", message)
    end = r"(?![\w-])" if fact.startswith("--") else r"(?!\.?[^\W_])"
    return re.search(rf"(?<![^\W_])(?<!\d[.,]){re.escape(fact)}{end}", text) is not None


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def _environment(**more: str) -> dict[str, str]:
    """Return the environment without variables that change where or how commands run."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DASK_", "PYTHONWARNINGS"))}
    # Test processes run commands in parallel, which would compete for the default port.
    # A command that hangs prints the stacks of its threads when it is aborted.
    return {**kept, "DASK_SCRLM__DASHBOARD_PORT": "0", "PYTHONFAULTHANDLER": "1", **more}


def _texts(args: tuple[Any, ...]) -> list[str]:
    return [str(arg) for arg in args]


@pytest.fixture(scope="session")
def invoke() -> Callable[..., Outcome]:
    """Run `scrlm ARGS` in this process; commands that compute use its threads."""

    def run(*args: Any, env: dict[str, str] | None = None, threads: bool = True) -> Outcome:
        texts = _texts(args)
        if threads and "theory" not in texts[:2]:
            texts += ["--nworkers", "0"]
        result = CliRunner(env={"DASK_SCHEDULER_ADDRESS": None, **(env or {})}).invoke(main, texts)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture(scope="session")
def scrlm() -> Callable[..., Outcome]:
    """Run `scrlm ARGS` in a separate process, without a terminal."""

    def run(*args: Any, program: tuple[str, ...] = (SCRLM,), timeout: float = 120) -> Outcome:
        done = subprocess.run(
            [*program, *_texts(args)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            env=_environment(),
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


# A small process, because the peak of a new process is at least the memory of its parent.
_MEASURE = """
import os, resource, subprocess, sys
report, files, *command = sys.argv[1:]
if int(files):
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(files), int(files)))
code = subprocess.call(command)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
with open(report, "w") as file:
    file.write(str(peak))
sys.exit(code if code >= 0 else 128 - code)
"""


@dataclass(frozen=True)
class Measured(Outcome):
    """Outcome of a command, and the peak memory of its largest process."""

    peak_bytes: int


@pytest.fixture
def measured(tmp_path: Path, scrlm: Callable[..., Outcome]) -> Callable[..., Measured]:
    """Run `scrlm ARGS` in a separate process, with at most `open_files` open files if given."""

    def run(*args: Any, open_files: int = 0, timeout: float = 300) -> Measured:
        report = tmp_path / "peak-bytes"
        measure = (sys.executable, "-S", "-c", _MEASURE, str(report), str(open_files), SCRLM)
        outcome = scrlm(*args, program=measure, timeout=timeout)
        return Measured(outcome.code, outcome.stdout, outcome.stderr, int(report.read_text()))

    return run


def _restore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Running:
    """A running command; its output goes to files so that tests can read it meanwhile."""

    def __init__(self, folder: Path, args: tuple[Any, ...], **environment: str) -> None:
        folder.mkdir(parents=True)
        self._stdout, self._stderr = folder / "stdout", folder / "stderr"
        with self._stdout.open("w") as out, self._stderr.open("w") as err:
            self.process = subprocess.Popen(
                _texts(args),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=_environment(**environment),
                # A separate process group can be signalled in the way Ctrl-C in a terminal does.
                start_new_session=True,
                # Background jobs of a shell ignore SIGINT, and children inherit that.
                preexec_fn=_restore_interrupts,
            )

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until `text` appears on stderr."""
        self.until(lambda: text in self.stderr)

    def until(self, condition: Callable[[], object], timeout: float = 120) -> None:
        """Wait for a condition; the timeout is generous, so only a hanging command exceeds it."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, self.stderr
            assert time.monotonic() < deadline, self.stderr
            time.sleep(0.02)

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def outcome(self, timeout: float = 120) -> Outcome:
        """Return the outcome; fail if the command does not end within `timeout` seconds."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait()
            pytest.fail(f"no end after {timeout} s: {self.stderr}")
        return Outcome(code, self._stdout.read_text(), self.stderr)

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Running]]:
    """Start `scrlm ARGS` (or another program) without waiting; stop it after the tests."""
    folder, started = tmp_path_factory.mktemp("running"), []

    def run(*args: Any, program: tuple[str, ...] = (SCRLM,), **environment: str) -> Running:
        running = Running(folder / str(len(started)), (*program, *args), **environment)
        started.append(running)
        return running

    yield run
    for running in reversed(started):
        running.stop()


@pytest.fixture(scope="session")
def dask_scheduler() -> Callable[..., str]:
    """Return the address of a scheduler once its file exists and its workers are connected."""

    def wait(running: Running, file: Path, workers: int = 0) -> str:
        running.until(lambda: is_json(file))
        address = str(json.loads(file.read_text())["address"])
        if workers:
            from distributed import Client

            with Client(address, timeout=60, set_as_default=False) as client:
                client.wait_for_workers(workers, timeout=120)
        return address

    return wait


def is_json(file: Path) -> bool:
    """Check that the file exists and is written completely."""
    try:
        json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return False
    return True


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Block the loss pass of all commands that are started with the environment of the hold."""
    hold = Hold(tmp_path / "hold")
    hold.take()
    yield hold
    hold.release()


@dataclass(frozen=True)
class RoundTrip:
    """Outputs of synth, fit, evaluate, predict and theory, each run as a command with --json."""

    features: Path
    run: Path
    predicted: Path
    outcomes: dict[str, Outcome]


@pytest.fixture(scope="session")
def round_trip(
    tmp_path_factory: pytest.TempPathFactory, scrlm: Callable[..., Outcome]
) -> RoundTrip:
    folder = tmp_path_factory.mktemp("round-trip")
    features, run, predicted = folder / "features.zarr", folder / "run", folder / "predicted.zarr"
    common = ("--nworkers", 0, "--json")
    blocks = ("--block-rows", CHUNK_ROWS)
    commands = {
        "synth": ("synth", features, *SYNTH, "--chunk-size", "64kB", *common),
        "theory": (
            "paper",
            "theory",
            "--rows",
            ROWS,
            "--features",
            5000,
            "--clusters",
            9,
            "--json",
        ),
        "fit": ("fit", features, "--rho", 0.5, "--out", run, "--clusters", 10, *blocks, *common),
        "evaluate": ("evaluate", run, *common),
        "predict": ("predict", run, features, "--out", predicted, *blocks, *common),
    }
    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor() as pool:
        for together in (("synth", "theory"), ("fit",), ("evaluate", "predict")):
            running = {name: pool.submit(scrlm, *commands[name]) for name in together}
            outcomes |= {name: future.result().ok() for name, future in running.items()}
    return RoundTrip(features, run, predicted, outcomes)


@pytest.fixture(scope="session")
def features(round_trip: RoundTrip) -> Path:
    """4000 rows of 64 features in 4 chunks: 5 well-separated clusters and 30 % outliers."""
    return round_trip.features


@pytest.fixture(scope="session")
def rows(features: Path) -> np.ndarray:
    return zarr.open_array(features / "features", mode="r")[:]


@pytest.fixture(scope="session")
def truth(features: Path) -> np.ndarray:
    return zarr.open_array(features / "labels", mode="r")[:]


@pytest.fixture(scope="session")
def store() -> Callable[..., Path]:
    """Write an array as a Zarr store; default: chunks of 1024 rows with checksums."""

    def write(path: Path, values: np.ndarray, **options: Any) -> Path:
        defaults = {
            "chunks": (min(CHUNK_ROWS, max(len(values), 1)), *values.shape[1:]),
            "compressors": [Crc32cCodec()],
            "config": {"write_empty_chunks": True},
        }
        array = zarr.create_array(
            path, shape=values.shape, dtype=values.dtype, **{**defaults, **options}
        )
        array[...] = values
        return path

    return write


@pytest.fixture
def my_features(features: Path, tmp_path: Path) -> Path:
    """A copy of the features store that a test may damage."""
    return Path(shutil.copytree(features, tmp_path / "features.zarr"))


@pytest.fixture
def my_run(round_trip: RoundTrip, tmp_path: Path) -> Path:
    """A copy of a finished run that a test may damage."""
    return Path(shutil.copytree(round_trip.run, tmp_path / "my-run"))


@pytest.fixture(scope="session")
def labels_of() -> Callable[[Path], np.ndarray]:
    """Read the labels of a run directory or of a labels store."""

    def read(path: Path) -> np.ndarray:
        inner = path / "labels.zarr" if (path / "run.json").exists() else path
        return zarr.open_array(inner / "labels", mode="r")[:]

    return read


@pytest.fixture(scope="session")
def record_of() -> Callable[[Path], dict[str, Any]]:
    def read(run: Path) -> dict[str, Any]:
        return json.loads((run / "run.json").read_text(), parse_constant=_no_constant)

    return read


@pytest.fixture(scope="session")
def files_of() -> Callable[[Path], dict[str, bytes]]:
    """Read every file below a path, for a byte-by-byte comparison."""

    def read(path: Path) -> dict[str, bytes]:
        found = sorted(file for file in path.rglob("*") if file.is_file())
        return {str(file.relative_to(path)): file.read_bytes() for file in found}

    return read


@pytest.fixture(scope="session")
def without_times() -> Callable[[dict[str, bytes]], dict[str, Any]]:
    """Decode the attributes of a store; remove the digest that depends on the times of files."""

    def decode(files: dict[str, bytes]) -> dict[str, Any]:
        node = json.loads(files["zarr.json"])
        node["attributes"].pop("files_digest", None)
        return {**files, "zarr.json": node}

    return decode


@pytest.fixture(scope="session")
def results_of(files_of: Callable[[Path], dict[str, bytes]]) -> Callable[[Path], dict[str, bytes]]:
    """Read the labels store and the model of a run as bytes, without the times in run.json."""

    def read(run: Path) -> dict[str, bytes]:
        found = {
            **{f"labels/{k}": v for k, v in files_of(run / "labels.zarr").items()},
            **{f"model/{k}": v for k, v in files_of(run / "model.zarr").items()},
        }
        assert any(name.startswith("labels/labels/c/") for name in found)
        assert any(name.startswith("model/centers/c/") for name in found)
        return found

    return read
