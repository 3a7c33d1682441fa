"""Encoders that need no model: to try the way once, and to compare others with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.encoders.base import Encoder, version_of
from scrlm_dask.errors import InputError
from scrlm_dask.extras import require

_SIDE, _MOST_SIDE = 32, 1024
_FEATURES, _MOST_FEATURES = 512, 2**20


def open_pixels(name: str, rest: str) -> Encoder:
    """`pixels` or `pixels:SIDE`: the image at SIDE x SIDE, its three colours from 0 to 1."""
    side = _number(name, rest, _SIDE, _MOST_SIDE)
    require("PIL.Image", f"the encoder {name}", "embed-images")

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
