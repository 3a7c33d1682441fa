"""The run directory: begin, finish, discard and overwrite; foreign files are never removed."""

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
from scrlm_dask.storage.outputs import RUN_KIND, discard, move_into_place, open_output
from scrlm_dask.storage.run_directory import COMPLETE, RunDirectory, write_json


def read_json(path: Path) -> Any:
    """Read strict JSON, in which NaN and Infinity are not allowed."""

    def reject(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text(), parse_constant=reject)


# --- begin, finish, discard --------------------------------------------------------------------


def test_run_from_begin_to_finish(tmp_path: Path) -> None:
    run = RunDirectory(f"{tmp_path}/some/where/run")
    assert not run.record.is_file()
    run.create({"seed": 3})
    assert run.record.is_file()
    assert read_json(run.record).items() >= {"seed": 3, "status": "running"}.items()
    with pytest.raises(StoreError, match=rf"(?=.*{run.path}\b)(?=.*running)"):
        run.check_complete()
    run.write_record({"seed": 3, "seconds": 0.5}, COMPLETE)
    expected = {"seed": 3, "seconds": 0.5, "status": "complete"}
    assert run.check_complete().items() >= expected.items()
    assert list(tree(tmp_path / "some/where/run")) == ["run.json"]


def test_paths() -> None:
    run = RunDirectory("/data/run")
    assert run.model.url == "/data/run/model.zarr"
    assert run.labels.url == "/data/run/labels.zarr"
    assert run.record.url == "/data/run/run.json"


def test_given_status_is_ignored(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    run.create({"status": "complete"})
    assert run.read_record()["status"] == "running"


def test_discarded_run_leaves_no_files(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    run.create({})
    zarr.create_group(run.labels.url)
    discard(run.path, RUN_KIND)
    assert tree(tmp_path) == {}
    discard(run.path, RUN_KIND)  # nothing is left to remove


def test_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    RunDirectory(str(tmp_path / "run")).create({})
    assert read_json(tmp_path / "run/run.json")["status"] == "running"


def test_folder_without_record_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=rf"(?=.*{tmp_path}\b)(?=.*run\.json)(?=.*scrlm fit)"):
        RunDirectory(str(tmp_path)).check_complete()


@pytest.mark.parametrize(
    "content", ['{"status": "comp', "", "\x00", '["complete"]', "null", "[" * 100_000]
)
def test_unreadable_record_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(
        StoreError, match=rf"(?=.*{tmp_path}/run\.json)(?=.*--overwrite|.*scrlm fit)"
    ):
        RunDirectory(str(tmp_path)).check_complete()


def test_run_at_a_url_writes_no_local_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with suppress(StoreError):  # an error would also be correct
        RunDirectory("memory://bucket/run").create({})
    assert tree(tmp_path) == {}


# --- overwrite ---------------------------------------------------------------------------------


def test_run_is_replaced_only_with_overwrite(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    run.create({"number": 1})
    zarr.create_group(run.model.url)
    run.write_record({"number": 1}, COMPLETE)
    before = tree(tmp_path / "run")
    with pytest.raises(StoreError, match=f"(?=.*{tmp_path}/run)(?=.*--overwrite)"):
        open_output(run.path, False, RUN_KIND)
    new = RunDirectory(open_output(run.path, True, RUN_KIND))
    new.create({"number": 2})
    assert tree(tmp_path / "run") == before
    new.write_record({"number": 2}, COMPLETE)
    move_into_place(new.location, run.path)
    # no file of the old run is left
    assert sorted(tree(tmp_path)) == ["run", "run/run.json"]
    assert run.check_complete()["number"] == 2


def test_interrupted_run_is_replaced(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    run.create({})
    assert open_output(run.path, True, RUN_KIND) == run.location
    assert not run.location.is_occupied()
    run.create({"number": 2})
    assert run.read_record()["number"] == 2


# --- the record --------------------------------------------------------------------------------


def test_written_record_is_one_file_that_ends_with_a_newline(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"a": [1, 2.5, None, "ü"]})
    assert list(tree(tmp_path)) == ["run.json"]
    assert (tmp_path / "run.json").read_text().endswith("}\n")
    assert read_json(tmp_path / "run.json") == {"a": [1, 2.5, None, "ü"]}


@pytest.mark.parametrize("value", [np.nan, np.inf, object(), np.int64(3)])
def test_values_that_are_not_json_leave_the_old_record(tmp_path: Path, value: Any) -> None:
    write_json(tmp_path / "run.json", {"status": "running"})
    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "run.json", {"status": "complete", "value": value})
    assert tree(tmp_path) == {"run.json": b'{\n  "status": "running"\n}\n'}


def test_reader_sees_the_old_or_the_new_record(tmp_path: Path) -> None:
    # 200 kB, so that the reader would see a partial file if it were written in place
    path = tmp_path / "run.json"
    contents = [{"number": n, "filler": [n] * 20_000} for n in range(2)]
    write_json(path, contents[0])
    stop = threading.Event()
    seen: list[Any] = []

    def read() -> None:
        while not stop.is_set():
            try:
                seen.append(json.loads(path.read_text()))
            except Exception as error:  # an exception in a thread is lost
                seen.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(40):
        write_json(path, contents[n % 2])
    stop.set()
    reader.join()
    assert seen
    assert all(record in contents for record in seen)
