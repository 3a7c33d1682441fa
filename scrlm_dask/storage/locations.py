"""Locations: a local path, or an fsspec URL with the options that open it.

Callers use a `Location` without knowing which of the two it is. The options may contain
credentials, so nothing here shows them.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import urlsplit

import fsspec
from zarr.storage import FsspecStore

from scrlm_dask.errors import InputError, MissingError, ScrlmError, UnreachableError

Options: TypeAlias = Mapping[str, Any]

_S3 = ("s3", "s3a")
# A lost server must end a run, not hang it; a short failure must not. These multiply: a request
# without an answer fails after 2 x 3 x 5 s. Listings are not cached: another process may have
# written or removed files since.
_S3_DEFAULTS: dict[str, Any] = {
    "config_kwargs": {"connect_timeout": 5, "read_timeout": 5, "retries": {"max_attempts": 2}},
    "use_listings_cache": False,
}
_S3_TRIES = 2  # of s3fs, which has no option for it; each includes the retries of botocore
_ACCESS_ERRORS = ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError")


class HiddenOptions:
    """Storage options that no repr shows.

    Neither a mapping nor a dataclass: Dask traverses those, and may log their values.
    """

    def __init__(self, values: Options | None = None) -> None:
        self._values = dict(values or {})

    def __repr__(self) -> str:
        return "***"

    def reveal(self) -> dict[str, Any]:
        return dict(self._values)


_NO_OPTIONS = HiddenOptions()


@dataclass(frozen=True)
class Location:
    """A local path or a URL; made by `locate`, small enough to send to every worker."""

    url: str
    options: HiddenOptions = field(default=_NO_OPTIONS, compare=False)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self.url}/{name}", self.options)

    @property
    def is_remote(self) -> bool:
        return "://" in self.url and urlsplit(self.url).scheme not in ("", "file")

    def store(self) -> str | FsspecStore:
        """Return the store for Zarr's functions."""
        if not self.is_remote:
            return self.url
        store = FsspecStore.from_url(self.url, self._settings())
        _limit_tries(store.fs)
        return store

    def parents(self) -> list[Location]:
        """Return the folders above, nearest first."""
        if not self.is_remote:
            return [Location(str(parent)) for parent in Path(self.url).parents]
        protocol, rest = self.url.split("://", 1)
        names = rest.split("/")
        above = ["/".join(names[:n]) for n in range(len(names) - 1, 0, -1)]
        return [Location(f"{protocol}://{path}", self.options) for path in above]

    @contextmanager
    def files(self, what: str = "") -> Iterator[tuple[Any, str]]:
        """Yield fsspec's file system, without cached listings, and the path in it.

        Errors are those of `reaching`.
        """
        with reaching(self, what):
            if self.is_remote:
                filesystem, path = fsspec.core.url_to_fs(self.url, **self._settings())
                filesystem.invalidate_cache()
                _limit_tries(filesystem)
                yield filesystem, path
            else:
                yield fsspec.filesystem("file"), self.url

    def exists(self) -> bool:
        with self.files() as (filesystem, path):
            return bool(filesystem.exists(path))

    def is_file(self) -> bool:
        """Return whether there is a file; unlike fsspec's, raise if the store does not answer."""
        if not self.is_remote:
            return Path(self.url).is_file()
        with suppress(FileNotFoundError), self.files() as (filesystem, path):
            return bool(filesystem.info(path)["type"] == "file")
        return False

    def is_occupied(self) -> bool:
        """Return whether there is anything but an empty folder."""
        if not self.is_remote:
            path = Path(self.url)
            return path.exists() and not (path.is_dir() and not any(path.iterdir()))
        with self.files() as (filesystem, name):
            try:
                if filesystem.info(name)["type"] != "directory":
                    return True
            except FileNotFoundError:
                return False
            # Look for the first file: some object stores keep empty folders, marked by an object
            # of the folder's name.
            below = filesystem.walk(name, on_error=_unless_gone)
            return any(any(files) for _, _, files in below)

    def read_bytes(self) -> bytes:
        with self.files() as (filesystem, path):
            return bytes(filesystem.cat_file(path))

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def write_text(self, text: str) -> None:
        """Write in one step: a reader sees the old file or the new one, never a half."""
        if not self.is_remote:
            temporary = Path(self.url).with_suffix(".partial")
            with temporary.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())  # else a crash may leave the new name with nothing in it
            temporary.replace(self.url)
            return
        with self.files() as (filesystem, path):
            filesystem.pipe_file(path, text.encode())  # an object store puts whole objects

    @contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """Open a file that is written from beginning to end."""
        with self.files() as (filesystem, path), filesystem.open(path, "wb") as file:
            yield file

    def remove(self, last: tuple[str, ...]) -> None:
        """Remove everything here, the files named `last` after the others.

        A removal may stop halfway, and the files that identify the writer must stay until then.
        """
        with self.files() as (filesystem, path):
            kept = {f"{path}/{name}" for name in last}
            others = [name for name in filesystem.find(path) if name not in kept]
            if others:
                filesystem.rm(others)
            # fsspec does not remove the current directory
            filesystem.rm(path, recursive=True) if self.is_remote else shutil.rmtree(path)

    def rename(self, other: Location) -> None:
        """Move everything to a free location; a remote store copies it."""
        if not self.is_remote:
            Path(self.url).rename(other.url)
            return
        with other.files() as (_, target), self.files() as (filesystem, path):
            filesystem.mv(path, target, recursive=True)

    def without_options(self, error: BaseException) -> str:
        """Return the message of another library in one line, with all option values hidden."""
        lines = str(error).strip().splitlines()
        text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        for value in sorted(_texts_in(self.options.reveal()), key=len, reverse=True):
            text = text.replace(value, "***")
        return text

    def _settings(self) -> dict[str, Any]:
        """Return the options merged over the defaults of the protocol."""
        defaults = _S3_DEFAULTS if urlsplit(self.url).scheme in _S3 else {}
        return merge_options(defaults, self.options.reveal())


Place: TypeAlias = str | Path | Location


def locate(place: Place, storage_options: Options | None = None) -> Location:
    """Return the location of a path or URL; a `Location` keeps its own options.

    A local path is made absolute, since workers may run elsewhere. A URL that contains credentials
    is rejected, before it is part of any message.
    """
    if isinstance(place, Location):
        return place
    text = str(place)
    if "://" in text:
        _reject_credentials(text)
    options = HiddenOptions(storage_options) if storage_options else _NO_OPTIONS
    location = Location(text.rstrip("/"), options)
    if location.is_remote:
        return location
    return Location(str(Path(text.removeprefix("file://")).absolute()), options)


def is_within(inner: Location, outer: Location) -> bool:
    """Return whether `inner` is `outer` or below it."""
    if inner.is_remote != outer.is_remote:
        return False
    if not inner.is_remote:
        return Path(inner.url).resolve().is_relative_to(Path(outer.url).resolve())
    with outer.files() as (filesystem, path), inner.files() as (other, below):
        return type(filesystem) is type(other) and f"{below}/".startswith(f"{path}/")


def merge_options(under: Options, over: Options) -> dict[str, Any]:
    """Merge nested options; values of `over` win."""
    result = dict(under)
    for name, value in over.items():
        before = result.get(name)
        nested = isinstance(value, Mapping) and isinstance(before, Mapping)
        result[name] = merge_options(before, value) if nested else value  # type: ignore[arg-type]
    return result


@contextmanager
def reaching(location: Location, what: str = "") -> Iterator[None]:
    """Turn every error of a remote store into `UnreachableError` or `MissingError`.

    `what` names the store in messages. Tracebacks of other libraries are dropped: they may show
    URLs with tokens, and whole requests. Errors of the local disk are left as they are.
    """
    try:
        yield
    except ScrlmError:
        raise
    except Exception as error:
        if not location.is_remote:
            raise
        name = f"{what} {location}".strip()
        kind = MissingError if isinstance(error, FileNotFoundError) else UnreachableError
        raise kind(f"{name} {_problem(location, error)}") from None


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _limit_tries(filesystem: Any) -> None:
    if "s3" in filesystem.protocol:
        filesystem.retries = _S3_TRIES


def _problem(location: Location, error: Exception) -> str:
    said = location.without_options(error)
    protocol = urlsplit(location.url).scheme
    if isinstance(error, ImportError):
        if protocol in _S3:
            return "cannot be opened: s3:// needs scrlm-dask[s3]; install it where workers run, too"
        return f"cannot be opened: {protocol}:// needs a package that is not installed ({said})"
    if isinstance(error, ValueError) and "Protocol not known" in str(error):
        return f"cannot be opened: nothing here knows the protocol {protocol}://; check the URL"
    if isinstance(error, FileNotFoundError):
        return f"does not exist, or its bucket does not ({said}); check the URL"
    if isinstance(error, PermissionError) or type(error).__name__ in _ACCESS_ERRORS:
        return (
            f"cannot be accessed ({said}); check the credentials: --storage-option "
            "(storage_options), or environment variables, which workers need, too"
        )
    return (
        f"cannot be reached ({said}); see that the store runs and that its endpoint is right, "
        "and run the command again"
    )


def _reject_credentials(text: str) -> None:
    """Raise if a URL contains credentials, since paths are printed and recorded."""
    for link in text.split("::"):
        protocol, separator, rest = link.partition("://")
        if not separator or protocol == "file":
            continue
        first, _, _ = rest.partition("/")
        name, colon, port = first.partition(":")
        bad = bool(colon) and (not re.fullmatch(r"\d+", port) or "@" in name)
        bad = bad or (protocol in _S3 and (bool(colon) or "@" in first))
        bad = bad or (protocol in ("http", "https") and "?" in rest)
        if bad:
            raise InputError(
                f"the {protocol}:// URL that was given holds credentials, which would be printed "
                "and recorded; give them as --storage-option (storage_options) or by environment "
                "variables"
            )


def _texts_in(value: Any) -> list[str]:
    """Return all texts of nested options, which may be credentials."""
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _texts_in(item)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts_in(item)]
    return [value] if isinstance(value, str) and value else []
