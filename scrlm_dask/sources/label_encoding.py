"""Labels that are texts, as numbers: the place of a text among all of them, sorted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.base import MappedSource, Source, as_texts

OUTLIER = "-1"  # an outlier, as it is among labels that are numbers
_MOST_NAMES = 100_000  # names are in the store's attributes, which are read whenever it is opened


@dataclass(frozen=True)
class EncodedLabels(MappedSource):
    """The labels 0, 1, ... for the names, which are sorted."""

    names: tuple[str, ...]

    @property
    def what(self) -> str:
        return self.given.what

    @property
    def unit_rows(self) -> int:
        return self.given.unit_rows

    @property
    def streams(self) -> bool:
        return self.given.streams

    def _map(self, values: NDArray[Any], first: int) -> NDArray[Any]:
        numbers = {OUTLIER: -1, **{name: i for i, name in enumerate(self.names)}}
        found, places = np.unique(as_texts(values), return_inverse=True)
        new = next((text for text in found.tolist() if text not in numbers), None)
        if new is not None:
            raise StoreError(
                f"the labels {self.what} hold {new!r} now, and did not when they were numbered; do "
                "not write to them meanwhile"
            )
        return np.array([numbers[text] for text in found.tolist()], np.int32)[places]


def encode_labels(labels: Source, names: tuple[str, ...]) -> EncodedLabels:
    return EncodedLabels(labels.files, labels.shape, np.dtype(np.int32), labels, names)


def names_among(values: NDArray[Any], first: int, labels: Source) -> frozenset[str]:
    """Return the distinct names of rows from `first` on."""
    texts = as_texts(values)
    found = np.unique(texts).tolist()
    for text in found:
        if _is_doubtful(text):
            row = first + int(np.flatnonzero(texts == text)[0])
            raise InputError(
                f"{labels.locate(row)} has the label {text!r}, which may be an outlier, or a row "
                f"without a label; write {OUTLIER} for outliers, and drop or fill the others"
            )
    return frozenset(found) - {OUTLIER}


def merge_names(a: frozenset[str], b: frozenset[str], what: str) -> frozenset[str]:
    """Return all names of both, which must be few enough to be classes; `what` names the labels."""
    names = a | b
    if len(names) > _MOST_NAMES:
        raise InputError(
            f"the labels {what} are more than {_MOST_NAMES} different texts, such as "
            f"{min(names)!r}; names of rows are --ids, and so many classes are given as integers"
        )
    return names


def _is_doubtful(text: str) -> bool:
    """Return whether a text is empty, NaN, or another spelling of -1, and hardly a class."""
    if not text.strip():
        return True
    try:
        number = float(text)
    except ValueError:
        return False
    return math.isnan(number) or (number == -1 and text != OUTLIER)
