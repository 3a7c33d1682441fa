"""Locations: paths and URLs behave alike, and storage options are never shown."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import subprocess
import sys
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from aiohttp import ClientTimeout
from dask.base import tokenize
from fsspec.implementations.memory import MemoryFileSystem
from trees import tree

from scrlm_dask.config import FitConfig
from scrlm_dask.errors import (
    InputError,
    MissingError,
    StoreError,
    UnreachableError,
    UntrustedOriginError,
)
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.evaluate import evaluate
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.predict import predict
from scrlm_dask.pipeline.synth import synth
from scrlm_dask.storage.arrays import StoredArray, open_node
from scrlm_dask.storage.folders import PARTIAL
from scrlm_dask.storage.locations import (
    Location,
    is_within,
    locate,
    locate_recorded,
    merge_options,
    parse_origin,
    reaching,
    trust,
)
from scrlm_dask.storage.model_store import load_model
from scrlm_dask.storage.outputs import RUN_KIND, discard
from scrlm_dask.storage.run_directory import EventLog, RunDirectory

SECRET = "do-not-print-me"
OPTIONS = {"key": "a-key", "secret": SECRET, "client_kwargs": {"headers": [SECRET + "2"]}}


# --- paths and URLs ----------------------------------------------------------------------------


def test_urls_are_not_changed() -> None:
    assert locate("s3://bucket/a.zarr").url == "s3://bucket/a.zarr"
    assert locate("s3://bucket/a.zarr/").url == "s3://bucket/a.zarr"
    assert locate("s3://bucket/a.zarr").is_remote
    assert not locate("file:///tmp/a.zarr").is_remote
    assert not Location("file:///tmp/a.zarr").is_remote
    assert not locate("/tmp/a.zarr").is_remote
    assert not locate("a:b/c.zarr").is_remote


def test_location_is_returned_unchanged() -> None:
    place = locate("s3://bucket/a", OPTIONS)
    assert locate(place) is place
    assert locate(place, {"key": "another"}) is place


def test_children_keep_the_options() -> None:
    below = locate("s3://bucket/run", OPTIONS) / "model.zarr" / "centers"
    assert str(below) == below.url == "s3://bucket/run/model.zarr/centers"
    assert below.options.reveal() == OPTIONS


def test_parents() -> None:
    above = locate("s3://bucket/a/b/run", OPTIONS).parents()
    assert [str(p) for p in above] == ["s3://bucket/a/b", "s3://bucket/a", "s3://bucket"]
    assert all(p.options.reveal() == OPTIONS for p in above)
    assert [str(p) for p in locate("/a/b").parents()] == ["/a", "/"]


@pytest.mark.parametrize(
    ("inner", "outer", "expected"),
    [
        ("s3://bucket/run/x", "s3://bucket/run", True),
        ("s3://bucket/run", "s3://bucket/run/", True),
        ("s3a://bucket/run/x", "s3://bucket/run", True),
        ("s3://bucket/run-2", "s3://bucket/run", False),
        ("s3://bucket/run", "s3://bucket/run/x", False),
        ("memory://bucket/run/x", "s3://bucket/run", False),
        ("/bucket/run/x", "s3://bucket/run", False),
        ("/bucket/run/x", "/bucket/run", True),
        ("/bucket/run-2", "/bucket/run", False),
    ],
)
def test_is_within(inner: str, outer: str, expected: bool) -> None:
    assert is_within(locate(inner), locate(outer)) is expected


def test_nested_options_are_merged() -> None:
    under = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    over = {"a": {"c": {"f": 4}}, "e": {"g": 5}}
    assert merge_options(under, over) == {"a": {"b": 1, "c": {"d": 2, "f": 4}}, "e": {"g": 5}}
    assert under == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}


# --- options are not shown ---------------------------------------------------------------------


def test_options_are_pickled_and_not_shown() -> None:
    place = locate("s3://bucket/a", OPTIONS)
    stored = StoredArray(place, (2, 2), np.dtype("float32"), (2, 2))
    for thing in (place, stored, RunDirectory(place), [place], {"at": place}):
        for text in (repr(thing), str(thing), f"{thing}"):
            assert SECRET not in text
            assert "a-key" not in text
            assert "s3://bucket/a" in text
    assert SECRET not in tokenize(place)
    for twin in (pickle.loads(pickle.dumps(place)), copy.deepcopy(place)):
        assert twin == place
        assert twin.options.reveal() == OPTIONS


def test_options_are_hidden_in_errors_of_libraries() -> None:
    error = OSError(f"GET http://host/a-key?sig={SECRET}2&t=x1 failed\nwith {SECRET}")
    message = locate("s3://bucket/a", OPTIONS).without_options(error)
    assert message == "OSError: GET http://host/***?*** failed"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((918273, "pin 918273"), (9182.73, "pin 9182.73"), (b"p\xff\xe4ss", "p\\xff\\xe4ss")),
        *(({"set-value"}, "set-value"), ("one\ntwo!", "before one\ntwo! after")),
    ],
)
def test_values_of_all_types_are_hidden(value: Any, text: str, tmp_path: Path) -> None:
    for place in ("s3://bucket/a", tmp_path):
        message = locate(place, {"nested": [value]}).without_options(OSError(f"bad {text}"))
        assert "***" in message
        assert not any(part in message for part in ("918", "73", "ss", "set", "one", "two"))


@pytest.mark.parametrize("value", [True, False, None, 30, "s3"])
def test_short_values_and_truth_values_are_shown(value: Any) -> None:
    error = OSError(f"use_ssl is {value}")
    assert str(error) in locate("s3://bucket/a", {"use_ssl": value}).without_options(error)


def test_question_marks_in_local_paths_are_shown() -> None:
    error = OSError("cannot open /data/what?is=this")
    assert "what?is=this" in locate("/data", OPTIONS).without_options(error)


def test_remote_errors_drop_the_original_traceback() -> None:
    place = locate("s3://bucket/a", OPTIONS)
    with pytest.raises(UnreachableError) as caught, reaching(place, "model-1"):
        raise RuntimeError(f"request with {SECRET}")
    for fact in ("model-1 s3://bucket/a", "RuntimeError: request with ***"):
        assert fact in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    with pytest.raises(MissingError, match="s3://bucket/a"), reaching(place):
        raise FileNotFoundError("bucket")
    assert isinstance(pickle.loads(pickle.dumps(MissingError("gone"))), FileNotFoundError)


def test_errors_of_the_local_disk_are_not_changed(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no space") as caught, reaching(locate(tmp_path)):
        raise OSError("no space")
    assert type(caught.value) is OSError


@pytest.mark.parametrize(
    "url",
    [
        f"s3://key:{SECRET}@bucket/x",
        f"s3://key:{SECRET}/with/slashes@bucket/x",
        f"s3://{SECRET}@bucket/x",
        f"s3a://key:{SECRET}@bucket/x",
        f"https://user:{SECRET}@host/x.zarr",
        f"https://{SECRET}@host/x.zarr",
        f"https://host/x.zarr?signature={SECRET}",
        f"HTTPS://host/x.zarr?signature={SECRET}",
        f"ftp://user:{SECRET}@host/x",
        f"az://container/x?sig={SECRET}",
        f"abfs://container@account.dfs.core.windows.net/x?sv=2020&sig={SECRET}",
        f"gs://bucket/x?X-Goog-Signature={SECRET}",
        f"s3://bucket/x?AWSAccessKeyId=a&Signature={SECRET}",
        f"webhdfs://host:50070/x?delegation={SECRET}/x",
        f"simplecache::az://container/x?sig={SECRET}",
        f"simplecache::s3://key:{SECRET}@bucket/x",
    ],
)
def test_credentials_in_a_url_are_rejected_and_not_printed(url: str) -> None:
    with pytest.raises(InputError, match="--storage-option") as caught:
        locate(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/a@b:c/x",
        "hdfs://host:8020/x",
        "http://127.0.0.1:80/x@y.zarr",
        "abfs://container@account.dfs.core.windows.net/x",
        "sftp://user@host/x",
        "/local/a:b@c?d",
        "file:///local/a:b@c?d",
        "local:///data/a?b=c",
        "s3://bucket/what?/a=b",
    ],
)
def test_urls_without_credentials_are_accepted(url: str) -> None:
    assert str(locate(url)) == url.removeprefix("file://").removeprefix("local://")


# --- protocols ---------------------------------------------------------------------------------


def test_unknown_protocol() -> None:
    with pytest.raises(UnreachableError) as caught:
        locate("nonsense://bucket/x").exists()
    without_url = str(caught.value).replace("nonsense://bucket/x", "")
    assert "nonsense" in without_url


def test_missing_s3fs_names_the_extra() -> None:
    code = """
import sys
sys.modules["s3fs"] = None  # imports fail as if it were not installed
import scrlm_dask
scrlm_dask.Model.load("s3://bucket/run")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    last_line = done.stderr.splitlines()[-1]
    for fact in ("UnreachableError", "s3://bucket/run/run.json", "scrlm-dask[s3]"):
        assert fact in last_line


def test_text_is_utf8_in_every_locale(tmp_path: Path) -> None:
    code = "from scrlm_dask.storage.locations import locate\n"
    code += f"locate({str(tmp_path / 'x')!r}).write_text('\\u00e9')"
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environment)
    assert (tmp_path / "x").read_bytes() == "\u00e9".encode()


# --- local and remote files --------------------------------------------------------------------


def test_text_round_trip(root: Location) -> None:
    file = root / "run.json"
    assert not file.is_file()
    assert not file.exists()
    for text in ('{"ü": 1}', '{"a": 2}'):
        file.write_text(text)
        assert file.read_text() == text
    assert file.is_file()
    with pytest.raises(FileNotFoundError):
        (root / "other.json").read_text()


def test_is_occupied(root: Location) -> None:
    place = root / "out"
    assert not place.is_occupied()
    run = RunDirectory(place / "deep" / "run")
    run.create({})
    assert place.is_occupied()
    assert run.record.is_occupied()
    discard(run.location, RUN_KIND)
    assert not run.location.is_occupied()


def test_all_commands_write_the_same_files_to_a_url(memory: str, tmp_path: Path) -> None:
    spec, config = MixtureSpec(16, 3, 0.2), FitConfig(rho=0.5, n_clusters=5, seed=1)
    for root in (memory, str(tmp_path)):
        assert synth(f"{root}/x.zarr", 300, spec) == f"{root}/x.zarr"
        fit(f"{root}/x.zarr", config, out=f"{root}/run")
        predict(f"{root}/run", f"{root}/x.zarr", out=f"{root}/labels.zarr")
    filesystem = fsspec.filesystem("memory")
    remote = {
        name.removeprefix(f"{memory.removeprefix('memory:/')}/"): filesystem.cat_file(name)
        for name in filesystem.find(memory)
    }
    local = {
        str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()
    }
    for files in (remote, local):
        assert json.loads(files.pop("run/run.json"))["status"] == "complete"
        # run.json and events.jsonl contain times
        events = [json.loads(line)["event"] for line in files.pop("run/events.jsonl").splitlines()]
        assert (events[0], events[-1]) == ("RunStarted", "RunEnded")
        del files["labels.zarr/zarr.json"]  # contains the path of the features
        del files["x.zarr/zarr.json"]  # contains a digest of modification times
    assert remote == local
    assert evaluate(f"{memory}/run") == evaluate(tmp_path / "run")
    assert load_model(f"{memory}/run").n_clusters == 3


def test_file_is_synced_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, synced = tmp_path / "run.json", []

    def fsync(descriptor: int) -> None:
        synced.append((str(Path(f"/proc/self/fd/{descriptor}").readlink()), place.read_text()))

    place.write_text("old")
    monkeypatch.setattr(os, "fsync", fsync)
    locate(place).write_text("new")
    [(temporary, before)] = synced
    assert Path(temporary).parent == tmp_path
    assert fnmatchcase(Path(temporary).name, PARTIAL)
    assert before == "old"
    assert tree(tmp_path) == {"run.json": b"new"}


@pytest.mark.parametrize("fails", [False, True])
def test_files_with_similar_names_stay_when_a_file_is_written(
    tmp_path: Path, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["r.partial", "r.html.partial", ".partial"]
    for name in names:
        (tmp_path / name).write_text("mine")
    if fails:
        monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt) if fails else nullcontext():
        locate(tmp_path / "r.html").write_text("page")
    written = {} if fails else {"r.html": b"page"}
    assert tree(tmp_path) == dict.fromkeys(names, b"mine") | written


def interrupt(_descriptor: int) -> None:
    raise KeyboardInterrupt


def test_second_attempt_appends_to_the_event_log(memory: str, tmp_path: Path) -> None:
    lines = [f'{{"event": "{name}"}}\n' for name in ("RunStarted", "PhaseFinished", "RunEnded")]
    for root in (memory, str(tmp_path)):
        place = locate(f"{root}/events.jsonl")
        for _ in range(2):
            log = EventLog(place)
            for line in lines:
                log.write(line)
        assert place.read_text() == 2 * "".join(lines)


def test_unreadable_event_log_is_not_overwritten(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead(*args: Any) -> None:
        raise ConnectionError("connection lost")

    place = locate(f"{memory}/events.jsonl")
    place.write_text("old\n")
    log = EventLog(place)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "cat_file", dead)
        log.write('"PhaseFinished"\n')
    assert place.read_text() == "old\n"
    log.write('"RunEnded"\n')
    assert place.read_text() == 'old\n"PhaseFinished"\n"RunEnded"\n'


@pytest.mark.parametrize("url", ["s3://[bucket/x", "https://a\u2100b/x"])
def test_url_with_an_invalid_host_is_an_error_of_the_store(url: str) -> None:
    with pytest.raises(StoreError, match=re.escape(url)):
        locate(url).exists()


# --- recorded paths ------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["s3://bucket/x.zarr", "s3a://bucket/x", "https://host:81/x"])
def test_recorded_url_of_a_given_origin_gets_the_options(url: str) -> None:
    trusted = trust(["s3://bucket/run", "https://host:81/other"], (), OPTIONS)
    location = locate_recorded(url, trusted)
    assert location.url == url
    assert location.options.reveal() == OPTIONS


@pytest.mark.parametrize(
    "url",
    [
        *("s3://bucket2/x", "s3://bucket.evil/x", "s3:///bucket/x", "gs://bucket/x"),
        *("http://host/x", "https://host:82/x", "https://host:81.evil/x", " s3://bucket/x"),
        *("memory://bucket/x", "s\n3://bucket/x", "https://host:81\\@evil/x"),
        *("github://bucket/x", "s3://[bucket/x", "https://a\u2100b/x"),
    ],
)
def test_recorded_url_of_another_origin_is_rejected(url: str) -> None:
    trusted = trust(["s3://bucket/run", "https://host:81/other", "/run", None], (), OPTIONS)
    with pytest.raises((UntrustedOriginError, InputError)) as caught:
        locate_recorded(url, trusted)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        *("reference::s3://bucket/x", "simplecache::s3://bucket/x", "s3://bucket/x::s3://bucket"),
        *("zip://*::s3://bucket/x.zip", "/tmp/filecache::http://evil/x", "reference::/tmp/refs"),
        "s3://bucket/../other/x",
    ],
)
def test_recorded_chains_are_rejected_at_a_trusted_origin(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        locate_recorded(url, trust(["s3://bucket/run"], ("http://evil",), OPTIONS))
    assert not isinstance(caught.value, UntrustedOriginError)


@pytest.mark.parametrize(
    "path", ["/data/x.zarr", "file:///data/x.zarr", "local:///etc", "file://s3://bucket/x"]
)
def test_recorded_local_path_gets_no_options(path: str) -> None:
    location = locate_recorded(path, trust(["s3://bucket/run"], (), OPTIONS))
    assert not location.is_remote
    assert location.options.reveal() == {}


def test_allowed_origins_are_trusted() -> None:
    trusted = trust(["/run"], ["s3a://bucket/", "http://host:80"], OPTIONS)
    assert trusted.origins == {"s3://bucket", "http://host:80"}
    assert trust([], "s3://bucket").origins == {"s3://bucket"}
    assert SECRET not in repr(trusted)


def test_origin_on_azure_is_allowed() -> None:
    url = "abfs://container@account.dfs.core.windows.net/x.zarr"
    with pytest.raises(UntrustedOriginError):
        locate_recorded(url, trust([], ["abfs://container@other.dfs.core.windows.net"]))
    allowed = trust([], ["abfs://container@account.dfs.core.windows.net"], OPTIONS)
    assert locate_recorded(url, allowed).url == url


@pytest.mark.parametrize(
    "text",
    ["", "s3", "s3://", "s3://a/b", "s3://k:secret@a", "https://user@host", "x::s3://a"],
)
def test_origin_must_have_scheme_and_host(text: str) -> None:
    with pytest.raises(InputError):
        parse_origin(text)


def test_removal_does_not_follow_links(tmp_path: Path) -> None:
    for folder in ("out/sub", "kept"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("out/run.json", "kept/file", "other"):
        (tmp_path / file).write_text("1")
    (tmp_path / "out/folder").symlink_to(tmp_path / "kept")
    (tmp_path / "out/sub/file").symlink_to(tmp_path / "other")
    locate(tmp_path / "out").remove(["folder", "missing", "sub", "run.json"])
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "kept/file").exists()
    assert (tmp_path / "other").exists()


def test_unknown_storage_option_is_named() -> None:
    with pytest.raises(UnreachableError, match=r"'foo'.*--storage-option") as caught:
        locate("s3://bucket/x.zarr", {"foo": "secret"}).exists()
    assert "secret" not in str(caught.value)


def test_web_server_that_is_not_reached() -> None:
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1"):
        open_node("http://127.0.0.1:9/x.zarr", "the features store")


def test_web_servers_have_timeouts_unless_the_user_gives_others() -> None:
    def timeout(options: Any) -> Any:
        return locate("https://host/x", options)._settings()["client_kwargs"]["timeout"]

    default = timeout(None)
    assert 0 < default.sock_connect < 60
    assert 0 < default.sock_read < 60
    given = timeout({"client_kwargs": {"timeout": {"sock_read": "7", "total": None}}})
    assert given == ClientTimeout(total=None, sock_connect=default.sock_connect, sock_read=7)
    whole = ClientTimeout(total=1)
    assert timeout({"client_kwargs": {"timeout": whole, "headers": {}}}) is whole
