"""Encoders by name: built-in encoders without a model, pretrained models, and user functions.

`FAMILIES` lists them; a new encoder must be added there.
"""

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

from scrlm_dask.encoders import pretrained
from scrlm_dask.encoders.encoder import Encoder, Kind, explain_failure, version_of
from scrlm_dask.errors import InputError
from scrlm_dask.optional import import_optional

_SIDE, _MAX_SIDE = 32, 1024
_FEATURES, _MAX_FEATURES = 512, 2**20


@dataclass(frozen=True)
class Family:
    """Encoders of one library: the supported kinds of items, and how to open an encoder."""

    takes: tuple[Kind, ...]
    # arguments: name, part of the name after the colon, kind of items, device
    open: Callable[[str, str, Kind, str | None], Encoder]
    has_device: bool = True


def open_encoder(name: str, kind: Kind, device: str | None) -> Encoder:
    """Open the encoder called `name` for items of a kind, and load its model."""
    first, colon, argument = name.partition(":")
    family = FAMILIES.get(first) or (_USER_FUNCTION if colon else None)
    if family is None or (family.has_device and not argument):
        raise InputError(
            f"encoder {name!r} not found; give pixels, hashing, sentence-transformers:NAME, "
            "open_clip:MODEL/PRETRAINED, torchvision:MODEL or module:function"
        )
    if kind not in family.takes:
        suitable = ", ".join(key for key, known in FAMILIES.items() if kind in known.takes)
        raise InputError(
            f"the encoder {name} supports {' and '.join(family.takes)}, but the input contains "
            f"{kind}; use {suitable} or module:function for {kind}"
        )
    if device is not None and not family.has_device:
        raise InputError(f"--device cannot be used with the encoder {name}; omit it")
    return family.open(name, argument, kind, device)


def _open_pixels(name: str, argument: str, *_: Any) -> Encoder:
    """Open `pixels` or `pixels:SIDE`: the RGB values, from 0 to 1, of the image at SIDE x SIDE."""
    side = _parse_number(name, argument, _SIDE, _MAX_SIDE)
    import_optional("PIL.Image", f"the encoder {name}", "embed-images")

    def encode(images: list[Any]) -> NDArray[np.float32]:
        small = [np.asarray(image.resize((side, side)), np.float32) for image in images]
        return np.stack(small).reshape(len(small), -1) / np.float32(255)

    return Encoder(name, version_of("pillow"), encode)


def _open_hashing(name: str, argument: str, *_: Any) -> Encoder:
    """Open `hashing` or `hashing:FEATURES`: counts of words and bigrams, hashed with signs.

    Rows have unit length. Their inner products approximate the inner products of the normalized
    counts without hashing.
    """
    from sklearn.feature_extraction.text import HashingVectorizer

    hashing = HashingVectorizer(
        n_features=_parse_number(name, argument, _FEATURES, _MAX_FEATURES),
        ngram_range=(1, 2),
        token_pattern=r"(?u)\b\w+\b",  # includes words of one letter
        dtype=np.float32,
    )

    def encode(texts: list[Any]) -> NDArray[np.float32]:
        return np.asarray(hashing.transform(texts).toarray())

    return Encoder(name, version_of("scikit-learn"), encode)


def _parse_number(name: str, argument: str, default: int, most: int) -> int:
    if not argument:
        return default
    if not argument.isdecimal() or not 1 <= int(argument) <= most:
        family = name.partition(":")[0]
        raise InputError(
            f"the argument of the encoder {name} must be a number from 1 to {most}, as in "
            f"{family}:{default}, got {argument!r}"
        )
    return int(argument)


def _open_function(name: str, *_: Any) -> Encoder:
    """Open a user function: `package.module:function` or `path/to/file.py:function`."""
    where, __, attribute = name.rpartition(":")
    with explain_failure(name, "give package.module:function, or file.py:function for a file"):
        module = _import_file(Path(where)) if where.endswith(".py") else import_module(where)
    function: Any = module
    for part in attribute.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise InputError(
            f"the encoder {name} cannot be used: {where} has no function {attribute!r}"
        )
    return Encoder(name, _identify_code(module), function)


def _identify_code(module: ModuleType) -> str:
    """Return the package and its version, or a digest of the file if it has no version.

    A resume compares this text to detect changed code.
    """
    package = module.__name__.partition(".")[0]
    made_by, file = version_of(package), getattr(module, "__file__", None)
    if made_by != package or file is None:
        return made_by
    return f"{package} (SHA-256 {hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]})"


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"the encoder file {path} does not exist; check the path")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickle look up the module there
    spec.loader.exec_module(module)
    return module


FAMILIES = {
    "pixels": Family(("images",), _open_pixels, has_device=False),
    "hashing": Family(("texts",), _open_hashing, has_device=False),
    "sentence-transformers": Family(("texts",), pretrained.open_sentence_transformer),
    "open_clip": Family(("images", "texts"), pretrained.open_clip_model),
    "torchvision": Family(("images",), pretrained.open_torchvision),
}
_USER_FUNCTION = Family(("images", "texts"), _open_function, has_device=False)
