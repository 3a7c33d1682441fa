"""Checkpoints of an incomplete run: one file per value, each with a digest.

A value consists of numbers, strings, arrays and the dataclasses of a pass. Its file contains a
SHA-256 digest, the value as JSON, and the data of its arrays. Nothing is pickled, and a damaged
file is never used. Files are written atomically and verified by reading them back, so a stopped run
leaves only valid files.
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

CHECKPOINT = "checkpoint"  # folder in the run directory, removed when the run is complete
_MAGIC = b"scrlm checkpoint 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_LENGTH_BYTES = 8
_KINDS = "biuf"  # supported NumPy dtype kinds: booleans, integers and floats

Kinds = tuple[type, ...]  # the dataclasses that a value may contain


@dataclass(frozen=True)
class Checkpoint:
    """A folder of saved values and of nested checkpoints; no two values have the same name."""

    location: Location

    def __truediv__(self, name: str) -> Checkpoint:
        return Checkpoint(self.location / name)

    def make(self) -> None:
        """Create the folder; only the client calls this.

        If the file system is not mounted on a worker, writing there therefore fails, instead of
        writing to a new folder on the worker's own disk.
        """
        if not self.location.is_remote:  # object stores have no folders
            Path(self.location.url).mkdir(parents=True, exist_ok=True)

    def names(self) -> set[str]:
        """Return the names of the values and folders in this folder."""
        paths: list[str] = []
        with suppress(FileNotFoundError), self.location.files() as (filesystem, root):
            paths = filesystem.ls(root, detail=False)
        names = {str(name).rstrip("/").rpartition("/")[2] for name in paths}
        return {name for name in names if not name.endswith(".partial")}

    def save(self, name: str, value: Any) -> None:
        """Encode a value and write it to the file `name`."""
        _write(self.location / name, encode(value))

    def load(self, name: str, kinds: Kinds) -> Any:
        """Read and decode the value `name`; raise StoreError if it is missing or damaged."""
        return decode(_read(self.location / name), kinds, str(self.location / name))

    def is_sound(self, name: str) -> bool:
        """Return whether the value `name` can be read and matches its digest.

        This reads the whole file.
        """
        try:
            _check_digest(_read(self.location / name), name)
        except StoreError:
            return False
        return True

    def remove(self, *names: str) -> None:
        """Remove the values and folders called `names`; without names, remove this whole folder.

        Errors are ignored, because remaining files do no harm.
        """
        for location in [self.location / name for name in names] or [self.location]:
            if not location.is_remote:
                path = Path(location.url)
                with suppress(OSError):
                    path.unlink() if path.is_file() else shutil.rmtree(path)
                continue
            with suppress(StoreError), location.files() as (filesystem, root):
                filesystem.rm(root, recursive=True)


def encode(value: Any) -> list[Any]:
    """Encode a value as a list of buffers that starts with a digest; arrays are not copied."""
    arrays: list[NDArray[Any]] = []
    header = json.dumps(_describe(value, arrays)).encode()
    body: list[Any] = [len(header).to_bytes(_LENGTH_BYTES, "little") + header]
    body += [array.reshape(-1).view(np.uint8).data for array in arrays]
    digest = hashlib.sha256()
    for piece in body:
        digest.update(piece)
    return [_MAGIC, digest.digest(), *body]


def decode(data: bytes, kinds: Kinds, what: str = "the checkpoint") -> Any:
    """Decode a value; all dataclasses in it must be in `kinds`."""
    body = _check_digest(data, what)
    end = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "little")
    known = {kind.__qualname__: kind for kind in kinds}
    try:
        header = json.loads(bytes(body[_LENGTH_BYTES:end]))
        return _restore(header, body[end:], known)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(
            f"{what} was written by another version ({error!r}); use --overwrite to start again"
        ) from error


def _check_digest(data: bytes, what: str) -> memoryview:
    """Return the data after the digest; raise if the digest does not match."""
    begin = len(_MAGIC) + _DIGEST_BYTES
    body = memoryview(data)[begin:]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[len(_MAGIC) : begin]:
        raise StoreError(f"{what} is damaged: its content does not match its digest")
    return body


def _describe(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """Convert a value for JSON; append its arrays to `arrays` and replace them by their offsets."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return _describe(value.item(), arrays)
    if isinstance(value, np.ndarray):
        array = value
        if array.dtype.kind not in _KINDS:
            raise TypeError(f"arrays of {array.dtype} are not supported in checkpoints")
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
    raise TypeError(f"values of type {type(value).__name__} are not supported in checkpoints")


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
        raise ValueError(f"arrays of {dtype} are not supported in checkpoints")
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, dtype.newbyteorder("="))
    # frombuffer raises if the file is too short, so a wrong count cannot allocate much memory
    flat = np.frombuffer(memory, dtype, count, offset)
    return flat.reshape(shape).astype(dtype.newbyteorder("="))  # a writable copy


def _write(location: Location, pieces: list[Any]) -> None:
    """Write the file atomically, then read it back to verify it."""
    if location.is_remote:
        with location.files() as (filesystem, path):
            filesystem.pipe_file(path, b"".join(pieces))
    else:
        _write_file(Path(location.url), pieces)
    _check_digest(_read(location), str(location))


def _write_file(path: Path, pieces: list[Any]) -> None:
    # a unique name, because Dask may run the same task on a second worker
    temporary = Path(f"{path}.{uuid4().hex}.partial")
    try:
        with temporary.open("wb") as file:
            file.writelines(pieces)
        temporary.replace(path)
    except FileNotFoundError as error:
        raise StoreError(
            f"{path} cannot be written: its folder does not exist; every worker must be able to "
            "access the run directory under the same path"
        ) from error
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def _read(location: Location) -> bytes:
    try:
        return location.read_bytes(most=None)  # proportional to clusters x features
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{location} cannot be read ({error})") from error
