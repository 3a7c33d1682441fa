"""Files are never executed as code, and secrets are never written or shown."""

from __future__ import annotations

import ast
import json
import os
import pickle
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fsspec
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from scrlm_cli.main import main

import scrlm_dask
import scrlm_dask.storage.arrays as arrays
from scrlm_dask.errors import StoreError
from scrlm_dask.storage.arrays import open_node
from scrlm_dask.storage.locations import locate

PACKAGES = (Path(scrlm_dask.__file__).parent, Path(__file__).parents[1] / "cli")
FORBIDDEN = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
SECRET, TOKEN = "s3cr3t-of-the-store", "t0ken-of-the-store"
# a signed query with characters that are percent-encoded in URLs, a number, and a control character
SIGNATURE, PIN, KEY = "sv=2020&sig=aXk9Zt+b/cQ7wPu==", 91827364, "first-line\tof-the-key"
PIECES = ("sv=2020", "aXk9Zt", "cQ7wPu", str(PIN), "first-line", "of-the-key")


def sources() -> list[tuple[Path, ast.Module]]:
    files = [file for folder in PACKAGES for file in folder.rglob("*.py")]
    assert len(files) > 100
    return [(file, ast.parse(file.read_text())) for file in files]


def test_package_does_not_unpickle() -> None:
    for file, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert not {name.name.split(".")[0] for name in node.names} & FORBIDDEN, file
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in FORBIDDEN, file
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in ("eval", "exec", "yaml.load"), file
                if name in ("np.load", "numpy.load"):
                    given = {k.arg: ast.unparse(k.value) for k in node.keywords}
                    assert given.get("allow_pickle") == "False", file


class Trap:
    """An object that creates a directory when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("dtype", ["<f4", "|O"])
@pytest.mark.parametrize("key", ["filters", "compressor"])
def test_store_with_a_pickle_codec_is_rejected(tmp_path: Path, dtype: str, key: str) -> None:
    store, mark = tmp_path / "features.zarr", tmp_path / "mark"
    array = zarr.create_array(
        store, shape=(4, 2), chunks=(4, 2), dtype="<f4", zarr_format=2, compressors=None
    )
    array[:] = 1.0
    metadata = json.loads((store / ".zarray").read_text())
    codec = {"id": "pickle", "protocol": 5}
    metadata |= {"dtype": dtype, "fill_value": None if dtype == "|O" else 0.0}
    metadata[key] = [codec] if key == "filters" else codec
    (store / ".zarray").write_text(json.dumps(metadata))
    (chunk,) = [file for file in store.iterdir() if not file.name.startswith(".z")]
    chunk.write_bytes(pickle.dumps(Trap(mark)))
    for command in (
        ("fit", store, "--out", tmp_path / "run"),
        ("inspect", store, "--stats"),
        ("ingest", store, tmp_path / "other.zarr"),
        ("evaluate", tmp_path / "run", "--truth", store),
    ):
        result = CliRunner().invoke(main, [*map(str, command), "--nworkers", "0"])
        assert result.exit_code == 3, (command, result.output)
    assert not mark.exists()


@pytest.fixture
def remote(tmp_path: Path) -> str:
    """Write a features store to a URL that is opened with secrets."""
    url = f"memory://{tmp_path.name}"
    rows = np.random.default_rng(0).normal(size=(200, 4)).astype("f4")
    arrays.create_group(f"{url}/features.zarr", {})
    arrays.create_array(f"{url}/features.zarr/features", (200, 4), (50, 4), "f4", np.nan)
    arrays.write_rows(f"{url}/features.zarr/features", 0, rows)
    return url


def test_secrets_are_never_written_or_shown(remote: str, tmp_path: Path) -> None:
    """Output with -v, errors, run.json, checkpoints and stores do not contain secrets."""
    secrets = ("--storage-option", f"key={SECRET}", "--storage-option", f"client.token={TOKEN}")
    common = ("--nworkers", "0", "-v", *secrets)
    outputs = []

    def invoke(*args: str) -> int:
        result = CliRunner().invoke(main, [*args, *common])
        outputs.append(result.output + str(result.exception or ""))
        return result.exit_code

    features, run = f"{remote}/features.zarr", f"{remote}/run"
    assert invoke("fit", features, "--out", run, "--json") == 0
    assert invoke("verify", run) == 0
    assert invoke("predict", run, features, "--out", f"{remote}/labels.zarr") == 0
    files = fsspec.filesystem("memory")
    chunk = f"/{tmp_path.name}/features.zarr/features/c/3/0"
    content = files.cat_file(chunk)
    files.pipe_file(chunk, content[:-8] + b"\x00" * 8)  # the fit stops in the middle
    assert invoke("fit", features, "--out", f"{remote}/stopped", "--block-rows", "50") == 3
    files.rm_file(chunk)
    assert invoke("fit", features, "--out", f"{remote}/never") == 3
    assert invoke("fit", f"{remote}/nothing", "--out", f"{remote}/never") == 3
    written = files.find(f"/{tmp_path.name}")
    assert any(name.endswith("run/run.json") for name in written)
    for text in (SECRET, TOKEN):
        assert all(text not in output for output in outputs)
        assert all(text.encode() not in files.cat_file(name) for name in written)


class Rejecting(ThreadingHTTPServer):
    """A server of the files in a folder; it rejects every request after the first `n_accepted`."""

    request_queue_size = 128  # with the default of 5, connections of a busy machine are dropped

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(Quoting, directory=str(folder)))
        self.n_accepted, self.status = 10**9, 403
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def accepts(self) -> bool:
        with self.lock:
            self.n_accepted -= 1
            return self.n_accepted >= 0


class Quoting(SimpleHTTPRequestHandler):
    """Answers whose reasons quote the request."""

    server: Rejecting

    def do_GET(self) -> None:
        if self.server.accepts():
            super().do_GET()
        else:
            self._reject()

    def do_HEAD(self) -> None:
        if self.server.accepts():
            super().do_HEAD()
        else:
            self._reject()

    def _reject(self) -> None:
        key = self.headers.get("X-Key")
        reason = f"no {self.path} {unquote(self.path)} {key!r} {json.dumps(key)} {key}"
        self.send_response(self.server.status, reason)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


OPTIONS = {"params": {"sig": SIGNATURE, "pin": PIN}, "client_kwargs": {"headers": {"X-Key": KEY}}}


@pytest.fixture(scope="module")
def rejecting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rejecting]:
    """Serve a features store and a run of these features."""
    folder = tmp_path_factory.mktemp("served")
    server = Rejecting(folder)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    scrlm_dask.FeatureStore.write(
        np.random.default_rng(0).normal(size=(200, 4)).astype("f4"), folder / "x.zarr"
    )
    config = scrlm_dask.FitConfig(rho=1.0, n_clusters=2)
    url = f"{server.url}/x.zarr"
    scrlm_dask.fit(url, config, out=folder / "run", storage_options=OPTIONS)
    zarr.create_array(folder / "y.zarr", data=np.ones(200, np.int64))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


READING = {
    "inspect": ("inspect", "{url}/x.zarr", "--stats", "--verify"),
    "fit": ("fit", "{url}/x.zarr", "--out", "{out}", "--rho", "1"),
    "kmeans": ("kmeans", "{url}/x.zarr", "--out", "{out}", "--clusters", "2"),
    "weights": (
        *("kmeans", "{url}/x.zarr", "--out", "{out}", "--clusters", "2"),
        *("--sample-weight", "{url}/y.zarr"),
    ),
    "plan": ("plan", "{url}/x.zarr"),
    "rho": ("rho", "{url}/x.zarr"),
    "predict": ("predict", "{url}/run", "{url}/x.zarr", "--out", "{out}"),
    "verify": ("verify", "{url}/run"),
    "evaluate": ("evaluate", "{url}/run", "--truth", "{url}/y.zarr"),
    "cut": ("cut", "{url}/run", "--clusters", "1", "--out", "{out}"),
    "ingest": ("ingest", "{url}/x.zarr", "{out}"),
    "export": ("export", "{url}/run", "--out", "{out}"),
    "report": ("report", "{url}/run", "--out", "{out}.html"),
}


@pytest.mark.parametrize(("n_accepted", "status"), [(0, 403), (8, 500), (30, 403), (10**9, 500)])
@pytest.mark.parametrize("name", READING)
def test_secrets_are_hidden_when_a_web_server_rejects_requests(
    rejecting: Rejecting, tmp_path: Path, name: str, n_accepted: int, status: int
) -> None:
    """Commands fail at the first or at a later request, or not at all."""
    words = [word.format(url=rejecting.url, out=tmp_path / "out") for word in READING[name]]
    words += [] if name in ("export", "report", "cut") else ["--nworkers", "0"]
    rejecting.n_accepted, rejecting.status = n_accepted, status
    options = ("--storage-option", json.dumps(OPTIONS), "-v")
    result = CliRunner().invoke(main, [*words, *options])
    expected = {0: (3,), 10**9: (0,)}.get(n_accepted, (0, 3))
    assert result.exit_code in expected, result.output
    written = {str(file): file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for piece in PIECES:
        assert piece not in result.output + repr(result.exception)
        assert not [name for name, content in written.items() if piece.encode() in content]


def test_redirect_to_another_origin_carries_only_the_named_options() -> None:
    """SECURITY.md names the options that a server can pass on to another server."""
    received: list[Any] = []

    class Receiving(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append({**self.headers, "path": self.path})
            self.send_error(404)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    class Redirecting(Receiving):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{target.server_port}/other")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815

    with serve(Receiving) as target, serve(Redirecting) as server:
        options = {
            "params": {"signature": "in-params"},
            "headers": {"Authorization": "in-headers", "X-Request": "sent-1"},
            "cookies": {"name": "in-cookies"},
            "client_kwargs": {
                "headers": {"Authorization": "in-client", "X-Client": "sent-2"},
                "cookies": {"name": "sent-3"},
            },
        }
        with pytest.raises(StoreError):
            open_node(locate(f"http://127.0.0.1:{server.server_port}/x.zarr", options), "x")
    text = str(received)
    assert all(sent in text for sent in ("sent-1", "sent-2", "sent-3"))
    assert not any(kept in text for kept in ("in-params", "in-headers", "in-cookies", "in-client"))


def test_web_server_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x.zarr"
        options = ("--storage-option", "client_kwargs.timeout.sock_read=0.2")
        result = CliRunner().invoke(main, ["inspect", url, *options, "--nworkers", "0"])
    assert result.exit_code == 3
    assert url in result.output


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def write_pipe(path: Path) -> None:
    """Replace a file by a pipe; a read of it ends only after a minute."""
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    timer = threading.Timer(60, os.close, [os.open(path, os.O_RDWR)])
    timer.daemon = True
    timer.start()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        *((f"in{suffix}", "ingest {file} {out}") for suffix in (".npy", ".npz", ".csv", ".h5")),
        *((f"in{suffix}", "ingest {file} {out}") for suffix in (".parquet", ".arrow", ".fbin")),
        ("in.raw", "ingest {file} {out} --format raw --raw-dtype float32 --features 4"),
        ("in.csv", "embed {file} {out} --encoder hashing"),
        ("in.parquet", "embed {file} {out} --encoder hashing --column text"),
        ("in.npy", "evaluate {run} --truth {file}"),
        ("in.npy", "kmeans {x} --out {out} --init {file}"),
        ("in.npy", "kmeans {x} --out {out} --clusters 2 --sample-weight {file}"),
        ("in.npy", "report {run} --out {out}.html --items {file}"),
        ("in.parquet", "report {run} --out {out}.html --items {file}"),
        ("run/run.json", "evaluate {run}"),
        ("run/run.json", "fit {x} --out {run} --overwrite"),
        ("run/model.zarr/zarr.json", "export {run} --out {out}"),
        ("run/model.zarr/centers/zarr.json", "export {run} --out {out}"),
        ("run/model.zarr/centers/c/0/0", "export {run} --out {out}"),
        ("run/labels.zarr/labels/c/0", "export {run} --out {out}"),
        ("x.zarr/zarr.json", "inspect {x}"),
        ("x.zarr/features/zarr.json", "inspect {x}"),
        ("x.zarr/features/c/0/0", "fit {x} --out {out} --rho 1"),
        ("x.zarr/features/c/0/0", "ingest {x} {out}"),
    ],
)
def test_pipes_are_rejected(run_by_hand: Path, tmp_path: Path, name: str, command: str) -> None:
    folder = Path(shutil.copytree(run_by_hand.parent, tmp_path / "copy", symlinks=True))
    names = {"file": folder / name, "run": folder / run_by_hand.name, "x": folder / "x.zarr"}
    write_pipe(folder / name.replace("run/", f"{run_by_hand.name}/"))
    words = [word.format(**names, out=tmp_path / "out") for word in command.split()]
    words += [] if words[0] in ("report", "export", "embed") else ["--nworkers", "0"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 3, result.output
    assert "Traceback" not in result.output
    path = name.removeprefix("run/").partition("/c/")[0]  # of a chunk, the array is named
    assert (path if "/c/" in name else Path(name).name) in result.output


def test_records_have_a_maximum_size(run_by_hand: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(run_by_hand, tmp_path / "run"))
    (run / "events.jsonl").unlink(missing_ok=True)
    write_pipe(run / "events.jsonl")
    os.truncate(run / "run.json", 2**40)  # a sparse file
    result = CliRunner().invoke(main, ["export", str(run), "--out", str(tmp_path / "out")])
    assert result.exit_code == 3
    assert str(2**40) in result.output
    (run / "run.json").unlink()
    (run / "run.json").symlink_to("/dev/zero")
    result = CliRunner().invoke(main, ["export", str(run), "--out", str(tmp_path / "out")])
    assert result.exit_code == 3
    shutil.copy(run_by_hand / "run.json", tmp_path / "record")
    (run / "run.json").unlink()
    (run / "run.json").symlink_to(tmp_path / "record")  # a link to a regular file is read
    result = CliRunner().invoke(main, ["report", str(run), "--out", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.output


def test_names_are_not_parsed_as_markup(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype("f4")
    store = tmp_path / "[red]rows[/red].zarr"
    zarr.create_array(store, data=rows, chunks=(50, 4))
    result = CliRunner().invoke(main, ["inspect", str(store)])
    assert result.exit_code == 0
    assert "[red]rows[/red]" in result.stdout.replace("\n", "").replace("│", "").replace(" ", "")
