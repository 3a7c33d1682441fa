"""Checkpoint files: values are restored bit for bit, and damaged files are rejected."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from scrlm_dask.errors import StoreError
from scrlm_dask.storage.checkpoints import Checkpoint, decode, encode
from scrlm_dask.storage.locations import Location, locate


@dataclass(frozen=True)
class Inner:
    counts: Any
    name: str


@dataclass(frozen=True)
class Outer:
    inner: Inner
    values: Any
    more: tuple[Any, ...] = ()


DTYPES = st.sampled_from(["<f4", "<f8", ">f4", "<i8", ">i4", "?", "<u1", "<f2"])
ARRAYS = DTYPES.flatmap(lambda d: arrays.arrays(d, arrays.array_shapes(min_dims=0, min_side=0)))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and a.shape == b.shape
            and a.dtype == b.dtype.newbyteorder(a.dtype.byteorder)
            and a.astype(b.dtype).tobytes() == b.tobytes()
        )
    if isinstance(a, float):
        return isinstance(b, float) and np.float64(a).tobytes() == np.float64(b).tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Inner | Outer):
        return type(a) is type(b) and same(vars(a), vars(b))
    return type(a) is type(b) and a == b


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and np.isnan(value)


@settings(max_examples=60, deadline=None)
@given(ARRAYS, SCALARS.filter(lambda v: not is_nan(v)), st.dictionaries(st.text(), st.integers()))
def test_values_are_restored_bit_for_bit(array: Any, scalar: Any, mapping: dict[str, int]) -> None:
    value = Outer(Inner(array, "é"), [scalar, mapping], (array, np.float64(0.1), np.int32(7)))
    back = decode(b"".join(encode(value)), (Outer, Inner))
    assert same(back.inner, value.inner)
    assert same(back.values, value.values)
    assert same(back.more[0], array)
    assert back.more[1:] == (0.1, 7)


VALUE = Outer(Inner(np.arange(5), "x"), np.ones((2, 3), "f4"))
DATA = b"".join(encode(VALUE))


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_any_flipped_byte_is_detected(at: int, flip: int) -> None:
    damaged = bytearray(DATA)
    damaged[at] ^= flip
    with pytest.raises(StoreError, match=r"x\.bin") as caught:
        decode(bytes(damaged), (Outer, Inner), "x.bin")
    assert caught.value.__cause__ is None  # the digest differs, so the content is not parsed


@settings(max_examples=50, deadline=None)
@given(st.integers(0, len(DATA) - 1))
def test_truncated_data_is_detected(length: int) -> None:
    with pytest.raises(StoreError, match=r"x\.bin") as caught:
        decode(DATA[:length], (Outer, Inner), "x.bin")
    assert caught.value.__cause__ is None  # the digest differs, so the content is not parsed


def test_only_allowed_classes_are_restored() -> None:
    with pytest.raises(StoreError, match=r"(?=.*Inner)(?=.*--overwrite)") as caught:
        decode(DATA, (Outer,))
    assert isinstance(caught.value.__cause__, KeyError)


def test_deeply_nested_header_is_rejected() -> None:
    header = b"[" * 100_000
    body = len(header).to_bytes(8, "little") + header
    data = encode(None)[0] + hashlib.sha256(body).digest() + body
    with pytest.raises(StoreError, match=r"x\.bin") as caught:
        decode(data, (Outer,), "x.bin")
    assert isinstance(caught.value.__cause__, RecursionError)


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), np.array(["text"])])
def test_unsupported_types_are_rejected(value: Any) -> None:
    with pytest.raises(TypeError):
        encode(value)


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    if request.param == "disk":
        return Checkpoint(locate(tmp_path / "run" / "checkpoint"))
    return Checkpoint(Location(f"memory://{tmp_path.name}/checkpoint"))


def test_folder_of_values(folder: Checkpoint) -> None:
    assert folder.names() == set()
    folder.make()
    (folder / "loss-1").make()
    folder.save("centers", VALUE)
    (folder / "loss-1").save("group.000000", 3)
    folder.save("centers", VALUE)  # again, like a task that runs twice
    assert folder.names() == {"centers", "loss-1"}
    assert same(folder.load("centers", (Outer, Inner)), VALUE)
    assert folder.is_sound("centers")
    assert not folder.is_sound("missing")
    folder.remove("centers", "missing")
    assert folder.names() == {"loss-1"}
    folder.remove()
    assert folder.names() == set()


def test_missing_mount_on_a_worker_is_reported(tmp_path: Path) -> None:
    """Only the client creates folders: no other process could read a folder local to a worker."""
    with pytest.raises(StoreError, match=f"(?=.*{tmp_path}/not-mounted/group)(?=.*worker)"):
        Checkpoint(locate(tmp_path / "not-mounted")).save("group", 1)
    assert not (tmp_path / "not-mounted").exists()
