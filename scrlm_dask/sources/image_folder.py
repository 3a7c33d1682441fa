"""A folder of images: its rows are their paths; an image is opened when it is encoded."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import DamagedItemError, InputError
from scrlm_dask.optional import import_optional
from scrlm_dask.sources.base import TEXT, Source
from scrlm_dask.sources.sharded import numeric_order
from scrlm_dask.storage.manifest import SourceFile
from scrlm_dask.text import first_few, first_line

SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".avif"),
)
_FOLDER, _PATH = "folder", "path"  # what can be asked for as a column


@dataclass(frozen=True)
class ImageFolder(Source):
    """Paths below the folder, with / between their parts; or what was made of each of them.

    All of them are in memory, about a hundred bytes an image, and no image is.
    """

    paths: NDArray[Any]
    values: NDArray[Any]
    ignored: tuple[tuple[str, int], ...]  # endings of files that are no images, and how many

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self.values[start:stop]

    def locate(self, row: int) -> str:
        return str(Path(self.what) / str(self.paths[row]))

    def column(self, name: str) -> Source:
        if name == _PATH:
            return self
        if name != _FOLDER:
            raise InputError(
                f"the folder {self.what} has no column {name!r}; take {_FOLDER} (the first folder "
                f"on the way to an image), {_PATH}, or a file"
            )
        parts = [str(path).split("/") for path in self.paths]
        bare = next((row for row, found in enumerate(parts) if len(found) == 1), None)
        if bare is not None:
            raise InputError(
                f"{self.locate(bare)} lies in no folder below {self.what}, so it has no label; "
                "move it into one, or give the labels as a file"
            )
        return replace(self, values=np.array([found[0] for found in parts], dtype=TEXT))

    def notes(self) -> list[str]:
        if not self.ignored:
            return []
        endings = first_few([ending or "no ending" for ending, _ in self.ignored], total=False)
        n_files = sum(n for _, n in self.ignored)
        return [f"{n_files} file(s) that are no images are left out ({endings})"]


def open_image_folder(folder: str) -> tuple[ImageFolder, str]:
    """Open the images below the folder in numeric order; also return a digest of the listing."""
    found, ignored = {}, Counter[str]()
    for entry in _files_below(folder):
        name = Path(entry.path).relative_to(folder).as_posix()
        suffix = "links to folders" if entry.is_dir() else Path(name).suffix.lower()
        if suffix in SUFFIXES:
            stat = entry.stat()
            found[_check_utf8(name, folder)] = (stat.st_size, stat.st_mtime_ns)
        else:
            ignored[suffix] += 1
    if not found:
        raise InputError(f"the folder {folder} holds no image; they end with {', '.join(SUFFIXES)}")
    ordered = numeric_order(list(found))
    digest = hashlib.sha256()
    for name in ordered:
        digest.update(f"{name}\0{found[name]}\n".encode())
    paths = np.array(ordered, dtype=TEXT)
    file = SourceFile(folder, sum(size for size, _ in found.values()))
    left = tuple(ignored.most_common())
    return ImageFolder((file,), (len(paths),), TEXT, paths, paths, left), digest.hexdigest()


def load_image(folder: str, path: str) -> Any:
    """Load an image in RGB, 8 bits per colour."""
    pillow = import_optional("PIL.Image", "images", "embed-images")
    try:
        with pillow.open(Path(folder) / path) as image:
            image.load()
            return _to_rgb(pillow, image)
    except (DamagedItemError, MemoryError):
        raise
    except Exception as error:  # decoders raise what they please about broken files
        raise DamagedItemError(f"cannot be read as an image ({first_line(error)})") from error


def _to_rgb(pillow: Any, image: Any) -> Any:
    if image.mode.startswith("I;16"):  # Pillow would cut off what is above 255
        return pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise DamagedItemError(
            f"has the mode {image.mode}, of which nobody knows what is white; convert it to 8 bits"
        )
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _files_below(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield files that are not hidden: hidden ones are thumbnails and notes of file managers."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(entry.path)
            elif entry.is_file() or entry.is_dir():  # a link may lead back to where it lies
                yield entry


def _check_utf8(name: str, folder: str) -> str:
    """Return the name, which becomes an id and must be a text."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name!r} in {folder} has a name that is not UTF-8; rename it") from error
    return name
