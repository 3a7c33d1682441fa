"""Traces of files detect every change of an input, also behind symbolic links."""

from __future__ import annotations

import os
import shutil
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

from scrlm_dask.errors import StoreError, UnusableRowsError
from scrlm_dask.storage.arrays import node_digest
from scrlm_dask.storage.feature_store import WEIGHTS, value_names
from scrlm_dask.storage.locations import locate
from scrlm_dask.storage.store_info import describe_store, files_of_features
from scrlm_dask.storage.traces import InputTrace, files_digest, trace_array, trace_input


def write_array(path: Path) -> None:
    array = zarr.create_array(path, shape=(6, 2), chunks=(2, 2), dtype="float32")
    array[:] = np.arange(12, dtype=np.float32).reshape(6, 2)


def link_array(store: Path, elsewhere: Path) -> Path:
    """Move the whole array and link to it; return the folder of its chunks."""
    store.rename(elsewhere)
    store.symlink_to(elsewhere)
    return elsewhere / "c"


def link_folder(store: Path, elsewhere: Path) -> Path:
    (store / "c").rename(elsewhere)
    (store / "c").symlink_to(elsewhere)
    return elsewhere


def link_nested_folders(store: Path, elsewhere: Path) -> Path:
    elsewhere.mkdir()
    for folder in sorted((store / "c").iterdir()):
        folder.rename(elsewhere / folder.name)
        folder.symlink_to(elsewhere / folder.name)
    return elsewhere


def link_files(store: Path, elsewhere: Path) -> Path:
    for file in sorted((store / "c").rglob("0")):
        if file.is_file():
            target = elsewhere / file.relative_to(store / "c")
            target.parent.mkdir(parents=True)
            file.rename(target)
            file.symlink_to(target)
    return elsewhere


LINKS = [link_array, link_folder, link_nested_folders, link_files]
DIGESTS = [files_of_features, files_digest, lambda path: node_digest(locate(path))]


def rewrite(file: Path) -> None:
    """Write other bytes of the same size; the time changes by one nanosecond."""
    written = file.stat().st_mtime_ns
    file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
    os.utime(file, ns=(written, written + 1))


@pytest.mark.parametrize("digest", DIGESTS)
@pytest.mark.parametrize("link", LINKS)
def test_change_behind_a_link_is_detected(
    tmp_path: Path, link: Callable[[Path, Path], Path], digest: Callable[[Path], str]
) -> None:
    write_array(tmp_path / "a")
    chunks = link(tmp_path / "a", tmp_path / "elsewhere")
    before = digest(tmp_path / "a")
    assert digest(tmp_path / "a") == before
    rewrite(chunks / "1/0")
    assert digest(tmp_path / "a") != before


@pytest.mark.parametrize("link", LINKS)
def test_chunks_behind_links_are_counted_and_measured(
    tmp_path: Path, link: Callable[[Path, Path], Path]
) -> None:
    write_array(tmp_path / "a")
    plain = describe_store(tmp_path / "a").stored_bytes
    chunks = link(tmp_path / "a", tmp_path / "elsewhere")
    found = describe_store(tmp_path / "a")
    assert (found.n_chunks, found.n_missing_chunks, found.stored_bytes) == (3, 0, plain)
    (chunks / "2/0").unlink()
    assert describe_store(tmp_path / "a").n_missing_chunks == 1


@pytest.mark.parametrize("digest", DIGESTS)
@pytest.mark.parametrize("name", ["c/1/0", "c", ""])
def test_link_to_other_files_of_the_same_size_and_time_is_detected(
    tmp_path: Path, name: str, digest: Callable[[Path], str]
) -> None:
    write_array(tmp_path / "a")
    linked = tmp_path / "a" / name
    for target in ("one", "two"):
        copy = shutil.copytree if linked.is_dir() else shutil.copy
        copy(linked, tmp_path / target)
        for file in (tmp_path / target, *(tmp_path / target).rglob("*")):
            os.utime(file, ns=(10**18, 10**18))
    linked.rename(tmp_path / "original")
    linked.symlink_to(tmp_path / "one")
    before = digest(tmp_path / "a")
    linked.unlink()
    linked.symlink_to(tmp_path / "two")
    assert digest(tmp_path / "a") != before


def test_cycle_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").write_text("1")
    (tmp_path / "a/b/up").symlink_to(tmp_path / "a")
    (tmp_path / "a/self").symlink_to("self")
    before = files_digest(tmp_path / "a")
    rewrite(tmp_path / "a/file")
    assert files_digest(tmp_path / "a") != before


@pytest.mark.parametrize("inside", ["", "a/", "a/c/"])
def test_links_to_other_folders_in_a_store_are_not_followed(tmp_path: Path, inside: str) -> None:
    """The author of a store could otherwise choose folders that take hours to list."""
    store = tmp_path / "store"
    zarr.create_group(store)
    write_array(store / "a")
    (tmp_path / "other").mkdir()
    (store / f"{inside}link").symlink_to(tmp_path / "other")
    places = [locate(store), locate(store / "a")]
    before = [node_digest(place) for place in places]
    (tmp_path / "other/file").touch()
    assert [node_digest(place) for place in places] == before
    rewrite(store / "a/c/1/0")
    assert not {node_digest(place) for place in places} & {*before}


def test_removed_node_has_another_digest(tmp_path: Path) -> None:
    write_array(tmp_path / "a")
    before = node_digest(locate(tmp_path / "a"))
    shutil.rmtree(tmp_path / "a")
    assert node_digest(locate(tmp_path / "a")) != before


def test_link_without_a_target(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/lost").symlink_to(tmp_path / "target")
    before = files_digest(tmp_path / "a")
    (tmp_path / "target").write_text("found")
    assert files_digest(tmp_path / "a") != before


def test_names_are_a_part_of_the_digest(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one").write_text("1")
    before = files_digest(tmp_path / "a")
    (tmp_path / "a/one").rename(tmp_path / "a/two")
    assert files_digest(tmp_path / "a") != before


def test_files_of_a_remote_store() -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file("/traces/a/one", b"1")
    before = files_digest("memory://traces/a")
    assert files_digest("memory://traces/a") == before
    files.pipe_file("/traces/a/one", b"2")
    assert files_digest("memory://traces/a") != before


class Serving(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """Return the URL of a server of the files in `tmp_path`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Serving, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("name", ["a.npy", ""])
def test_files_of_a_web_server(served: str, tmp_path: Path, name: str) -> None:
    """A web server lists no sizes and no times."""
    np.save(tmp_path / "a.npy", np.ones(3))
    before = files_digest(f"{served}/{name}")
    assert files_digest(f"{served}/{name}") == before
    np.save(tmp_path / "a.npy", np.zeros(3))
    os.utime(tmp_path / "a.npy", (10**9, 10**9))
    assert files_digest(f"{served}/{name}") != before


def test_store_at_the_root_of_a_web_server(served: str, tmp_path: Path) -> None:
    """The URL has a port, but no path."""
    group = zarr.create_group(tmp_path)
    for name in ("features", "labels"):
        group.create_array(name, shape=(4, 1), dtype="f4")
    assert value_names(served) == ("labels",)


def test_features_of_a_web_server(served: str, tmp_path: Path) -> None:
    write_array(tmp_path / "a.zarr")
    before = describe_store(f"{served}/a.zarr")
    local = describe_store(tmp_path / "a.zarr")
    assert (before.n_chunks, before.n_missing_chunks) == (local.n_chunks, 0)
    assert before.stored_bytes == local.stored_bytes
    digest = files_of_features(f"{served}/a.zarr")
    assert files_of_features(f"{served}/a.zarr") == digest
    os.utime(tmp_path / "a.zarr/c/1/0", (10**9, 10**9))
    assert files_of_features(f"{served}/a.zarr") != digest


def test_only_the_names_of_a_large_folder_are_in_memory(tmp_path: Path) -> None:
    for number in range(5000):
        (tmp_path / str(number)).touch()
    files_digest(tmp_path)
    tracemalloc.start()
    try:
        files_digest(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 150 * 5000
    finally:
        tracemalloc.stop()


def test_changed_input_is_named(tmp_path: Path) -> None:
    for name in ("weights.npy", "other.npy"):
        np.save(tmp_path / name, np.ones(3))
    inputs = (
        *trace_input("the others", locate(tmp_path / "other.npy")),
        *trace_input("in memory", None),
        *trace_input(WEIGHTS, locate(tmp_path / "weights.npy")),
    )
    traced = InputTrace(inputs)
    traced.check_at_start()
    traced.check()
    rewrite(tmp_path / "weights.npy")
    with pytest.raises(StoreError, match=rf"{WEIGHTS}.*weights\.npy"):
        traced.check_at_start()
    with pytest.raises(UnusableRowsError, match=rf"{WEIGHTS}.*weights\.npy"):
        traced.check()


def test_link_to_a_folder_above_an_input_is_compared(tmp_path: Path) -> None:
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", np.ones(3))
        os.utime(tmp_path / name / "x.npy", ns=(10**18, 10**18))
    (tmp_path / "current").symlink_to("v1")
    traced = InputTrace(trace_input(WEIGHTS, locate(tmp_path / "current/x.npy")))
    digest = traced.inputs[0].digest
    traced.check()
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to("v2")
    with pytest.raises(UnusableRowsError, match=r"current/x\.npy"):
        traced.check()
    assert files_digest(tmp_path / "current/x.npy") == digest


def test_file_of_a_memory_mapped_array(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.ones((6, 2)))
    mapped = np.load(path, mmap_mode="r")
    views = (mapped, mapped[1:], np.asarray(mapped), mapped.T[::-1], np.ma.array(mapped).data)
    for view in views:
        (found,) = trace_array("x", view)
        assert (found.location, found.digest) == (locate(path), files_digest(path))
    for values in (mapped.copy(), mapped + 1, np.ones(3), [1.0, 2.0], None):
        assert trace_array("x", values) == ()
    path.unlink()  # its content stays mapped
    assert trace_array("x", mapped) == ()


def test_writable_memory_map_is_written_before_it_is_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On some file systems, the time of the file would change later, when pages are written."""
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=(6, 2))
    flushed: list[Any] = []
    monkeypatch.setattr(np.memmap, "flush", lambda values: flushed.append(values))
    trace_array("x", np.asarray(mapped)[2:])
    assert [each is mapped for each in flushed] == [True]
