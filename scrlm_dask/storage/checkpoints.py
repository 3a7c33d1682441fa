"""Checkpoints of an unfinished run: values in files of their own, each with a digest.

A file contains numbers, texts, arrays and the dataclasses of a pass as JSON and plain memory,
preceded by a SHA-256. Nothing is pickled, and a damaged file is never used. A file is written in
one step and read back at once, so a stopped run leaves valid files or none.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import StoreError
from scrlm_dask.storage.locations import Location

CHECKPOINT = "checkpoint"  # folder of a run, removed when the run is complete
_MAGIC = b"scrlm checkpoint 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_LENGTH_BYTES = 8
_KINDS = "biuf"  # of NumPy's types: booleans, integers and floats

Kinds = tuple[type, ...]  # the dataclasses that a value may be made of


@dataclass(frozen=True)
class Checkpoint:
    """A folder of saved values and of such folders; each name is used for one value only."""

    location: Location

    def __truediv__(self, name: str) -> Checkpoint:
        return Checkpoint(self.location / name)

    def make(self) -> None:
        """Create the folder on the client, so that a worker without the mount fails to write."""
        if not self.location.is_remote:  # object stores have no folders
            Path(self.location.url).mkdir(parents=True, exist_ok=True)

    def names(self) -> set[str]:
        """Return the names of the values and folders here."""
        paths: list[str] = []
        with suppress(FileNotFoundError), self.location.files() as (filesystem, root):
            paths = filesystem.ls(root, detail=False)
        names = {str(name).rstrip("/").rpartition("/")[2] for name in paths}
        return {name for name in names if not name.endswith(".partial")}

    def save(self, name: str, value: Any) -> None:
        _write(self.location / name, encode(value))

    def load(self, name: str, kinds: Kinds) -> Any:
        return decode(_read(self.location / name), kinds, str(self.location / name))

    def is_sound(self, name: str) -> bool:
        """Return whether the value matches its digest; reads all of it."""
        try:
            _check_digest(_read(self.location / name), name)
        except StoreError:
            return False
        return True

    def remove(self, *names: str) -> None:
        """Remove values and folders, or all; errors are ignored, as leftovers do no harm."""
        for place in [self.location / name for name in names] or [self.location]:
            if not place.is_remote:
                path = Path(place.url)
                with suppress(OSError):
                    path.unlink() if path.is_file() else shutil.rmtree(path)
                continue
            with suppress(StoreError), place.files() as (filesystem, root):
                filesystem.rm(root, recursive=True)


def encode(value: Any) -> list[Any]:
    """Encode a value as pieces of memory, with a digest of them; arrays are not copied."""
    arrays: list[NDArray[Any]] = []
    header = json.dumps(_describe(value, arrays)).encode()
    body: list[Any] = [len(header).to_bytes(_LENGTH_BYTES, "little") + header]
    body += [array.reshape(-1).view(np.uint8).data for array in arrays]
    digest = hashlib.sha256()
    for piece in body:
        digest.update(piece)
    return [_MAGIC, digest.digest(), *body]


def decode(data: bytes, kinds: Kinds, what: str = "the checkpoint") -> Any:
    """Decode a value; its dataclasses must be in `kinds`."""
    body = _check_digest(data, what)
    end = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "little")
    known = {kind.__qualname__: kind for kind in kinds}
    try:
        header = json.loads(bytes(body[_LENGTH_BYTES:end]))
        return _restore(header, body[end:], known)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{what} was written by another version ({error!r}); begin the run anew with "
            "--overwrite"
        ) from error


def _check_digest(data: bytes, what: str) -> memoryview:
    """Return the data after the digest, if the digest matches."""
    begin = len(_MAGIC) + _DIGEST_BYTES
    body = memoryview(data)[begin:]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[len(_MAGIC) : begin]:
        raise StoreError(f"{what} is damaged: it is not what was written")
    return body


def _describe(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """Return the value as JSON; its arrays are appended to `arrays`, with their offsets."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return _describe(value.item(), arrays)
    if isinstance(value, np.ndarray):
        array = value
        if array.dtype.kind not in _KINDS:
            raise TypeError(f"an array of {array.dtype} cannot be saved")
        array = array.astype(array.dtype.newbyteorder("<"), "C", copy=False)
        offset = sum(before.nbytes for before in arrays)
        arrays.append(array)
        return {"array": [array.dtype.str, list(array.shape), offset]}
    describe = partial(_describe, arrays=arrays)
    if is_dataclass(value) and not isinstance(value, type):
        content = {field.name: describe(getattr(value, field.name)) for field in fields(value)}
        return {"kind": type(value).__qualname__, "fields": content}
    if isinstance(value, Mapping):
        return {"mapping": {name: describe(item) for name, item in value.items()}}
    if isinstance(value, tuple | list):
        return {"tuple" if isinstance(value, tuple) else "list": [*map(describe, value)]}
    raise TypeError(f"a {type(value).__name__} cannot be saved")


def _restore(content: Any, memory: memoryview, known: Mapping[str, type]) -> Any:
    if not isinstance(content, dict):
        return content
    restore = partial(_restore, memory=memory, known=known)
    if "array" in content:
        return _array(content["array"], memory)
    if "kind" in content:
        values = {name: restore(item) for name, item in content["fields"].items()}
        return known[content["kind"]](**values)
    if "mapping" in content:
        return {name: restore(item) for name, item in content["mapping"].items()}
    items = [restore(item) for item in content["tuple" if "tuple" in content else "list"]]
    return tuple(items) if "tuple" in content else items


def _array(content: Any, memory: memoryview) -> NDArray[Any]:
    text, shape, offset = content
    dtype = np.dtype(text)
    if dtype.kind not in _KINDS:
        raise ValueError(f"no arrays of {dtype} are saved")
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, dtype.newbyteorder("="))
    # bounded by the file: a damaged header cannot allocate memory
    flat = np.frombuffer(memory, dtype, count, offset)
    return flat.reshape(shape).astype(dtype.newbyteorder("="))  # a copy, which may be written to


def _write(location: Location, pieces: list[Any]) -> None:
    """Write in one step, then read it back to verify it."""
    if location.is_remote:
        with location.files() as (filesystem, path):
            filesystem.pipe_file(path, b"".join(pieces))
    else:
        _write_file(Path(location.url), pieces)
    _check_digest(_read(location), str(location))


def _write_file(path: Path, pieces: list[Any]) -> None:
    # a unique name: a task that Dask ran on a second worker writes the same file
    temporary = Path(f"{path}.{uuid4().hex}.partial")
    try:
        with temporary.open("wb") as file:
            file.writelines(pieces)
        temporary.replace(path)
    except FileNotFoundError as error:
        raise StoreError(
            f"{path} cannot be written: its folder is not there; every worker must see the run's "
            "directory under the same path"
        ) from error
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def _read(location: Location) -> bytes:
    try:
        return location.read_bytes()
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{location} cannot be read ({error})") from error
