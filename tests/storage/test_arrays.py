"""Zarr arrays, our own and foreign ones: rows are read; missing or damaged chunks are reported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, ZstdCodec

from scrlm_dask.engine.features import as_features
from scrlm_dask.errors import ClusterError, MissingError, StoreError
from scrlm_dask.storage import arrays
from scrlm_dask.storage.arrays import (
    StoredArray,
    add_array,
    check_complete,
    child,
    create_array,
    create_group,
    describe,
    has_member,
    member,
    open_node,
    read_member,
    read_rows,
    write_rows,
)
from scrlm_dask.storage.locations import locate

WHAT = "array-7"  # the name of the array in messages
# 10 rows of 4 features; row i is 4i, 4i+1, 4i+2, 4i+3. In chunks of 3: rows 0-2, 3-5, 6-8 and 9.
ROWS: NDArray[np.float32] = np.arange(40, dtype=np.float32).reshape(10, 4)


def write_foreign(path: Path | str, **options: Any) -> StoredArray:
    """Write ROWS as another program would write them."""
    options = {"shape": ROWS.shape, "chunks": (3, 4), "dtype": "float32", **options}
    array = zarr.create_array(str(path), **options)
    array[...] = ROWS
    return describe(array)


def write_ours(path: Path) -> StoredArray:
    """Write ROWS as this project writes them."""
    array = create_array(str(path), ROWS.shape, (3, 4), "float32", np.nan)
    write_rows(str(path), 0, ROWS[:6])
    write_rows(str(path), 6, ROWS[6:])
    return describe(array)


def array_at(path: Path | str) -> zarr.Array[Any]:
    node = open_node(path, WHAT)
    assert isinstance(node, zarr.Array)
    return node


def check(stored: StoredArray) -> None:
    check_complete(stored, array_at(stored.location.url), WHAT)


# --- our arrays --------------------------------------------------------------------------------


def test_our_arrays_are_zarr_v3_with_a_checksum_and_no_compression(tmp_path: Path) -> None:
    write_ours(tmp_path / "a")
    array = array_at(tmp_path / "a")
    metadata = array.metadata.to_dict()
    assert metadata["zarr_format"] == 3
    assert [codec["name"] for codec in metadata["codecs"]] == ["bytes", "crc32c"]
    # 3 rows x 4 features x 4 bytes, then the checksum's 4
    assert (tmp_path / "a/c/0/0").read_bytes()[:-4] == ROWS[:3].tobytes()
    assert (tmp_path / "a/c/0/0").stat().st_size == 48 + 4


@pytest.mark.parametrize("fill", [0.0, np.nan])
def test_chunks_of_fill_values_are_stored(tmp_path: Path, fill: float) -> None:
    # Zarr omits such chunks by default, and then they look like lost ones
    array = create_array(str(tmp_path / "a"), (6, 4), (3, 4), "float32", fill)
    for start in (0, 3):
        write_rows(str(tmp_path / "a"), start, np.full((3, 4), fill, np.float32))
    check(describe(array))
    assert np.array_equal(
        read_rows(describe(array), 0, 6, WHAT), np.full((6, 4), fill), equal_nan=True
    )


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(3),
        np.array([[1, -2], [3, 4]], np.int64),
        np.empty((0, 5)),
        np.array([np.nan, -0.0, np.inf, 5e-324]),
        np.array([1.5, 2.5], np.float32),
    ],
    ids=str,
)
def test_small_array_is_restored_bit_for_bit(tmp_path: Path, values: NDArray[Any]) -> None:
    add_array(f"{tmp_path}/a", values)
    back = read_rows(describe(array_at(tmp_path / "a")), 0, len(values), WHAT)
    assert (back.dtype, back.shape) == (values.dtype, values.shape)
    assert back.tobytes() == values.tobytes()


def test_array_without_rows_is_written_and_read(tmp_path: Path) -> None:
    create_array(str(tmp_path / "a"), (0, 4), (0, 4), "float64", 0)
    stored = describe(array_at(tmp_path / "a"))
    assert (stored.shape, stored.chunks) == ((0, 4), (1, 4))
    check(stored)
    assert read_rows(stored, 0, 0, WHAT).shape == (0, 4)


def test_group_that_exists_is_rejected(tmp_path: Path) -> None:
    """Two processes may create the same output at the same moment."""
    create_group(tmp_path / "x.zarr", {})
    with pytest.raises(StoreError, match=rf"{tmp_path}/x\.zarr"):
        create_group(tmp_path / "x.zarr", {})


@pytest.mark.parametrize("change", [{"node_type": 1}, {"codecs": [{"name": "x"}]}, {"shape": "5"}])
def test_member_with_damaged_metadata_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    create_group(tmp_path / "x.zarr", {})
    add_array(tmp_path / "x.zarr" / "a", np.arange(5))
    metadata = tmp_path / "x.zarr" / "a" / "zarr.json"
    group = zarr.open_group(tmp_path / "x.zarr", mode="r")
    assert has_member(group, locate(tmp_path / "x.zarr"), "a")
    assert not has_member(group, locate(tmp_path / "x.zarr"), "b")
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), **change}))
    with pytest.raises(StoreError, match=r"a in .*x\.zarr"):
        has_member(group, locate(tmp_path / "x.zarr"), "a")


@pytest.mark.parametrize("name", ["open", "member", "read"])
def test_timeout_is_not_damage(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise ClusterError("no block finished")

    stored = write_ours(tmp_path / "a.zarr")
    group = zarr.create_group(str(tmp_path / "g.zarr"))
    owner, method = {
        "open": (zarr, "open"),
        "member": (zarr.Group, "get"),
        "read": (zarr.Array, "__getitem__"),
    }[name]
    monkeypatch.setattr(owner, method, stop)
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: arrays.open_node(stored.location, "the store"),
        "member": lambda: arrays.child(group, locate(tmp_path / "g.zarr"), "a"),
        "read": lambda: arrays.read_rows(stored, 0, 1, "the store"),
    }
    with pytest.raises(ClusterError):
        calls[name]()


def test_missing_member_is_named(tmp_path: Path) -> None:
    group = zarr.create_group(str(tmp_path / "g"))
    add_array(f"{tmp_path}/g/there", np.array([7, 8], np.int32))
    assert read_member(group, locate(tmp_path / "g"), "there", "the model").tolist() == [7, 8]
    with pytest.raises(StoreError, match=f"(?=.*{tmp_path}/g)(?=.*'elsewhere')"):
        member(group, locate(tmp_path / "g"), "elsewhere")
    group.create_group("folder")
    with pytest.raises(StoreError, match=f"(?=.*{tmp_path}/g)(?=.*'folder')"):
        member(group, locate(tmp_path / "g"), "folder")


# --- foreign arrays ----------------------------------------------------------------------------

LAYOUTS: dict[str, dict[str, Any]] = {
    "v3 as zarr writes it": {},
    "v2": {"zarr_format": 2},
    "v2 nested keys": {
        "zarr_format": 2,
        "chunk_key_encoding": {"name": "v2", "separator": "/"},
    },
    "v2 big-endian": {"zarr_format": 2, "dtype": ">f4"},
    "v2 Fortran order": {"zarr_format": 2, "order": "F"},
    "v3 big-endian": {"serializer": BytesCodec(endian="big")},
    "v3 flat keys": {"chunk_key_encoding": {"name": "default", "separator": "."}},
    "v3 with v2 keys": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "sharded": {"chunks": (2, 4), "shards": (4, 4)},
    "sharded across columns": {"chunks": (2, 2), "shards": (4, 2)},
    "chunked across columns": {"chunks": (3, 3)},
    "one column per chunk": {"chunks": (10, 1)},
    "chunk larger than array": {"chunks": (64, 8)},
    "not compressed": {"compressors": None},
    "zstd": {"compressors": [ZstdCodec(level=3)]},
    "zstd and crc32c": {"compressors": [ZstdCodec(), Crc32cCodec()]},
    "blosc": {"compressors": [BloscCodec(cname="lz4", shuffle="shuffle", typesize=4)]},
    "float16": {"dtype": "float16"},
    "float64": {"dtype": "float64"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_foreign_arrays_are_read(tmp_path: Path, layout: str) -> None:
    stored = write_foreign(tmp_path / "a", **LAYOUTS[layout])
    check(stored)
    assert stored.shape == (10, 4)
    # within a chunk, across a border, the last row, everything
    for start, stop in ((1, 2), (2, 7), (9, 10), (0, 10)):
        np.testing.assert_array_equal(
            read_rows(stored, start, stop, WHAT), ROWS[start:stop], err_msg=f"{start}:{stop}"
        )


def test_shard_is_the_unit_of_storage(tmp_path: Path) -> None:
    stored = write_foreign(tmp_path / "a", chunks=(2, 4), shards=(4, 4))
    assert stored.chunks == (4, 4)
    assert sorted(p.name for p in (tmp_path / "a/c").iterdir()) == ["0", "1", "2"]


@pytest.mark.parametrize("layout", ["v2 big-endian", "sharded", "chunked across columns"])
def test_blocks_not_aligned_with_chunks_give_the_same_rows(tmp_path: Path, layout: str) -> None:
    write_foreign(tmp_path / "a", **LAYOUTS[layout])
    features = as_features(tmp_path / "a", block_rows=4)
    assert features.array.chunks == ((4, 4, 2), (4,))
    blocks = features.array.compute(scheduler="sync")
    assert blocks.dtype == features.array.dtype
    np.testing.assert_array_equal(blocks, ROWS)


@pytest.mark.parametrize("name", ["a b", "a#b", "a%20b", "a?b", "[a]", "a*b", "a:b", "ü", "x/../y"])
def test_odd_paths(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").mkdir()
    stored = write_foreign(tmp_path / name)
    check(stored)
    np.testing.assert_array_equal(read_rows(stored, 0, 10, WHAT), ROWS)


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_foreign("a")
    assert locate("a").url == locate(Path("a")).url == f"{tmp_path}/a"
    assert locate(f"file://{tmp_path}/a").url == f"{tmp_path}/a"
    stored = describe(array_at("a"))
    assert stored.location.url == f"{tmp_path}/a"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    np.testing.assert_array_equal(read_rows(stored, 0, 10, WHAT), ROWS)


@pytest.mark.parametrize("part", ["", "c", "c/1", "c/1/0"])
def test_symbolic_links_are_followed(tmp_path: Path, part: str) -> None:
    write_foreign(tmp_path / "a")
    shutil.move(tmp_path / "a" / part, tmp_path / "moved")
    (tmp_path / "a" / part).symlink_to(tmp_path / "moved")
    stored = describe(array_at(tmp_path / "a"))
    np.testing.assert_array_equal(read_rows(stored, 0, 10, WHAT), ROWS)
    check(stored)


# --- missing chunks ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "key", "row"),
    [
        ("v3 as zarr writes it", "c/1/0", 3),
        ("v3 as zarr writes it", "c/3/0", 9),
        ("v2", "1.0", 3),
        ("v2 nested keys", "2/0", 6),
        ("v3 flat keys", "c.1.0", 3),
        ("sharded", "c/1/0", 4),
        ("chunked across columns", "c/0/1", 0),
        ("one column per chunk", "c/0/3", 0),
    ],
)
def test_missing_chunk_is_rejected_before_reading(
    tmp_path: Path, layout: str, key: str, row: int
) -> None:
    stored = write_foreign(tmp_path / "a", **LAYOUTS[layout])
    (tmp_path / "a" / key).unlink()
    with pytest.raises(StoreError) as caught:
        check(stored)
    message = str(caught.value)
    for fact in (WHAT, f"{tmp_path}/a", key, "0.0"):
        assert fact in message
    assert re.search(rf"\brow {row}\b", message)
    assert re.search(r"\b1\b", message.replace(f"{tmp_path}/a", "").replace(key, ""))


def test_all_missing_chunks_are_counted(tmp_path: Path) -> None:
    stored = write_foreign(tmp_path / "a")
    for number in (1, 3):
        (tmp_path / f"a/c/{number}/0").unlink()
    with pytest.raises(StoreError, match=r"(?=.*\bc/1/0\b)(?=.*\brow 3\b)") as caught:
        check(stored)
    assert re.search(r"\b2\b", str(caught.value).replace(f"{tmp_path}/a", ""))


def test_temporary_file_does_not_count_as_chunk(tmp_path: Path) -> None:
    stored = write_foreign(tmp_path / "a")
    chunk = tmp_path / "a/c/1/0"
    chunk.rename(chunk.with_name("0.1f2e.partial"))
    with pytest.raises(StoreError, match=r"\bc/1/0\b"):
        check(stored)


def test_omitted_zero_chunk_is_rejected_with_a_hint(tmp_path: Path) -> None:
    # Zarr's default: such a chunk looks like a lost one
    array = zarr.create_array(str(tmp_path / "a"), shape=(6, 4), chunks=(3, 4), dtype="float32")
    array[0:3] = 1
    array[3:6] = 0
    facts = r"(?=.*\bc/1/0\b)(?=.*\brow 3\b)(?=.*write_empty_chunks=True)"
    with pytest.raises(StoreError, match=facts):
        check(describe(array))


def test_chunk_missing_inside_a_shard_is_rejected(tmp_path: Path) -> None:
    # the writer stopped in the middle of the second shard: rows 15 to 19 would be read as 0
    array = zarr.create_array(
        str(tmp_path / "a"), shape=(20, 4), chunks=(5, 4), shards=(10, 4), dtype="float32"
    )
    array[0:15] = 1
    with pytest.raises(StoreError, match=r"(?=.*\bc/1/0\b)(?=.*\brow 15\b)"):
        check(describe(array))


@pytest.mark.parametrize("layout", ["v3 as zarr writes it", "v2", "chunked across columns"])
def test_chunk_removed_during_a_run_is_detected(tmp_path: Path, layout: str) -> None:
    stored = write_foreign(tmp_path / "a", **LAYOUTS[layout])
    check(stored)
    key = {"v2": "1.0", "chunked across columns": "c/1/1"}.get(layout, "c/1/0")
    (tmp_path / "a" / key).unlink()
    # rows of other chunks can still be read
    np.testing.assert_array_equal(read_rows(stored, 0, 3, WHAT), ROWS[0:3])
    np.testing.assert_array_equal(read_rows(stored, 6, 10, WHAT), ROWS[6:10])
    for start, stop in ((3, 6), (2, 4), (5, 6), (0, 10)):
        with pytest.raises(StoreError) as caught:
            read_rows(stored, start, stop, WHAT)
        message = str(caught.value)
        for fact in (key, WHAT, f"{tmp_path}/a"):
            assert fact in message
        assert re.search(rf"\brows {start}\D+{stop - 1}\b", message)
        assert caught.value.__cause__ is None  # not an error of the codec


def test_chunk_removed_during_a_run_stops_the_dask_graph(tmp_path: Path) -> None:
    write_foreign(tmp_path / "a")
    features = as_features(tmp_path / "a", block_rows=3)
    (tmp_path / "a/c/2/0").unlink()
    with pytest.raises(StoreError, match=r"(?=.*\bc/2/0\b)(?=.*\brows 6\D+8\b)"):
        features.array.compute(scheduler="sync")


def test_store_removed_during_a_run_is_detected(tmp_path: Path) -> None:
    # a worker on a host without the mount gets an error, not zeros
    stored = write_foreign(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(MissingError, match=f"(?=.*{WHAT})(?=.*{tmp_path}/a)"):
        read_rows(stored, 0, 3, WHAT)


def test_shape_changed_during_a_run_is_detected(tmp_path: Path) -> None:
    stored = write_foreign(tmp_path / "a")
    zarr.open_array(str(tmp_path / "a"), mode="r+").resize((12, 4))
    with pytest.raises(StoreError, match=r"(?=.*\(12, 4\))(?=.*\(10, 4\))"):
        read_rows(stored, 0, 3, WHAT)


# --- damaged chunks ----------------------------------------------------------------------------


def flip_a_bit(content: bytes) -> bytes:
    return content[:5] + bytes([content[5] ^ 0b100]) + content[6:]


def cut_in_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def empty(content: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [flip_a_bit, cut_in_half, empty])
def test_damage_to_our_chunks_is_detected(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    stored = write_ours(tmp_path / "a")
    chunk = tmp_path / "a/c/1/0"
    chunk.write_bytes(damage(chunk.read_bytes()))
    check(stored)  # the file exists, and its content is not read yet
    np.testing.assert_array_equal(read_rows(stored, 0, 3, WHAT), ROWS[0:3])
    with pytest.raises(StoreError) as caught:
        read_rows(stored, 2, 5, WHAT)
    message = str(caught.value)
    assert WHAT in message
    assert f"{tmp_path}/a" in message
    assert re.search(r"\brows 2\D+4\b", message)
    assert "\n" not in message
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("damage", [cut_in_half, empty])
@pytest.mark.parametrize("layout", ["v2", "not compressed", "zstd", "sharded"])
def test_truncated_foreign_chunks_are_detected(
    tmp_path: Path, layout: str, damage: Callable[[bytes], bytes]
) -> None:
    stored = write_foreign(tmp_path / "a", **LAYOUTS[layout])
    chunk = tmp_path / "a" / ("1.0" if layout == "v2" else "c/1/0")
    chunk.write_bytes(damage(chunk.read_bytes()))
    with pytest.raises(StoreError, match=rf"(?=.*\brows 4\D+5\b)(?=.*{tmp_path}/a)") as caught:
        read_rows(stored, 4, 6, WHAT)
    assert caught.value.__cause__ is not None  # the error of the codec


_READ_ROWS_3_TO_5 = """
import sys
import zarr
from scrlm_dask.errors import StoreError
from scrlm_dask.storage.arrays import describe, read_rows
try:
    read_rows(describe(zarr.open_array(sys.argv[1], mode="r")), 3, 6, "the features store")
except StoreError as error:
    print(error)
"""


def test_truncated_blosc_chunk_is_detected(tmp_path: Path) -> None:
    # numcodecs trusts the length in the header and reads past the end: garbage, or a crash of the
    # process. Therefore a subprocess reads it.
    write_foreign(tmp_path / "a", **LAYOUTS["blosc"])
    chunk = tmp_path / "a/c/1/0"
    chunk.write_bytes(cut_in_half(chunk.read_bytes()))
    done = subprocess.run(
        [sys.executable, "-c", _READ_ROWS_3_TO_5, str(tmp_path / "a")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0
    assert re.search(r"\brows 3\D+5\b", done.stdout)
    assert re.search(r"\b32\b.*\b64\b", done.stdout)


# --- other files -------------------------------------------------------------------------------


def test_missing_path(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=f"(?=.*{WHAT})(?=.*{tmp_path}/nowhere)"):
        open_node(tmp_path / "nowhere", WHAT)


def text_file(path: Path) -> None:
    path.write_text("1 2 3\n")


def empty_folder(path: Path) -> None:
    path.mkdir()


def folder_of_files(path: Path) -> None:
    path.mkdir()
    np.save(path / "part.npy", ROWS)


def broken_metadata(path: Path) -> None:
    path.mkdir()
    (path / "zarr.json").write_text('{"zarr_format": 3, "node_ty')


@pytest.mark.parametrize("make", [text_file, empty_folder, folder_of_files, broken_metadata])
def test_path_that_is_not_a_zarr_store_is_rejected(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "a")
    with pytest.raises(StoreError) as caught:
        open_node(tmp_path / "a", WHAT)
    message = str(caught.value)
    for fact in (WHAT, f"{tmp_path}/a", "Zarr"):
        assert fact in message
    assert "\n" not in message


def test_missing_store_raises_the_builtin_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/nowhere"):
        open_node(tmp_path / "nowhere", WHAT)


# --- damaged metadata --------------------------------------------------------------------------


def claim(path: Path, shape: list[int], chunks: list[int]) -> None:
    """Write metadata that claim another shape and other chunks."""
    content = json.loads((path / "zarr.json").read_text())
    content["shape"], content["chunk_grid"]["configuration"]["chunk_shape"] = shape, chunks
    (path / "zarr.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ([10, 4], [0, 4]),
        ([10, 4], [3, 0]),
        ([10, 4], [-3, 4]),
        ([-10, 4], [3, 4]),
        ([10**15, 4], [3, 4]),
        ([10, 10**15], [3, 1]),
        ([10**15, 4], [10**15, 4]),
    ],
)
def test_metadata_that_claim_impossible_chunks(
    tmp_path: Path, shape: list[int], chunks: list[int]
) -> None:
    write_foreign(tmp_path / "g/features")
    zarr.open_group(tmp_path / "g", mode="a")
    claim(tmp_path / "g/features", shape, chunks)
    with pytest.raises(StoreError, match=f"{tmp_path}/g/features"):
        open_node(tmp_path / "g/features", WHAT)
    group = open_node(tmp_path / "g", WHAT)
    assert isinstance(group, zarr.Group)
    with pytest.raises(StoreError, match=f"features.*{tmp_path}/g"):
        child(group, locate(tmp_path / "g"), "features")


def test_chunk_that_does_not_fit_in_memory_is_not_reported_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    write_foreign(tmp_path / "a")
    stored = describe(array_at(tmp_path / "a"))
    # some systems grant any amount of memory, so a large chunk would not fail everywhere
    monkeypatch.setattr(zarr.Array, "__getitem__", fail)
    chunk, size = re.escape(str(stored.chunks)), prod(stored.chunks) * stored.dtype.itemsize
    with pytest.raises(StoreError, match=rf"{tmp_path}/a.*{chunk}.*\b{size}\b"):
        arrays.read_rows(stored, 0, 3, WHAT)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_array_without_dimensions_has_one_chunk(tmp_path: Path, zarr_format: Any) -> None:
    array = zarr.create_array(tmp_path / "a", shape=(), dtype="f4", zarr_format=zarr_format)
    location = locate(tmp_path / "a")
    assert arrays.trace_chunks(location, array).n_missing == 1
    assert list(arrays.missing_rows(location, array)) == [0]
    array[...] = 1.0
    found = arrays.trace_chunks(location, array)
    assert (found.n_chunks, found.n_missing) == (1, 0)


def test_lookup_ends_after_many_missing_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_foreign(tmp_path / "a")
    claim(tmp_path / "a", [10**8, 4], [3, 4])
    monkeypatch.setattr(arrays, "MOST_COUNTED", 5000)
    files = arrays.trace_chunks(locate(tmp_path / "a"), array_at(tmp_path / "a"))
    assert files.n_chunks == -(-(10**8) // 3)
    assert 5000 <= files.n_missing < 10_000
    assert files.first_missing is not None
    assert (files.first_missing.key, files.first_missing.row) == ("c/4/0", 12)


@pytest.mark.parametrize("axis", [0, 1])
def test_memory_of_a_lookup_does_not_depend_on_the_number_of_chunks(
    tmp_path: Path, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "MOST_COUNTED", 5000)  # a complete lookup would take minutes
    write_foreign(tmp_path / "a", chunks=(3, 1))
    peaks = [peak_of_lookup(tmp_path / "a", axis, n_chunks) for n_chunks in (2 * 10**4, 10**7)]
    assert peaks[1] < peaks[0] + 1e6  # the positions of 10^7 chunks would take 390 MB


def test_memory_of_a_lookup_does_not_depend_on_the_number_of_files(tmp_path: Path) -> None:
    write_foreign(tmp_path / "a", chunks=(3, 1))
    peaks, n_written = [], ROWS.shape[1]
    for n_chunks in (10_000, 25_000):  # several times the files that are looked up at once
        for i in range(n_written, n_chunks):
            os.mknod(tmp_path / f"a/c/0/{i}")
        n_written = n_chunks
        peaks.append(peak_of_lookup(tmp_path / "a", 1, n_chunks))
    assert peaks[1] < peaks[0] + 1e6  # the traces of 15 000 more files would take 4 MB


def peak_of_lookup(path: Path, axis: int, n_chunks: int) -> int:
    """Return the peak memory of a lookup of all chunks of an array that claims `n_chunks`."""
    claim(path, [3 * n_chunks, 1] if axis == 0 else [3, n_chunks], [3, 1])
    array, location = array_at(path), locate(path)
    tracemalloc.start()
    files = arrays.trace_chunks(location, array)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert files.n_chunks == n_chunks
    return peak


def test_chunks_are_listed_in_row_order(tmp_path: Path) -> None:
    write_foreign(tmp_path / "a", chunks=(3, 2))
    array = array_at(tmp_path / "a")
    found = [(chunk.grid, chunk.row) for chunk in arrays.chunks_of(array, 3, 7)]
    assert found == [((1, 0), 3), ((1, 1), 3), ((2, 0), 6), ((2, 1), 6)]
    assert len(list(arrays.chunks_of(array, 0, 10))) == 8
