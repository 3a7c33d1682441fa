"""Where things lie: paths and URLs on one road, and options that nothing shows."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from dask.base import tokenize
from fsspec.implementations.memory import MemoryFileSystem

from scrlm_dask.config import FitConfig
from scrlm_dask.errors import InputError, MissingError, StoreError
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.evaluate import evaluate
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.predict import predict
from scrlm_dask.pipeline.synth import synth
from scrlm_dask.storage.arrays import StoredArray
from scrlm_dask.storage.locations import (
    Location,
    is_within,
    locate,
    merge_options,
    reaching,
)
from scrlm_dask.storage.model_store import load_model
from scrlm_dask.storage.outputs import (
    discard,
)
from scrlm_dask.storage.run_directory import EventLog, RunDirectory

SECRET = "do-not-print-me"
OPTIONS = {"key": "a-key", "secret": SECRET, "client_kwargs": {"headers": [SECRET + "2"]}}


# --- paths and URLs ----------------------------------------------------------------------------


def test_urls_stay_as_they_are() -> None:
    assert locate("s3://bucket/a.zarr").url == "s3://bucket/a.zarr"
    assert locate("s3://bucket/a.zarr/").url == "s3://bucket/a.zarr"
    assert locate("s3://bucket/a.zarr").is_remote
    assert not locate("file:///tmp/a.zarr").is_remote
    assert not Location("file:///tmp/a.zarr").is_remote
    assert not locate("/tmp/a.zarr").is_remote
    assert not locate("a:b/c.zarr").is_remote


def test_a_location_stays_the_one_it_is() -> None:
    place = locate("s3://bucket/a", OPTIONS)
    assert locate(place) is place
    assert locate(place, {"key": "another"}) is place


def test_names_below_keep_the_options() -> None:
    below = locate("s3://bucket/run", OPTIONS) / "model.zarr" / "centers"
    assert str(below) == below.url == "s3://bucket/run/model.zarr/centers"
    assert below.options.reveal() == OPTIONS


def test_folders_above() -> None:
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
def test_what_lies_within(inner: str, outer: str, expected: bool) -> None:
    assert is_within(locate(inner), locate(outer)) is expected


def test_nested_options_are_merged() -> None:
    under = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    over = {"a": {"c": {"f": 4}}, "e": {"g": 5}}
    assert merge_options(under, over) == {"a": {"b": 1, "c": {"d": 2, "f": 4}}, "e": {"g": 5}}
    assert under == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}


# --- options are not shown ---------------------------------------------------------------------


def test_options_travel_and_are_not_shown() -> None:
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


def test_what_other_libraries_say_is_told_without_options() -> None:
    error = OSError(f"GET http://host/?key=a-key&sig={SECRET}2 failed\nwith {SECRET}")
    said = locate("s3://bucket/a", OPTIONS).without_options(error)
    assert said == "OSError: GET http://host/?key=***&sig=*** failed"


def test_errors_on_the_way_keep_no_traceback_of_others() -> None:
    place = locate("s3://bucket/a", OPTIONS)
    with pytest.raises(StoreError) as caught, reaching(place, "the model"):
        raise RuntimeError(f"request with {SECRET}")
    assert "the model s3://bucket/a cannot be reached (RuntimeError: request with ***)" in str(
        caught.value
    )
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    with pytest.raises(MissingError, match="does not exist"), reaching(place):
        raise FileNotFoundError("bucket")
    assert isinstance(pickle.loads(pickle.dumps(MissingError("gone"))), FileNotFoundError)


def test_errors_of_the_disk_stay_as_they_are(tmp_path: Path) -> None:
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
        f"https://host/x.zarr?signature={SECRET}",
        f"ftp://user:{SECRET}@host/x",
        f"simplecache::s3://key:{SECRET}@bucket/x",
    ],
)
def test_credentials_in_a_url_are_refused_unseen(url: str) -> None:
    with pytest.raises(InputError, match=r"holds credentials.*--storage-option") as caught:
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
    ],
)
def test_urls_without_credentials_are_taken(url: str) -> None:
    assert str(locate(url)) == url.removeprefix("file://")


# --- protocols ---------------------------------------------------------------------------------


def test_a_protocol_that_nobody_knows() -> None:
    with pytest.raises(StoreError, match="nothing here knows the protocol nonsense://"):
        locate("nonsense://bucket/x").exists()


def test_without_s3fs_the_extra_is_named() -> None:
    code = """
import sys
sys.modules["s3fs"] = None  # as if it were not installed
load_model("s3://bucket/run")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert (
        "UnreachableError: s3://bucket/run/run.json cannot be opened: s3:// needs scrlm-dask[s3]"
        in (done.stderr)
    )


# --- files, on a disk and behind a URL ---------------------------------------------------------


def test_text_there_and_back(root: Location) -> None:
    file = root / "run.json"
    assert not file.is_file()
    assert not file.exists()
    for text in ('{"ü": 1}', '{"a": 2}'):
        file.write_text(text)
        assert file.read_text() == text
    assert file.is_file()
    with pytest.raises(FileNotFoundError):
        (root / "other.json").read_text()


def test_what_is_occupied(root: Location) -> None:
    place = root / "out"
    assert not place.is_occupied()
    run = RunDirectory(place / "deep" / "run")
    run.begin(False, {})
    assert place.is_occupied()
    assert run.record.is_occupied()
    discard(run.location)
    assert not run.location.is_occupied()


def test_all_verbs_behind_a_url_in_one_process(memory: str, tmp_path: Path) -> None:
    spec, config = MixtureSpec(16, 3, 0.2), FitConfig(rho=0.5, n_clusters=5, seed=1)
    for root in (memory, str(tmp_path)):
        assert synth(f"{root}/x.zarr", 300, spec) == f"{root}/x.zarr"
        fit(f"{root}/x.zarr", config, out=f"{root}/run")
        predict(f"{root}/run", f"{root}/x.zarr", out=f"{root}/labels.zarr")
    filesystem = fsspec.filesystem("memory")
    found = {
        name.removeprefix(f"{memory.removeprefix('memory:/')}/"): filesystem.cat_file(name)
        for name in filesystem.find(memory)
    }
    local = {
        str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()
    }
    for files in (found, local):
        assert json.loads(files.pop("run/run.json"))["status"] == "complete"
        told = [json.loads(line)["event"] for line in files.pop("run/events.jsonl").splitlines()]
        assert (told[0], told[-1]) == ("RunStarted", "RunEnded")  # each at its own time
        del files["labels.zarr/zarr.json"]  # says where the features lie
    assert found == local
    assert evaluate(f"{memory}/run") == evaluate(tmp_path / "run")
    assert load_model(f"{memory}/run").n_clusters == 3


def test_what_is_written_in_one_step_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, synced = tmp_path / "run.json", []

    def fsync(descriptor: int) -> None:
        synced.append((str(Path(f"/proc/self/fd/{descriptor}").readlink()), place.read_text()))

    place.write_text("old")
    monkeypatch.setattr(os, "fsync", fsync)
    locate(place).write_text("new")
    assert synced == [(str(tmp_path / "run.partial"), "old")]
    assert place.read_text() == "new"


def test_a_second_attempt_adds_to_the_events_of_the_first(memory: str, tmp_path: Path) -> None:
    lines = [f'{{"event": "{name}"}}\n' for name in ("RunStarted", "PhaseFinished", "RunEnded")]
    for root in (memory, str(tmp_path)):
        place = locate(f"{root}/events.jsonl")
        for _ in range(2):
            log = EventLog(place)
            for line in lines:
                log.write(line)
        assert place.read_text() == 2 * "".join(lines)


def test_events_that_cannot_be_read_are_not_written_over(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead(*args: Any) -> None:
        raise ConnectionError("the line went dead")

    place = locate(f"{memory}/events.jsonl")
    place.write_text("old\n")
    log = EventLog(place)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "cat_file", dead)
        log.write('"PhaseFinished"\n')
    assert place.read_text() == "old\n"
    log.write('"RunEnded"\n')
    assert place.read_text() == 'old\n"PhaseFinished"\n"RunEnded"\n'
