"""Locations: a local path, or an fsspec URL with its storage options.

Callers use a `Location` in the same way in both cases. Storage options may contain credentials, so
they never appear in messages or reprs. For the same reason, `locate_recorded` opens a path that was
read from a file: the author of the file must not choose the receiver of the options.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import urlsplit
from uuid import uuid4

import fsspec
from zarr.storage import FsspecStore

from scrlm_dask.errors import (
    InputError,
    MissingError,
    ScrlmError,
    StoreError,
    UnreachableError,
    UntrustedOriginError,
)
from scrlm_dask.storage import folders
from scrlm_dask.text import hide_queries, hide_values

Options: TypeAlias = Mapping[str, Any]

_LOCAL = ("file", "local")
_S3 = ("s3", "s3a")
# If the server is lost, a run must fail instead of hanging, but a short outage must not end a run.
# The limits multiply: a request without a response fails after 2 attempts of s3fs x 3 attempts of
# botocore x 5 s. Listings are not cached, because another process may write or remove files.
_S3_DEFAULTS: dict[str, Any] = {
    "config_kwargs": {"connect_timeout": 5, "read_timeout": 5, "retries": {"max_attempts": 2}},
    "use_listings_cache": False,
}
_HTTP = ("http", "https")
# Without a response, aiohttp would wait for 300 s per request. A mapping is passed to its
# `ClientTimeout`; a user may give another, also with only some of these limits.
_HTTP_DEFAULTS: dict[str, Any] = {
    "client_kwargs": {"timeout": {"total": 300, "sock_connect": 10, "sock_read": 20}}  # seconds
}
_S3_TRIES = 2  # attempts of s3fs, which has no option for this number; botocore retries in each
_MOST_RECORD_BYTES = 2**28  # far above the size of any record or event log
_ACCESS_ERRORS = ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError")


class HiddenOptions:
    """Storage options whose repr does not show their values.

    The class is neither a mapping nor a dataclass, because Dask traverses mappings and dataclasses
    and may log their values.
    """

    def __init__(self, values: Options | None = None) -> None:
        self._values = dict(values or {})

    def __repr__(self) -> str:
        return "***"

    def reveal(self) -> dict[str, Any]:
        """Return a copy of the options, including credentials."""
        return dict(self._values)


_NO_OPTIONS = HiddenOptions()


@dataclass(frozen=True)
class Location:
    """A local path or a URL, created by `locate`; small enough to send to every worker."""

    url: str
    options: HiddenOptions = field(default=_NO_OPTIONS, compare=False)
    # token of the call that writes the output at this location, see `storage.outputs.owning`
    owner: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self.url}/{name}", self.options)

    @property
    def is_remote(self) -> bool:
        """Return whether this is a URL other than file:// and local://."""
        return "://" in self.url and self._scheme not in ("", *_LOCAL)

    def store(self) -> str | FsspecStore:
        """Return the `store` argument for Zarr's functions."""
        if not self.is_remote:
            return self.url
        store = FsspecStore.from_url(self.url, self._settings())
        _limit_tries(store.fs)
        return store

    def parents(self) -> list[Location]:
        """Return the parent folders, nearest first."""
        if not self.is_remote:
            return [Location(str(parent)) for parent in Path(self.url).parents]
        protocol, rest = self.url.split("://", 1)
        names = rest.split("/")
        above = ["/".join(names[:n]) for n in range(len(names) - 1, 0, -1)]
        return [Location(f"{protocol}://{path}", self.options) for path in above]

    @contextmanager
    def files(self, what: str = "") -> Iterator[tuple[Any, str]]:
        """Yield the fsspec file system of this location, and the path in that file system.

        Cached listings of a remote file system are dropped first, because another process may have
        changed its files. In the `with` block, errors of a remote store become `MissingError` or
        `UnreachableError`; `what` names the store in their messages.
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
        """Return whether a file or folder exists here; raise if a remote store is unreachable."""
        with self.files() as (filesystem, path):
            return bool(filesystem.exists(path))

    def is_file(self) -> bool:
        """Return whether this is a file; unlike fsspec, raise if the store is unreachable."""
        if not self.is_remote:
            return Path(self.url).is_file()
        with suppress(FileNotFoundError), self.files() as (filesystem, path):
            return bool(filesystem.info(path)["type"] == "file")
        return False

    def is_occupied(self) -> bool:
        """Return whether a file or a non-empty folder exists here.

        An empty volume, which contains only the folder of its file system, counts as empty.
        """
        if not self.is_remote:
            path = Path(self.url)
            try:  # in newer versions of Python, is_dir() returns False if the disk has an error
                return any(entry.name != folders.SYSTEM for entry in path.iterdir())
            except FileNotFoundError:
                return False
            except NotADirectoryError:
                return path.exists()
        with self.files() as (filesystem, name):
            try:
                if filesystem.info(name)["type"] != "directory":
                    return True
            except FileNotFoundError:
                return False
            # Some object stores keep an empty folder as an object with the folder's name, so the
            # folder counts as non-empty only if there is a file below it.
            below = filesystem.walk(name, on_error=_unless_gone)
            return any(any(files) for _, _, files in below)

    def entry_names(self) -> list[str]:
        """Return the names of the files and folders in this folder, if it is one."""
        if not self.is_remote:
            folder = Path(self.url)
            return [entry.name for entry in folders.list_content(folder)] if folder.is_dir() else []
        with suppress(FileNotFoundError), self.files() as (filesystem, path):
            listed = [name.rstrip("/") for name in filesystem.ls(path, detail=False)]
            return [name.rpartition("/")[2] for name in listed if name != path.rstrip("/")]
        return []

    def check_regular(self, most: int | None = None) -> None:
        """Raise if a local file is not a regular file, or has more than `most` bytes.

        A read of a pipe or a device may not end. Links are followed. A missing file is accepted,
        because its reader reports it.
        """
        if self.is_remote:
            return
        try:
            status = Path(self.url).stat()
        except OSError:
            return
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise StoreError(
                f"{self} is a pipe, a socket or a device, which cannot be read here; write its "
                "content to a regular file"
            )
        if most is not None and status.st_size > most:
            raise StoreError(
                f"{self} has {status.st_size} bytes, more than {most} bytes, which no such file "
                "needs; restore it"
            )

    def read_bytes(self, most: int | None = _MOST_RECORD_BYTES) -> bytes:
        """Read the whole file; raise if a local file is not regular or larger than `most` bytes."""
        self.check_regular(most)
        with self.files() as (filesystem, path):
            return bytes(filesystem.cat_file(path))

    def read_text(self) -> str:
        """Read the whole file as UTF-8 text."""
        return self.read_bytes().decode()

    def write_text(self, text: str) -> None:
        """Write the file atomically: a reader sees either the old or the new content."""
        if not self.is_remote:
            temporary = Path(self.url).with_name(f".{uuid4().hex}.partial")
            try:
                with temporary.open("x", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())  # otherwise a crash may leave an empty file
                temporary.replace(self.url)
            except BaseException:  # the disk may be full
                temporary.unlink(missing_ok=True)
                raise
            return
        with self.files() as (filesystem, path):
            filesystem.pipe_file(path, text.encode())  # object stores write whole objects

    @contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """Open the file for sequential writing."""
        with self.files() as (filesystem, path), filesystem.open(path, "wb") as file:
            yield file

    def remove(self, names: Sequence[str]) -> None:
        """Remove the named entries of this folder in the given order; missing names are ignored.

        A local folder is also removed if it is then empty, unless it cannot be replaced, like a
        mount point.
        """
        if not self.is_remote:
            folders.remove_entries(Path(self.url), names)
            return
        with self.files() as (filesystem, path):
            for name in names:
                with suppress(FileNotFoundError):
                    filesystem.rm(f"{path}/{name}", recursive=True)

    def copy_to(self, other: Location, last: tuple[str, ...]) -> None:
        """Copy this folder of a remote store; copy the files named in `last` after all others."""
        with other.files() as (_, target), self.files() as (filesystem, path):
            names = [name[len(path) :] for name in filesystem.find(path)]
            for final in (False, True):
                some = [name for name in names if (name.strip("/") in last) == final]
                if some:
                    filesystem.copy(
                        [path + name for name in some], [target + name for name in some]
                    )

    def without_options(self, error: BaseException) -> str:
        """Return another library's error as one line of text, without values of the options.

        The queries of URLs are also replaced by ***. The whole text is searched before it is cut,
        because a value may contain line breaks.
        """
        text = hide_values(str(error), _texts_in(self.options.reveal()))
        lines = (hide_queries(text) if self.is_remote else text).strip().splitlines()
        return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

    def _settings(self) -> dict[str, Any]:
        """Return the storage options, with the defaults of the protocol for missing options."""
        if self._scheme in _HTTP:
            return _with_timeout(merge_options(_HTTP_DEFAULTS, self.options.reveal()))
        defaults = _S3_DEFAULTS if self._scheme in _S3 else {}
        return merge_options(defaults, self.options.reveal())

    @property
    def _scheme(self) -> str:
        """Return the scheme of a URL; the host is not parsed, because `urlsplit` rejects some."""
        return urlsplit(self.url.partition("//")[0]).scheme


Place: TypeAlias = str | Path | Location


def locate(place: Place, storage_options: Options | None = None) -> Location:
    """Return the location of a path or URL, or of an object such as `Run` that has a `location`.

    A local path is made absolute, because workers may have another working directory. A URL that
    contains credentials is rejected before it can appear in a message.
    """
    place = getattr(place, "location", place)
    if isinstance(place, Location):
        return place
    text = str(place)
    if "://" in text:
        _reject_credentials(text)
    options = HiddenOptions(storage_options) if storage_options else _NO_OPTIONS
    location = Location(text.rstrip("/"), options)
    if location.is_remote:
        return location
    path = text.removeprefix("file://").removeprefix("local://")
    return Location(str(Path(path).absolute()), options)


@dataclass(frozen=True)
class TrustedOrigins:
    """Origins that the user has given, created by `trust`; only they receive requests and options.

    The origin of a URL is its scheme with its bucket or host, such as s3://bucket.
    """

    origins: frozenset[str]
    options: HiddenOptions


def trust(
    given: Iterable[Place | None],
    allow_origins: Sequence[str] = (),
    storage_options: Options | None = None,
) -> TrustedOrigins:
    """Trust the origins of the given places, and the origins that the user allows in addition."""
    allowed = (allow_origins,) if isinstance(allow_origins, str) else allow_origins
    places = [locate(place) for place in given if place is not None]
    origins = [origin_of(place) for place in places if place.is_remote]
    return TrustedOrigins(
        frozenset([*origins, *map(parse_origin, allowed)]), HiddenOptions(storage_options)
    )


def parse_origin(text: str) -> str:
    """Return an origin such as s3://bucket in its usual form; raise if it is not an origin."""
    origin = text.rstrip("/")
    # on Azure, the container may be followed by the account
    azure = r"(abfss?|az)://[^/:@?#\s]+@"
    if not re.fullmatch(rf"({azure}|[A-Za-z][A-Za-z0-9+.-]*://)[^/:@?#\s]+(:\d+)?", origin):
        raise InputError(
            "--allow-origin (allow_origins) must be a scheme with a bucket or host, such as "
            f"s3://bucket or https://host, got {text!r}"
        )
    return origin_of(Location(origin))


def origin_of(location: Location) -> str:
    """Return scheme and bucket or host of a remote location."""
    scheme, _, rest = location.url.partition("://")
    scheme = scheme.lower()
    return f"{_S3[0] if scheme in _S3 else scheme}://{re.split(r'[/?#]', rest, maxsplit=1)[0]}"


def locate_recorded(path: str, trusted: TrustedOrigins) -> Location:
    """Return the location of a path or URL that was read from a file, such as `run.json`.

    A URL of an origin that is not trusted raises `UntrustedOriginError`, and no request is sent.
    Chained URLs of fsspec always raise, because they open other URLs or files. A local path never
    receives the storage options.
    """
    if "::" in path:
        raise StoreError(
            f"the recorded path {path} is a chained URL (::), which may open other files and URLs; "
            "only paths and plain URLs are opened"
        )
    location = locate(path)
    if not location.is_remote:
        return location
    origin = origin_of(location)
    if ".." in location.url.split("/"):
        raise StoreError(f"the recorded URL {path} contains '..', which may leave {origin}")
    if origin not in trusted.origins:
        raise UntrustedOriginError(
            f"the recorded URL {path} was not opened, because {origin} was not given to this "
            f"command; if you trust it, use --allow-origin {origin} (allow_origins), which also "
            "sends the storage options to it"
        )
    return Location(location.url, trusted.options)


def is_within(
    inner: Location, outer: Location, resolve: Callable[[Path], Path] = Path.resolve
) -> bool:
    """Return whether `inner` is the same location as `outer` or below it.

    `resolve` follows the links of a path; a caller with many locations can cache its results.
    """
    if inner.is_remote != outer.is_remote:
        return False
    if not inner.is_remote:
        path, root = Path(inner.url), resolve(Path(outer.url))
        # A link inside `outer` may lead outside, and a link outside may lead into it.
        above = any(resolve(parent) == root for parent in path.parents)
        return above or resolve(path).is_relative_to(root)
    with outer.files() as (filesystem, place), inner.files() as (other, below):
        return type(filesystem) is type(other) and f"{below}/".startswith(f"{place}/")


def merge_options(under: Options, over: Options) -> dict[str, Any]:
    """Merge nested options; values of `over` take precedence."""
    result = dict(under)
    for name, value in over.items():
        before = result.get(name)
        nested = isinstance(value, Mapping) and isinstance(before, Mapping)
        result[name] = merge_options(before, value) if nested else value  # type: ignore[arg-type]
    return result


@contextmanager
def reaching(location: Location, what: str = "") -> Iterator[None]:
    """Convert errors of a remote store to `UnreachableError` or `MissingError`.

    `what` names the store in messages. Tracebacks of other libraries are dropped, because they may
    contain URLs with tokens and whole requests. Errors of local files are not converted.
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


def _with_timeout(options: dict[str, Any]) -> dict[str, Any]:
    """Convert the timeouts of a web server from seconds to aiohttp's class."""
    client = options["client_kwargs"]
    timeout = client.get("timeout") if isinstance(client, Mapping) else None
    if not isinstance(timeout, Mapping):
        return options
    from aiohttp import ClientTimeout  # installed with fsspec's http file system

    seconds: dict[str, Any] = {
        name: None if given is None else float(given) for name, given in timeout.items()
    }
    return {**options, "client_kwargs": {**client, "timeout": ClientTimeout(**seconds)}}


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _limit_tries(filesystem: Any) -> None:
    if "s3" in filesystem.protocol:
        filesystem.retries = _S3_TRIES


def _problem(location: Location, error: Exception) -> str:
    """Return the text that follows the store's name in a message: the problem and a hint."""
    reason = location.without_options(error)
    protocol = location._scheme
    if isinstance(error, ImportError):
        if protocol in _S3:
            return (
                "cannot be opened: s3:// requires s3fs, which is not installed; install "
                "scrlm-dask[s3] here and on all workers"
            )
        return (
            f"cannot be opened: {protocol}:// requires a package that is not installed ({reason})"
        )
    if isinstance(error, ValueError) and "Protocol not known" in str(error):
        return f"cannot be opened: the protocol {protocol}:// is not supported; check the URL"
    if isinstance(error, FileNotFoundError):
        return f"does not exist, or its bucket does not exist ({reason}); check the URL"
    if isinstance(error, PermissionError) or type(error).__name__ in _ACCESS_ERRORS:
        return (
            f"cannot be accessed ({reason}); check the credentials: --storage-option "
            "(storage_options), or environment variables, which must also be set on the workers"
        )
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if isinstance(error, TypeError) and unknown:
        return (
            f"cannot be opened: {protocol}:// has no option {unknown[1]!r}; correct or remove this "
            "--storage-option (storage_options)"
        )
    return (
        f"cannot be reached ({reason}); check that the store is running and that its endpoint is "
        "correct, then run the command again"
    )


def _reject_credentials(text: str) -> None:
    """Raise if a URL contains credentials, because URLs are printed and recorded."""
    for link in text.split("::"):
        scheme, separator, rest = link.partition("://")
        protocol, web = scheme.lower(), scheme.lower() in _HTTP
        if not separator or protocol in _LOCAL:
            continue
        first, _, _ = rest.partition("/")
        name, colon, port = first.partition(":")
        bad = bool(colon) and (not re.fullmatch(r"\d+", port) or "@" in name)
        bad = bad or (protocol in _S3 and bool(colon))
        bad = bad or ((protocol in _S3 or web) and "@" in first)
        # a query such as ?sig=... is a signature; without "=", only web servers interpret it
        bad = bad or re.search(r"\?[^/]*=", rest) is not None or (web and "?" in rest)
        if bad:
            raise InputError(
                f"the {protocol}:// URL contains credentials or a query, which would be printed "
                "and recorded; pass credentials as --storage-option (storage_options) or in "
                "environment variables"
            )


def _texts_in(value: Any) -> list[str]:
    """Return all texts and numbers in nested options, which may be credentials."""
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _texts_in(item)]
    if isinstance(value, list | tuple | set | frozenset):
        return [text for item in value for text in _texts_in(item)]
    if isinstance(value, bytes | bytearray):
        return [value.decode("utf-8", "surrogateescape")]
    return [] if value is None or isinstance(value, bool) else [str(value)]
