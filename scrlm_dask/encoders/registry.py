"""Encoders that need no model: to try the way once, and to compare others with."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.encoders.encoder import Encoder, Kind, loading, version_of
from scrlm_dask.encoders.pretrained import open_clip_model, open_sentences, open_torchvision
from scrlm_dask.errors import InputError
from scrlm_dask.optional import import_optional

_SIDE, _MOST_SIDE = 32, 1024


_FEATURES, _MOST_FEATURES = 512, 2**20


def open_pixels(name: str, rest: str) -> Encoder:
    """`pixels` or `pixels:SIDE`: the image at SIDE x SIDE, its three colours from 0 to 1."""
    side = _number(name, rest, _SIDE, _MOST_SIDE)
    import_optional("PIL.Image", f"the encoder {name}", "embed-images")

    def encode(images: list[Any]) -> NDArray[np.float32]:
        small = [np.asarray(image.resize((side, side)), np.float32) for image in images]
        return np.stack(small).reshape(len(small), -1) / np.float32(255)

    return Encoder(name, version_of("pillow"), encode)


def open_hashing(name: str, rest: str) -> Encoder:
    """`hashing` or `hashing:FEATURES`: words and pairs of words, each counted with a sign at the
    place that its hash says, at unit length. Inner products are about those of the counts."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hashing = HashingVectorizer(
        n_features=_number(name, rest, _FEATURES, _MOST_FEATURES),
        ngram_range=(1, 2),
        token_pattern=r"(?u)\b\w+\b",  # words of one letter count, too
        dtype=np.float32,
    )

    def encode(texts: list[Any]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = hashing.transform(texts).toarray()
        return found

    return Encoder(name, version_of("scikit-learn"), encode)


def _number(name: str, rest: str, default: int, most: int) -> int:
    if not rest:
        return default
    if not rest.isdecimal() or not 1 <= int(rest) <= most:
        family = name.partition(":")[0]
        raise InputError(
            f"the encoder {name} asks for {rest!r}; after {family}: comes a number from 1 to {most}"
        )
    return int(rest)


def open_named(name: str) -> Encoder:
    """`package.module:function`, or `path/to/file.py:function`."""
    where, _, what = name.rpartition(":")
    way_out = "give package.module:function, or file.py:function for a file"
    with loading(name, way_out):
        module = _from_file(Path(where)) if where.endswith(".py") else import_module(where)
    function: Any = module
    for part in what.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise InputError(f"the encoder {name} is no function: {where} has no {what!r} to be called")
    return Encoder(name, _made_by(module), function)


def _made_by(module: ModuleType) -> str:
    """Code without a version is known by its digest: going on with other code is noticed."""
    package = module.__name__.partition(".")[0]
    made_by, file = version_of(package), getattr(module, "__file__", None)
    if made_by != package or file is None:
        return made_by
    return f"{package} (SHA-256 {hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]})"


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"the encoder's file {path} does not exist; check the path")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickles ask for it there
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Family:
    """Encoders of one library: what they take, and how one is opened."""

    takes: tuple[Kind, ...]
    open: Callable[[str, str, Kind, str | None], Encoder]  # name, what follows, kind, device
    has_device: bool = True


FAMILIES = {
    "pixels": Family(("images",), lambda name, rest, *_: open_pixels(name, rest), False),
    "hashing": Family(("texts",), lambda name, rest, *_: open_hashing(name, rest), False),
    "sentence-transformers": Family(("texts",), open_sentences),
    "open_clip": Family(("images", "texts"), open_clip_model),
    "torchvision": Family(("images",), open_torchvision),
}


_NAMED = Family(("images", "texts"), lambda name, *_: open_named(name), has_device=False)


def open_encoder(name: str, kind: Kind, device: str | None) -> Encoder:
    """The encoder for items of a kind, its model loaded; this is done once."""
    first, colon, rest = name.partition(":")
    family = FAMILIES.get(first) or (_NAMED if colon else None)
    if family is None or (family.has_device and not rest):
        raise InputError(
            f"the encoder {name!r} is not known; give pixels, hashing, sentence-transformers:NAME, "
            "open_clip:MODEL/PRETRAINED, torchvision:MODEL or module:function"
        )
    if kind not in family.takes:
        fitting = ", ".join(key for key, known in FAMILIES.items() if kind in known.takes)
        raise InputError(
            f"the encoder {name} takes {' and '.join(family.takes)} and the input holds {kind}; "
            f"for these there are {fitting} and module:function"
        )
    if device is not None and not family.has_device:
        raise InputError(f"--device says nothing to the encoder {name}; leave it out")
    return family.open(name, rest, kind, device)
