"""A folder of images: rows are paths of images, which are opened only when they are encoded."""

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
from scrlm_dask.sources.base import INPUT, TEXT, Source
from scrlm_dask.sources.sharded import numeric_order
from scrlm_dask.storage.locations import Location, locate
from scrlm_dask.storage.manifest import SourceFile
from scrlm_dask.storage.traces import Input
from scrlm_dask.text import first_few, first_line

SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".avif"),
)
_FOLDER, _PATH = "folder", "path"  # names of the columns


@dataclass(frozen=True)
class ImageFolder(Source):
    """A folder of images as a source: one value per image, by default its path in the folder.

    Paths contain / on all systems. All paths are in memory, about 100 bytes per image; the images
    are not.
    """

    paths: NDArray[Any]
    values: NDArray[Any]
    ignored: tuple[tuple[str, int], ...]  # suffixes of files that are not images, with counts

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the values of images start..stop-1."""
        return self.values[start:stop]

    def locate(self, row: int) -> str:
        """Return the path of an image."""
        return str(Path(self.what) / str(self.paths[row]))

    def inputs(self) -> tuple[Input, ...]:
        """Return the folder with the digest of its images; other files may change."""
        return (Input(INPUT, locate(self.what), self.files[0].digest, _digest_images),)

    def column(self, name: str) -> Source:
        """Open the column "path", or "folder": the first component of the relative path."""
        if name == _PATH:
            return self
        if name != _FOLDER:
            raise InputError(
                f"the folder {self.what} has no column {name!r}; use {_FOLDER} (the first folder "
                f"in the path of an image), {_PATH}, or a file"
            )
        parts = [str(path).split("/") for path in self.paths]
        top_level = next((row for row, names in enumerate(parts) if len(names) == 1), None)
        if top_level is not None:
            raise InputError(
                f"{self.locate(top_level)} is not in a subfolder of {self.what}, so it has no "
                "label; move it into a subfolder, or give the labels as a file"
            )
        return replace(self, values=np.array([names[0] for names in parts], dtype=TEXT))

    def notes(self) -> list[str]:
        """Report the files that were ignored."""
        if not self.ignored:
            return []
        suffixes = first_few([suffix or "no suffix" for suffix, _ in self.ignored], total=False)
        n_files = sum(n for _, n in self.ignored)
        return [f"{n_files} file(s) that are not images are ignored ({suffixes})"]


def open_image_folder(folder: str) -> ImageFolder:
    """Open all images in a folder and its subfolders, in numeric order."""
    images, ignored = _list_images(folder)
    if not images:
        raise InputError(
            f"the folder {folder} contains no images; supported suffixes are {', '.join(SUFFIXES)}"
        )
    paths = np.array(numeric_order(list(images)), dtype=TEXT)
    file = SourceFile(folder, sum(size for size, _ in images.values()), _digest(images))
    left = tuple(ignored.most_common())
    return ImageFolder((file,), (len(paths),), TEXT, paths, paths, left)


def _list_images(folder: str) -> tuple[dict[str, tuple[int, int]], Counter[str]]:
    """Return size and modification time of each image; count other files by suffix."""
    images, ignored = {}, Counter[str]()
    for entry in _files_below(folder):
        name = Path(entry.path).relative_to(folder).as_posix()
        suffix = "links to folders" if entry.is_dir() else Path(name).suffix.lower()
        if suffix in SUFFIXES:
            stat = entry.stat()
            images[_check_utf8(name, folder)] = (stat.st_size, stat.st_mtime_ns)
        else:
            ignored[suffix] += 1
    return images, ignored


def _digest(images: dict[str, tuple[int, int]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(images):
        digest.update(f"{name}\0{images[name]}\n".encode())
    return digest.hexdigest()


def _digest_images(location: Location) -> str:
    return _digest(_list_images(location.url)[0])


def load_image(folder: str, path: str) -> Any:
    """Load an image in RGB, 8 bits per channel."""
    pillow = import_optional("PIL.Image", "images", "embed-images")
    try:
        with pillow.open(Path(folder) / path) as image:
            image.load()
            return _to_rgb(pillow, image)
    except (DamagedItemError, MemoryError):
        raise
    except Exception as error:  # decoders raise arbitrary exceptions for damaged files
        raise DamagedItemError(f"cannot be read as an image ({first_line(error)})") from error


def _to_rgb(pillow: Any, image: Any) -> Any:
    if image.mode.startswith("I;16"):  # Pillow would clip values above 255
        return pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise DamagedItemError(
            f"has mode {image.mode}, whose value range is undefined; convert it to 8-bit"
        )
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _files_below(folder: str) -> Iterator[os.DirEntry[str]]:
    """Yield all files in a folder and its subfolders, and links to folders.

    Hidden files and folders are skipped: they contain thumbnails and metadata of file managers.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(entry.path)
            elif entry.is_file() or entry.is_dir():  # not followed: links may be cyclic
                yield entry


def _check_utf8(name: str, folder: str) -> str:
    """Return the name, which becomes an id, if it is valid UTF-8; raise otherwise."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"the name of {name!r} in {folder} is not UTF-8; rename it") from error
    return name
