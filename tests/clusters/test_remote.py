"""Schedulers that do not answer, and files that are not of a scheduler."""

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


def refusal(options: ClusterOptions) -> str:
    with pytest.raises(ClusterError) as caught, connect(options):
        pass
    assert current_client() is None
    assert dask.config.get("scheduler", None) is None
    return str(caught.value)


def test_an_address_where_nobody_listens(impatient: None, deaf_port: int) -> None:
    address = f"tcp://127.0.0.1:{deaf_port}"
    begin = time.monotonic()
    message = refusal(ClusterOptions(scheduler=address))
    assert time.monotonic() - begin < 10
    assert f"no Dask scheduler answers at {address}" in message
    assert "check the address, or leave it out for a local cluster" in message


def test_an_address_where_nobody_says_anything(impatient: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        message = refusal(ClusterOptions(scheduler=address))
    assert re.match(rf"no Dask scheduler answers at {address} \(\w.*\); something", message)


def test_an_address_in_the_environment_where_nobody_listens(
    monkeypatch: pytest.MonkeyPatch, impatient: None, deaf_port: int
) -> None:
    address = f"tcp://127.0.0.1:{deaf_port}"
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", address)
    assert f"no Dask scheduler answers at {address}" in refusal(ClusterOptions())


def test_the_file_of_a_scheduler_that_is_gone(
    tmp_path: Path, impatient: None, deaf_port: int
) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": f"tcp://127.0.0.1:{deaf_port}"}))
    assert str(file) in refusal(ClusterOptions(scheduler_file=str(file)))


def test_a_file_that_a_scheduler_is_about_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where both are started by one script: there is none, then a part of it, then all."""
    file, waited = tmp_path / "scheduler.json", []
    contents = iter(["", '{"address": "tcp', '{"address": "tcp://127.0.0.1:8786"}'])

    def write_on(seconds: float) -> None:
        waited.append(seconds)
        file.write_text(next(contents))

    monkeypatch.setattr("scrlm_dask.clusters.remote.time.sleep", write_on)
    assert remote_module.read_address(str(file)) == "tcp://127.0.0.1:8786"
    assert len(waited) == 3


@pytest.mark.parametrize("content", [None, '{"address": "tcp'])
def test_a_file_that_nobody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.setattr(remote_module, "_FILE_SECONDS", 0.2)
    file = tmp_path / "scheduler.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ClusterError, match=r"scheduler\.json .*start one with `dask scheduler"):
        remote_module.read_address(str(file))


def test_a_file_of_something_else_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrlm_dask.clusters.remote.time.sleep", pytest.fail)
    (tmp_path / "other.json").write_text('{"colour": "red"}')
    for file in (tmp_path / "other.json", tmp_path):
        with pytest.raises(ClusterError, match="no scheduler's address"):
            remote_module.read_address(str(file))


# Run in processes of their own: a client that did not start may stay the current one, for which
# every later computation waits in vain.
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
        kept.append(error)  # as a notebook keeps the last one
        seen[name] = {"error": type(error).__name__, "text": str(error)}
    seen[name]["left behind"] = current_client() is not before
    for key in environment:
        del os.environ[key]
print(json.dumps(seen))
sys.stdout.flush()
os._exit(0)  # whatever was left behind
"""


def attempts(*, timeout: float, **what: tuple[dict[str, str], dict[str, Any]]) -> Any:
    """What comes of each (environment, options), tried in one fresh interpreter."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRY, json.dumps(what)],
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
def seen(tmp_path_factory: pytest.TempPathFactory, deaf_port: int) -> Any:
    folder = tmp_path_factory.mktemp("files")
    (folder / "empty.json").write_text("{}")
    (folder / "text.json").write_text("not JSON")
    return attempts(
        timeout=120,
        word=({}, {"scheduler": "nonsense"}),
        scheme=({}, {"scheduler": "foo://bar:1"}),
        tls=({}, {"scheduler": f"tls://127.0.0.1:{deaf_port}"}),
        empty_file=({}, {"scheduler_file": str(folder / "empty.json")}),
        text_file=({}, {"scheduler_file": str(folder / "text.json")}),
        empty_variable=({"DASK_SCHEDULER_ADDRESS": ""}, {"nworkers": 0, "nthreads": 1}),
    )


@pytest.mark.cluster
class TestWhatIsNoScheduler:
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
    def test_it_is_refused_in_words(self, seen: Any, name: str, where: str) -> None:
        assert seen[name]["error"] == "ClusterError", seen[name]
        assert where in seen[name]["text"]

    def test_no_client_is_left_behind(self, seen: Any) -> None:
        assert [name for name, found in seen.items() if found["left behind"]] == []

    def test_an_empty_variable_is_no_address(self, seen: Any) -> None:
        assert seen["empty_variable"]["text"] == "1 thread of this process"

    def test_a_file_that_never_comes_is_not_waited_for_for_ever(self, tmp_path: Path) -> None:
        file = str(tmp_path / "scheduler.json")
        seen = attempts(timeout=60, missing=({}, {"scheduler_file": file}))
        assert seen["missing"]["error"] == "ClusterError"
        assert file in seen["missing"]["text"]


class Client:
    """What workers answer."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers

    def run(self, *args: object, on_error: str) -> dict[str, object]:
        return self.answers


def test_workers_that_lack_the_package_or_have_another_version() -> None:
    ours = scrlm_dask.__version__
    remote_module.check_workers(Client(a=ours, b=ours))
    with pytest.raises(ClusterError, match=rf"^1 of 2 workers \(b\).*{re.escape(ours)}.*0\.0\.1"):
        remote_module.check_workers(Client(a=ours, b="0.0.1"))
    missing = ModuleNotFoundError("No module named 'scrlm_dask'")
    with pytest.raises(ClusterError, match=r"2 of 2 workers \(a, b\).*ModuleNotFoundError"):
        remote_module.check_workers(Client(a=missing, b=missing))
