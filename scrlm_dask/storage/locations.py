"""Where things lie: a local path, or an fsspec URL with the options that open it.

Local paths and URLs take the same road through storage: whoever has a `Location` need not know
which it is. The options may hold credentials, so nothing here shows them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import urlsplit

import fsspec
from zarr.storage import FsspecStore

from scrlm_dask.errors import InputError, MissingError, ScrlmError, UnreachableError

Options: TypeAlias = Mapping[str, Any]

_S3 = ("s3", "s3a")
# A server that is gone must end a run, not hang it; one that stumbles must not. These multiply: a
# request that nobody answers is given up after 2 x 3 x 5 s. Listings are asked for anew: what is
# missing may have been written, or lost, by another process since.
_S3_DEFAULTS: dict[str, Any] = {
    "config_kwargs": {"connect_timeout": 5, "read_timeout": 5, "retries": {"max_attempts": 2}},
    "use_listings_cache": False,
}
_S3_TRIES = 2  # of s3fs, each with those retries of botocore inside
_ACCESS_ERRORS = ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError")


class HiddenOptions:
    """Storage options that no repr shows.

    Neither a mapping nor a dataclass: Dask takes those apart, and may log what it finds.
    """

    def __init__(self, values: Options | None = None) -> None:
        self._values = dict(values or {})

    def __repr__(self) -> str:
        return "***"

    def reveal(self) -> dict[str, Any]:
        return dict(self._values)


@dataclass(frozen=True)
class Location:
    """A local path or a URL; made by `locate`, small enough to send to every worker."""

    url: str
    options: HiddenOptions = field(default_factory=HiddenOptions, compare=False)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self.url}/{name}", self.options)

    @property
    def is_remote(self) -> bool:
        return is_remote(self.url)

    def store(self) -> str | FsspecStore:
        """What Zarr's functions take."""
        if not self.is_remote:
            return self.url
        store = FsspecStore.from_url(self.url, self._settings())
        _limit_tries(store.fs)
        return store

    def parents(self) -> list[Location]:
        """The folders above, nearest first."""
        if not self.is_remote:
            return [Location(str(parent)) for parent in Path(self.url).parents]
        protocol, rest = self.url.split("://", 1)
        names = rest.split("/")
        above = ["/".join(names[:n]) for n in range(len(names) - 1, 0, -1)]
        return [Location(f"{protocol}://{path}", self.options) for path in above]

    def filesystem(self) -> tuple[Any, str]:
        """fsspec's file system, with no listing that it remembers, and the path in it."""
        filesystem, path = fsspec.core.url_to_fs(self.url, **self._settings())
        filesystem.invalidate_cache()
        _limit_tries(filesystem)
        return filesystem, path

    def exists(self) -> bool:
        with reaching(self):
            filesystem, path = self.filesystem()
            return bool(filesystem.exists(path))

    def is_file(self) -> bool:
        if not self.is_remote:
            return Path(self.url).is_file()
        with reaching(self):
            filesystem, path = self.filesystem()
            try:  # fsspec's own isfile takes a store that does not answer for a no
                return bool(filesystem.info(path)["type"] == "file")
            except FileNotFoundError:
                return False

    def is_occupied(self) -> bool:
        """Whether something lies here that is not an empty folder."""
        if not self.is_remote:
            path = Path(self.url)
            return path.exists() and not (path.is_dir() and not any(path.iterdir()))
        with reaching(self):
            filesystem, name = self.filesystem()
            try:
                if filesystem.info(name)["type"] != "directory":
                    return True
            except FileNotFoundError:
                return False
            # down to the first file: some object stores keep folders that are empty now, and mark
            # them by an object whose name ends where the folder's does
            below = filesystem.walk(name, on_error=_unless_gone)
            return any(any(files) for _, _, files in below)

    def read_bytes(self) -> bytes:
        if not self.is_remote:
            return Path(self.url).read_bytes()
        with reaching(self):
            filesystem, path = self.filesystem()
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
        with reaching(self):
            filesystem, path = self.filesystem()
            filesystem.pipe_file(path, text.encode())  # an object store puts whole objects

    @contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """A file to be written from its beginning to its end."""
        if not self.is_remote:
            with Path(self.url).open("wb") as file:
                yield file
            return
        with reaching(self):
            filesystem, path = self.filesystem()
            with filesystem.open(path, "wb") as file:
                yield file

    def remove(self, last: tuple[str, ...]) -> None:
        """Remove all that lies at a remote place, the files named `last` after the others.

        There is no telling how far a removal comes, and what says whose it is must stay.
        """
        with reaching(self):
            filesystem, path = self.filesystem()
            kept = {f"{path}/{name}" for name in last}
            others = [name for name in filesystem.find(path) if name not in kept]
            if others:
                filesystem.rm(others)
            filesystem.rm(path, recursive=True)

    def rename(self, other: Location) -> None:
        """Move all that lies here to where nothing lies; a remote store copies it."""
        if not self.is_remote:
            Path(self.url).rename(other.url)
            return
        with reaching(self):
            filesystem, path = self.filesystem()
            filesystem.mv(path, other.filesystem()[1], recursive=True)

    def without_options(self, error: BaseException) -> str:
        """What another library says, in one line that shows nothing of the options."""
        lines = str(error).strip().splitlines()
        text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        for value in sorted(_texts_in(self.options.reveal()), key=len, reverse=True):
            text = text.replace(value, "***")
        return text

    def _settings(self) -> dict[str, Any]:
        """The options over the defaults of the protocol; none for local paths, which need none."""
        if not self.is_remote:
            return {}
        defaults = _S3_DEFAULTS if urlsplit(self.url).scheme in _S3 else {}
        return merge_options(defaults, self.options.reveal())


Place: TypeAlias = str | Path | Location


def locate(place: Place, storage_options: Options | None = None) -> Location:
    """The location of a path or URL; one that is a location already keeps its own options."""
    if isinstance(place, Location):
        return place
    return Location(absolute(place), HiddenOptions(storage_options))


def absolute(path: str | Path) -> str:
    """A local path made absolute, since workers may run elsewhere; a URL as it is.

    Called before a path stands in any message: one that holds credentials is refused here.
    """
    text = str(path)
    _refuse_credentials(text)
    if is_remote(text):
        return text.rstrip("/")
    return str(Path(text.removeprefix("file://")).absolute())


def is_remote(path: str) -> bool:
    return urlsplit(path).scheme not in ("", "file") and "://" in path


def is_within(inner: Location, outer: Location) -> bool:
    """Whether one lies at or below the other."""
    if inner.is_remote != outer.is_remote:
        return False
    if not inner.is_remote:
        return Path(inner.url).resolve().is_relative_to(Path(outer.url).resolve())
    with reaching(outer):
        filesystem, path = outer.filesystem()
    with reaching(inner):
        other, below = inner.filesystem()
    return type(filesystem) is type(other) and f"{below}/".startswith(f"{path}/")


def merge_options(under: Options, over: Options) -> dict[str, Any]:
    """Both, one inside the other where both nest; `over` wins."""
    result = dict(under)
    for name, value in over.items():
        before = result.get(name)
        both = isinstance(value, Mapping) and isinstance(before, Mapping)
        result[name] = merge_options(before, value) if both else value  # type: ignore[arg-type]
    return result


@contextmanager
def reaching(location: Location, what: str = "") -> Iterator[None]:
    """Whatever goes wrong on the way to a remote store becomes an `UnreachableError`, or a
    `MissingError`; `what` names it.

    Libraries raise what they please there. Their tracebacks go no further: URLs with tokens and
    whole requests have been seen in them. Errors of the local disk are left as they are.
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
    """s3fs has no option for it."""
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


def _refuse_credentials(text: str) -> None:
    """Paths are printed and recorded: credentials have no place in them."""
    for link in text.split("::"):
        protocol, found, rest = link.partition("://")
        if not found or protocol == "file":
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
    """All texts of nested options, which may be credentials."""
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _texts_in(item)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts_in(item)]
    return [value] if isinstance(value, str) and value else []
