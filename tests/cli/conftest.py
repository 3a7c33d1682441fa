"""Commands as people run them: in a process of their own, or in this one where that is enough.

Helpers are fixtures: with importlib mode, test files cannot import from each other.
"""

from __future__ import annotations

import json
import os
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
SYNTH = ("--rows", ROWS, "--features", FEATURES, "--clusters", CLUSTERS, "--outliers", 0.3)


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it printed."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> dict[str, Any]:
        """The one object on stdout; NaN and infinity are no JSON."""
        assert self.code == 0, self.stderr
        assert self.stdout.count("\n") == 1, self.stdout
        content = json.loads(self.stdout, parse_constant=_no_constant)
        assert isinstance(content, dict)
        return content

    def ok(self) -> Outcome:
        assert self.code == 0, self.stderr
        return self

    def refused(self, *words: str, code: int = 3) -> str:
        """Ended by one message that holds the words; returns it."""
        assert self.code == code, f"exit {self.code}\n{self.stderr}"
        assert self.stdout == ""
        assert "Traceback" not in self.stderr
        assert "Warning" not in self.stderr
        lines = self.stderr.splitlines()
        assert [line for line in lines if line.startswith("Error: ")] == lines[-1:], self.stderr
        for word in words:
            assert word in lines[-1]
        return lines[-1]


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def _environment(**more: str) -> dict[str, str]:
    """Ours without what would change where or how commands run."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DASK_", "PYTHONWARNINGS"))}
    # both of the suite's processes run commands at a time, which would compete for the usual port
    return {**kept, "DASK_SCRLM__DASHBOARD_PORT": "0", **more}


def _texts(args: tuple[Any, ...]) -> list[str]:
    return [str(arg) for arg in args]


@pytest.fixture(scope="session")
def invoke() -> Callable[..., Outcome]:
    """Run `scrlm ARGS` in this process, data commands in its threads."""

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
    """Run `scrlm ARGS` in a process of its own, without a terminal."""

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


def _hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Running:
    """A command under way; its output goes to files, so that it can be watched."""

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
                # a group of its own, to be signalled as Ctrl-C in a terminal does
                start_new_session=True,
                # a job in a shell's background ignores Ctrl-C, and so would its children
                preexec_fn=_hear_interrupts,
            )

    @property
    def stderr(self) -> str:
        return self._stderr.read_text()

    def wait_for(self, text: str) -> None:
        """Until `text` stands on stderr."""
        self.until(lambda: text in self.stderr)

    def until(self, condition: Callable[[], object], timeout: float = 120) -> None:
        """Wait while it runs; only a command that hangs takes so long, also on a busy machine."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, self.stderr
            assert time.monotonic() < deadline, self.stderr
            time.sleep(0.02)

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def outcome(self, timeout: float = 120) -> Outcome:
        """How it ended, no later than `timeout` seconds from now."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"hangs for {timeout} s: {self.stderr}")
        return Outcome(code, self._stdout.read_text(), self.stderr)

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Running]]:
    """Start `scrlm ARGS` (or another program) and go on; what still runs at the end is stopped."""
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
    """Wait until a scheduler has written its file, and has workers; its address."""

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
    """Whether all of it is there."""
    try:
        json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return False
    return True


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Taken: all blocks of the loss wait in commands that are started with its environment."""
    hold = Hold(tmp_path / "hold")
    hold.take()
    yield hold
    hold.release()


@dataclass(frozen=True)
class RoundTrip:
    """synth, fit, evaluate, predict, theory: each a real command with --json."""

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
    """4000 rows of 64 features in 4 chunks: 5 clusters and 30 % outliers, easy to tell apart."""
    return round_trip.features


@pytest.fixture(scope="session")
def rows(features: Path) -> np.ndarray:
    return zarr.open_array(features / "features", mode="r")[:]


@pytest.fixture(scope="session")
def truth(features: Path) -> np.ndarray:
    return zarr.open_array(features / "labels", mode="r")[:]


@pytest.fixture(scope="session")
def store() -> Callable[..., Path]:
    """Write an array as a Zarr store, in chunks of 1024 rows with checksums unless told."""

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
    """A copy of the features store, to be damaged."""
    return Path(shutil.copytree(features, tmp_path / "features.zarr"))


@pytest.fixture
def my_run(round_trip: RoundTrip, tmp_path: Path) -> Path:
    """A copy of a finished run, to be damaged."""
    return Path(shutil.copytree(round_trip.run, tmp_path / "my-run"))


@pytest.fixture(scope="session")
def labels_of() -> Callable[[Path], np.ndarray]:
    """The labels in a run directory or in a labels store."""

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
    """Every file below a path, to be compared byte for byte."""

    def read(path: Path) -> dict[str, bytes]:
        found = sorted(file for file in path.rglob("*") if file.is_file())
        return {str(file.relative_to(path)): file.read_bytes() for file in found}

    return read


@pytest.fixture(scope="session")
def results_of(files_of: Callable[[Path], dict[str, bytes]]) -> Callable[[Path], dict[str, bytes]]:
    """What a fit found, as bytes: the labels store and the model, without run.json's times."""

    def read(run: Path) -> dict[str, bytes]:
        found = {
            **{f"labels/{k}": v for k, v in files_of(run / "labels.zarr").items()},
            **{f"model/{k}": v for k, v in files_of(run / "model.zarr").items()},
        }
        assert any(name.startswith("labels/labels/c/") for name in found)
        assert any(name.startswith("model/centers/c/") for name in found)
        return found

    return read
