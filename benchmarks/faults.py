"""Faults for `benchmarks.chaos`, and the cluster into which they are injected."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zarr

from tests.flaky_proxy import FlakyProxy
from tests.s3server import BUCKET, KEY, SECRET, WEED, S3Server

BIN = Path(sys.executable).parent
_WORKER_SECONDS = 60.0  # time limit for the start of a worker
# The smallest timeouts that Dask accepts, so that a hanging worker is removed during a run.
_QUICK = {
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "11s",
}


class Link:
    """A link to a network namespace that acts as a second host; `up` if it could be created."""

    def __init__(self) -> None:
        # each process has its own network: with the same addresses, only one link would work
        network = ip_address("100.64.0.0") + 4 * (os.getpid() % 2**20)
        self.here, self.there = str(network + 1), str(network + 2)
        self.name = f"scrlm{os.getpid()}"
        self.device = f"v{os.getpid()}"  # at most 15 characters
        self.up = shutil.which("ip") is not None and all(map(_ip, self._steps()))

    def _steps(self) -> list[str]:
        inside = f"-n {self.name}"
        return [
            f"netns add {self.name}",
            " ".join(("link add", self.device, "type veth", "peer", "name eth0 netns", self.name)),
            f"addr add {self.here}/30 dev {self.device}",
            f"{inside} addr add {self.there}/30 dev eth0",
            f"{inside} link set eth0 up",
            f"{inside} link set lo up",
            f"link set {self.device} up",
        ]

    def cut(self) -> None:
        _ip(f"link set {self.device} down")

    def restore(self) -> None:
        _ip(f"link set {self.device} up")

    def remove(self) -> None:
        _ip(f"link del {self.device}")
        _ip(f"netns del {self.name}")


def _ip(words: str) -> bool:
    """Run the `ip` command; return whether it succeeded."""
    return subprocess.run(["ip", *words.split()], capture_output=True).returncode == 0


@dataclass
class Cluster:
    """A scheduler and two workers with nannies, repaired before each run that uses it.

    The second worker is on the second host if network namespaces are available.
    """

    folder: Path
    scheduler: subprocess.Popen[bytes] | None = None
    nannies: list[subprocess.Popen[bytes]] = field(default_factory=list)
    link: Link = field(default_factory=Link)

    @property
    def file(self) -> Path:
        return self.folder / "scheduler.json"

    def repair(self) -> None:
        """Start the scheduler and the workers that are not running."""
        if self.scheduler is None or self.scheduler.poll() is not None:
            self.stop()
            self.file.unlink(missing_ok=True)
            where = ("--host", self.host, "--port", "0", "--dashboard-address", "127.0.0.1:0")
            self.scheduler = self._start("scheduler", *where)
        for i, nanny in enumerate(self.nannies):
            if nanny.poll() is not None:
                self.nannies[i] = self._start_worker(i)
        while len(self.nannies) < 2:
            self.nannies.append(self._start_worker(len(self.nannies)))

    @property
    def host(self) -> str:
        return self.link.here if self.link.up else "127.0.0.1"

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        away = number == 1 and self.link.up
        host = self.link.there if away else self.host
        options = ("--host", host, "--nthreads", "1", "--memory-limit", "2GB", "--no-dashboard")
        return self._start("worker", *options, netns=self.link.name if away else None)

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes, which are children of the nannies."""
        found = []
        for nanny in self.nannies:
            with suppress(psutil.Error):
                for child in psutil.Process(nanny.pid).children(recursive=True):
                    if any("spawn_main" in word for word in child.cmdline()):
                        found.append(child)
        return found

    def stop(self) -> None:
        for worker in self.workers():
            with suppress(psutil.Error):
                worker.kill()
        for process in (*self.nannies, *([self.scheduler] if self.scheduler else ())):
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
        self.scheduler, self.nannies = None, []

    def _start(self, role: str, *options: str, netns: str | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", role, "--scheduler-file", str(self.file), *options]
        if netns is not None:
            command = ["nsenter", f"--net=/run/netns/{netns}", *command]
        with (self.folder / f"{role}.log").open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **_QUICK}, cwd=self.folder
            )


class FlakyStore:
    """An S3 server behind a proxy that is healthy until `disturb` is called."""

    origin = f"s3://{BUCKET}"
    url = f"{origin}/features.zarr"

    def __init__(self, folder: Path, seed: int, host: str) -> None:
        folder.mkdir()
        self._server = S3Server(folder)
        port = int(self._server.endpoint.rpartition(":")[2])
        kinds = ("delay", "503", "500", "drop", "truncate")
        self._proxy = FlakyProxy(port, seed, 0.2, kinds, host)
        self._proxy.healthy = True

    @staticmethod
    def is_possible() -> bool:
        return WEED.exists()

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a command that reads or writes through the proxy."""
        texts = (f"key={KEY}", f"secret={SECRET}")
        texts += (f"client_kwargs.endpoint_url={self._proxy.endpoint}",)
        return tuple(part for text in texts for part in ("--storage-option", text))

    @property
    def faults(self) -> int:
        """The number of responses so far that were late, wrong or missing."""
        return self._proxy.counts.total() - self._proxy.counts["pass"]

    def disturb(self) -> None:
        self._proxy.healthy = False

    def restore(self) -> None:
        self._proxy.healthy = True

    def close(self) -> None:
        self._proxy.close()
        self._server.kill()


@dataclass
class Scene:
    """The processes and files that a fault may affect."""

    fit: subprocess.Popen[bytes]
    cluster: Cluster
    features: Path
    weights: Path
    out: Path
    rng: random.Random
    store: FlakyStore | None  # contains the features
    undo: list[Callable[[], Any]] = field(default_factory=list)  # called before the run is resumed
    missed: bool = False  # the fault had nothing to act on


@dataclass(frozen=True)
class Fault:
    """A fault, the exit codes that are allowed after it, and its requirements."""

    name: str
    do: Callable[[Scene], None]
    codes: tuple[int, ...]
    on_cluster: bool = False  # otherwise the fit uses threads of its own process
    on_tmpfs: bool = False
    on_link: bool = False  # requires the worker on the second host
    mounted: bool = False  # the output is a mount point; requires a tmpfs
    replaces: bool = False  # the output is a complete run, replaced with --overwrite
    weighted: bool = False  # the command is k-means with weights of the rows
    scans: bool = False  # the command is a fit that chooses rho; otherwise, rho is given
    cuts: bool = False  # the command is a cut of many clusters
    flaky: bool = False  # the features are in a `FlakyStore`
    # `do` changes inputs, which the run must detect. The process of the fit is stopped meanwhile.
    changes: bool = False
    arrange: Callable[[Path], None] | None = None  # called with the features before the fit
    # Called after the fit ended early. The next attempt must then be rejected until it is undone.
    between: Callable[[Scene], None] | None = None

    @property
    def is_signal(self) -> bool:
        """True if the fault ends the process, unless it comes too late."""
        return any(code < 0 for code in self.codes)


def _signal(number: int) -> Callable[[Scene], None]:
    return lambda scene: scene.fit.send_signal(number)


def _choose_worker(scene: Scene) -> psutil.Process | None:
    """Return a worker process; wait for it while the nannies start it. None if the fit ends."""
    deadline = time.monotonic() + _WORKER_SECONDS
    while scene.fit.poll() is None and time.monotonic() < deadline:
        workers = scene.cluster.workers()
        if workers:
            return scene.rng.choice(workers)
        time.sleep(0.02)
    scene.missed = True
    return None


def _kill_worker(scene: Scene) -> None:
    worker = _choose_worker(scene)
    if worker is not None:
        worker.kill()


def _kill_nanny(scene: Scene) -> None:
    scene.rng.choice(scene.cluster.nannies).kill()


def _kill_scheduler(scene: Scene) -> None:
    assert scene.cluster.scheduler is not None
    scene.cluster.scheduler.kill()


def _freeze_worker(scene: Scene) -> None:
    frozen = _choose_worker(scene)
    if frozen is None:
        return
    frozen.suspend()

    def kill() -> None:
        with suppress(psutil.Error):
            frozen.kill()

    scene.undo.append(kill)


def _cut_link(scene: Scene) -> None:
    """Disconnect the worker on the second host; undoing kills its nanny and restores the link."""
    scene.cluster.link.cut()
    scene.undo += [scene.cluster.nannies[1].kill, scene.cluster.link.restore]


def _disturb_store(scene: Scene) -> None:
    assert scene.store is not None
    scene.store.disturb()
    scene.undo.append(scene.store.restore)


def _damage(how: Callable[[Path], None]) -> Callable[[Scene], None]:
    def do(scene: Scene) -> None:
        chunks = sorted((scene.features / "features" / "c").rglob("0"))
        chunk = scene.rng.choice([path for path in chunks if path.is_file()])
        original = chunk.read_bytes()
        how(chunk)
        scene.undo.append(lambda: chunk.write_bytes(original))

    return do


def _cut(chunk: Path) -> None:
    chunk.write_bytes(chunk.read_bytes()[:-7])


def _flip(chunk: Path) -> None:
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 0x10
    chunk.write_bytes(content)


def link_chunk_folder(features: Path) -> None:
    """Move the chunks to another folder, and replace their folder by a symbolic link."""
    chunks, moved = features / "features" / "c", features.with_suffix(".chunks")
    chunks.rename(moved)
    chunks.symlink_to(moved)


def link_chunks(features: Path) -> None:
    """Move the chunks to another folder, and replace each by a symbolic link."""
    chunks, moved = features / "features" / "c", features.with_suffix(".chunks")
    shutil.copytree(chunks, moved)
    for chunk in _chunks(features):
        target = moved / chunk.relative_to(chunks)
        chunk.unlink()
        chunk.symlink_to(target)


def _chunks(features: Path) -> list[Path]:
    folder = features / "features" / "c"
    return sorted(Path(root) / name for root, _, names in os.walk(folder) for name in names)


def change_rows(scene: Scene) -> None:
    """Replace the rows of a chunk by other rows, with a correct checksum, in the same file."""
    chunk = scene.rng.choice(_chunks(scene.features))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "features"
        shutil.copytree(scene.features / "features", copy)
        array = zarr.open_array(copy, mode="r+")
        array[...] = np.asarray(array[...]) + 1.0
        changed = (copy / chunk.relative_to(scene.features / "features")).read_bytes()
    original = chunk.read_bytes()
    chunk.write_bytes(changed)
    scene.undo.append(lambda: chunk.write_bytes(original))


def _change_weights(scene: Scene) -> None:
    """Replace the weights by others in a file of the same size."""
    original = scene.weights.read_bytes()
    np.save(scene.weights, np.load(scene.weights) * 2.0 + 1.0)
    scene.undo.append(lambda: scene.weights.write_bytes(original))


def _fill_disk(scene: Scene) -> None:
    """Fill the small tmpfs that contains the run."""
    filler = scene.out.parent / "filler"
    with suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(b"\0" * 4096)
            file.flush()
    scene.undo.append(filler.unlink)


def mount_tmpfs(place: Path, megabytes: int) -> bool:
    """Mount a small tmpfs; return whether it succeeded."""
    place.mkdir(parents=True, exist_ok=True)
    if shutil.which("mount") is None:
        return False
    options = f"size={megabytes}m"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    return subprocess.run(command, capture_output=True).returncode == 0


def unmount(place: Path) -> None:
    for _ in range(20):
        if subprocess.run(["umount", str(place)], capture_output=True).returncode == 0:
            return
        time.sleep(0.2)


FAULTS = (
    Fault("kill -9 of the client", _signal(signal.SIGKILL), (0, -9)),
    # -15, -10 and -2: the signal arrived before its handler was installed.
    Fault("SIGTERM", _signal(signal.SIGTERM), (0, 143, -15)),
    Fault("SIGUSR1", _signal(signal.SIGUSR1), (0, 143, -10)),
    Fault("SIGINT", _signal(signal.SIGINT), (0, 130, -2)),
    Fault("SIGTERM during the scan", _signal(signal.SIGTERM), (0, 143, -15), scans=True),
    Fault("SIGTERM during a cut", _signal(signal.SIGTERM), (0, 143, -15), cuts=True),
    Fault("chunk deleted", _damage(Path.unlink), (0, 3), changes=True),
    Fault("chunk truncated", _damage(_cut), (0, 3), changes=True),
    Fault("chunk flipped", _damage(_flip), (0, 3), changes=True),
    Fault("disk full", _fill_disk, (0, 1, 3), on_tmpfs=True),
    Fault("kill -9 of a worker", _kill_worker, (0,), on_cluster=True),
    Fault("kill -9 of a nanny", _kill_nanny, (0,), on_cluster=True),
    Fault("kill -9 of the scheduler", _kill_scheduler, (0, 4), on_cluster=True),
    Fault("SIGSTOP of a worker", _freeze_worker, (0, 4), on_cluster=True),
    Fault("link of a worker cut", _cut_link, (0, 4), on_cluster=True, on_link=True),
    Fault("kill -9 of the client of a cluster", _signal(signal.SIGKILL), (0, -9), on_cluster=True),
    Fault("SIGTERM to the client of a cluster", _signal(signal.SIGTERM), (0, 143, -15), True),
    Fault(
        "rows behind a linked folder changed",
        change_rows,
        (0, 3),
        arrange=link_chunk_folder,
        changes=True,
    ),
    Fault(
        "rows behind linked chunks changed",
        change_rows,
        (0, 3),
        arrange=link_chunks,
        changes=True,
    ),
    Fault(
        "rows behind a link changed between attempts",
        _signal(signal.SIGTERM),
        (0, 143, -15),
        arrange=link_chunk_folder,
        between=change_rows,
    ),
    Fault("weights changed", _change_weights, (0, 3), weighted=True, changes=True),
    Fault("store slow and flaky", _disturb_store, (0, 3, 4), flaky=True),
    Fault(
        "store of a cluster slow and flaky",
        _disturb_store,
        (0, 3, 4),
        on_cluster=True,
        weighted=True,
        flaky=True,
    ),
    Fault(
        "SIGTERM with a mount point as output", _signal(signal.SIGTERM), (0, 143, -15), mounted=True
    ),
    Fault(
        "kill -9 while a run on a mount point is replaced",
        _signal(signal.SIGKILL),
        (0, -9),
        mounted=True,
        replaces=True,
    ),
)
