"""Schedulers that do not answer, and scheduler files that are missing or invalid."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import pytest

import scrlm_dask
from scrlm_dask.clusters import remote as remote_module
from scrlm_dask.clusters.connect import connect
from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.engine.workers import current_client
from scrlm_dask.errors import ClusterError


def connect_error(options: ClusterOptions) -> str:
    with pytest.raises(ClusterError) as caught, connect(options):
        pass
    assert current_client() is None
    assert dask.config.get("scheduler", None) is None
    return str(caught.value)


def test_address_on_which_no_process_listens(short_timeout: None, closed_port: int) -> None:
    address = f"tcp://127.0.0.1:{closed_port}"
    begin = time.monotonic()
    message = connect_error(ClusterOptions(scheduler=address))
    assert time.monotonic() - begin < 20  # the timeout without the fixture
    assert address in message
    assert "tls://" not in message  # no process listens, so TLS is not suggested


def test_server_that_does_not_answer(short_timeout: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        message = connect_error(ClusterOptions(scheduler=address))
    assert address in message
    assert "tls://" in message


def test_address_in_the_environment_on_which_no_process_listens(
    monkeypatch: pytest.MonkeyPatch, short_timeout: None, closed_port: int
) -> None:
    address = f"tcp://127.0.0.1:{closed_port}"
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", address)
    assert address in connect_error(ClusterOptions())


def test_file_of_a_stopped_scheduler(tmp_path: Path, short_timeout: None, closed_port: int) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": f"tcp://127.0.0.1:{closed_port}"}))
    assert str(file) in connect_error(ClusterOptions(scheduler_file=str(file)))


def test_file_of_a_starting_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One script may start scheduler and client: the file is missing, then partial, then whole."""
    file, waited = tmp_path / "scheduler.json", []
    contents = iter(["", '{"address": "tcp', '{"address": "tcp://127.0.0.1:8786"}'])

    def write_on(seconds: float) -> None:
        waited.append(seconds)
        file.write_text(next(contents))

    monkeypatch.setattr("scrlm_dask.clusters.remote.time.sleep", write_on)
    assert remote_module.read_address(str(file)) == "tcp://127.0.0.1:8786"
    assert len(waited) == 3


@pytest.mark.parametrize("content", [None, '{"address": "tcp'])
def test_missing_or_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.setattr(remote_module, "_FILE_SECONDS", 0.2)
    file = tmp_path / "scheduler.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ClusterError, match=rf"(?=.*{file})(?=.*--scheduler-file)"):
        remote_module.read_address(str(file))


def test_file_without_an_address_is_rejected_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrlm_dask.clusters.remote.time.sleep", pytest.fail)
    (tmp_path / "other.json").write_text('{"colour": "red"}')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for file in (tmp_path / "other.json", tmp_path / "deep.json", tmp_path):
        with pytest.raises(ClusterError, match=rf"(?=.*{file}\b)(?=.*--scheduler-file)"):
            remote_module.read_address(str(file))


# Runs in a subprocess: a client that failed to start may stay the default client, and then every
# later computation would hang.
_TRY = """
import json, os, sys
import scrlm_dask
from scrlm_dask.clusters import remote
from scrlm_dask.engine.workers import current_client
from scrlm_dask.clusters.options import ClusterOptions

remote._CONNECT_TIMEOUT = remote._FILE_SECONDS = 0.5
kept, seen = [], {}
for name, (environment, options) in json.loads(sys.argv[1]).items():
    os.environ.update(environment)
    before = current_client()
    try:
        with scrlm_dask.connect(ClusterOptions(**options)) as connection:
            seen[name] = {"error": None, "text": connection.description}
    except Exception as error:
        kept.append(error)  # a notebook also keeps the last exception
        seen[name] = {"error": type(error).__name__, "text": str(error)}
    seen[name]["left open"] = current_client() is not before
    for key in environment:
        del os.environ[key]
print(json.dumps(seen))
sys.stdout.flush()
os._exit(0)  # also with threads that are still running
"""


def attempts(*, timeout: float, **cases: tuple[dict[str, str], dict[str, Any]]) -> Any:
    """Connect with each (environment, options) in a new interpreter; return the outcomes."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRY, json.dumps(cases)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"still waiting after {timeout} s")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="class")
def seen(tmp_path_factory: pytest.TempPathFactory, closed_port: int) -> Any:
    folder = tmp_path_factory.mktemp("files")
    (folder / "empty.json").write_text("{}")
    (folder / "text.json").write_text("not JSON")
    return attempts(
        timeout=120,
        word=({}, {"scheduler": "nonsense"}),
        scheme=({}, {"scheduler": "foo://bar:1"}),
        tls=({}, {"scheduler": f"tls://127.0.0.1:{closed_port}"}),
        empty_file=({}, {"scheduler_file": str(folder / "empty.json")}),
        text_file=({}, {"scheduler_file": str(folder / "text.json")}),
        empty_variable=({"DASK_SCHEDULER_ADDRESS": ""}, {"nworkers": 0, "nthreads": 1}),
    )


@pytest.mark.cluster
class TestInvalidSchedulers:
    @pytest.mark.parametrize(
        ("name", "where"),
        [
            ("word", "nonsense"),
            ("scheme", "foo://bar:1"),
            ("tls", "tls://127.0.0.1"),  # without certificates
            ("empty_file", "empty.json"),
            ("text_file", "text.json"),
        ],
    )
    def test_error_names_the_address(self, seen: Any, name: str, where: str) -> None:
        assert seen[name]["error"] == "ClusterError", seen[name]
        assert where in seen[name]["text"]

    def test_no_client_is_left_open(self, seen: Any) -> None:
        assert [name for name, found in seen.items() if found["left open"]] == []

    def test_empty_variable_is_ignored(self, seen: Any) -> None:
        assert seen["empty_variable"]["error"] is None
        assert re.search(r"\b1 thread\b", seen["empty_variable"]["text"])

    def test_waiting_for_a_file_has_a_timeout(self, tmp_path: Path) -> None:
        file = str(tmp_path / "scheduler.json")
        seen = attempts(timeout=60, missing=({}, {"scheduler_file": file}))
        assert seen["missing"]["error"] == "ClusterError"
        assert file in seen["missing"]["text"]


class Client:
    """A client whose workers return the given answers."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers

    def run(self, *args: object, on_error: str) -> dict[str, object]:
        return self.answers


def test_workers_without_the_package_or_with_another_version() -> None:
    ours = scrlm_dask.__version__
    remote_module.check_workers(Client(a=ours, b=ours))
    facts = rf"(?=.*\b1 of 2\b)(?=.*\bb\b)(?=.*{re.escape(ours)})(?=.*\b0\.0\.1\b)"
    with pytest.raises(ClusterError, match=facts):
        remote_module.check_workers(Client(a=ours, b="0.0.1"))
    missing = ModuleNotFoundError("No module named 'scrlm_dask'")
    facts = r"(?=.*\b2 of 2\b)(?=.*\ba, b\b)(?=.*ModuleNotFoundError)"
    with pytest.raises(ClusterError, match=facts):
        remote_module.check_workers(Client(a=missing, b=missing))
