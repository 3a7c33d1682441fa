"""A run directory: begun, finished or taken back, and nothing of others ever removed."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from trees import tree

from scrlm_dask.errors import StoreError
from scrlm_dask.storage.outputs import discard
from scrlm_dask.storage.run_directory import COMPLETE, RunDirectory, write_json


def strict(path: Path) -> Any:
    """JSON as others read it: NaN and Infinity are not part of it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


# --- begin, finish, discard --------------------------------------------------------------------


def test_a_run_from_begin_to_finish(tmp_path: Path) -> None:
    run = RunDirectory(f"{tmp_path}/some/where/run")
    assert not run.record.is_file()
    run.begin(False, {"seed": 3})
    assert run.record.is_file()
    assert strict(run.record).items() >= {"seed": 3, "status": "running"}.items()
    with pytest.raises(StoreError, match=r"run is not complete \(status: running\); run the fit"):
        run.check_complete()
    run.write_record({"seed": 3, "seconds": 0.5}, COMPLETE)
    expected = {"seed": 3, "seconds": 0.5, "status": "complete"}
    assert run.check_complete().items() >= expected.items()
    assert list(tree(tmp_path / "some/where/run")) == ["run.json"]


def test_where_things_are() -> None:
    run = RunDirectory("/data/run")
    assert run.model.url == "/data/run/model.zarr"
    assert run.labels.url == "/data/run/labels.zarr"
    assert run.record.url == "/data/run/run.json"


def test_the_status_is_ours_to_set(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    run.begin(False, {"status": "complete"})
    assert run.read_record()["status"] == "running"


def test_a_discarded_run_leaves_nothing(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    run.begin(False, {})
    zarr.create_group(run.labels.url)
    discard(run.path)
    assert tree(tmp_path) == {}
    discard(run.path)  # twice does no harm


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    RunDirectory(str(tmp_path / "run")).begin(False, {})
    assert strict(tmp_path / "run/run.json")["status"] == "running"


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=rf"{tmp_path} is not a run directory: it holds no run\."):
        RunDirectory(str(tmp_path)).check_complete()


@pytest.mark.parametrize("content", ['{"status": "comp', "", "\x00", '["complete"]', "null"])
def test_a_record_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(
        StoreError, match=rf"{tmp_path}/run.json .*(run the fit again|is not the record of a run)"
    ):
        RunDirectory(str(tmp_path)).check_complete()


def test_a_run_at_a_url_does_not_end_in_a_local_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with suppress(StoreError):  # to refuse it is as good as to write there
        RunDirectory("memory://bucket/run").begin(False, {})
    assert tree(tmp_path) == {}


# --- overwrite ---------------------------------------------------------------------------------


def test_a_run_is_replaced_only_when_asked(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    run.begin(False, {"number": 1})
    zarr.create_group(run.model.url)
    run.write_record({"number": 1}, COMPLETE)
    before = tree(tmp_path / "run")
    with pytest.raises(StoreError, match=rf"{tmp_path}/run exists already; .*--overwrite"):
        run.begin(False, {"number": 2})
    assert tree(tmp_path / "run") == before
    run.begin(True, {"number": 2})
    # nothing of the old run is left that could be taken for the new one's
    assert list(tree(tmp_path / "run")) == ["run.json"]
    assert run.read_record().items() >= {"number": 2, "status": "running"}.items()


def test_an_interrupted_run_is_replaced_too(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    run.begin(False, {})
    run.begin(True, {"number": 2})
    assert run.read_record()["number"] == 2


# --- the record --------------------------------------------------------------------------------


def test_writing_leaves_one_file_that_ends_in_a_newline(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"a": [1, 2.5, None, "ü"]})
    assert list(tree(tmp_path)) == ["run.json"]
    assert (tmp_path / "run.json").read_text().endswith("}\n")
    assert strict(tmp_path / "run.json") == {"a": [1, 2.5, None, "ü"]}


@pytest.mark.parametrize("value", [np.nan, np.inf, object(), np.int64(3)])
def test_what_is_not_json_leaves_the_old_record(tmp_path: Path, value: Any) -> None:
    write_json(tmp_path / "run.json", {"status": "running"})
    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "run.json", {"status": "complete", "value": value})
    assert tree(tmp_path) == {"run.json": b'{\n  "status": "running"\n}\n'}


def test_the_remains_of_a_killed_writer_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "run.partial").write_text('{"status": "comp')
    write_json(tmp_path / "run.json", {"status": "complete"})
    assert list(tree(tmp_path)) == ["run.json"]
    assert strict(tmp_path / "run.json") == {"status": "complete"}


def test_a_reader_sees_the_old_record_or_the_new_one_never_a_half(tmp_path: Path) -> None:
    # 200 kB, so that writing in place would be caught halfway
    path = tmp_path / "run.json"
    contents = [{"number": n, "filler": [n] * 20_000} for n in range(2)]
    write_json(path, contents[0])
    stop = threading.Event()
    seen: list[Any] = []

    def read() -> None:
        while not stop.is_set():
            try:
                seen.append(json.loads(path.read_text()))
            except Exception as error:  # a thread has nobody to raise to
                seen.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(40):
        write_json(path, contents[n % 2])
    stop.set()
    reader.join()
    assert seen
    assert all(record in contents for record in seen)
