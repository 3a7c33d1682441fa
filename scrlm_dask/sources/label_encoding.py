"""Encode string labels as integers: the position of a name in the sorted list of all names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.base import MappedSource, Source, as_texts
from scrlm_dask.text import quoted

OUTLIER = "-1"  # label of outliers, the same as in integer labels
_MOST_NAMES = 100_000  # limited, because all names are read each time the store is opened


@dataclass(frozen=True)
class EncodedLabels(MappedSource):
    """Integer labels: the position of each string label in `names`, or -1 for outliers."""

    names: tuple[str, ...]  # sorted

    @property
    def what(self) -> str:
        """Name of the string labels in messages."""
        return self.given.what

    @property
    def unit_rows(self) -> int:
        """Number of string labels that are decoded at once."""
        return self.given.unit_rows

    @property
    def streams(self) -> bool:
        """Return whether `batches` decodes each unit of the string labels only once."""
        return self.given.streams

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The number of each name; computed once, because there may be 100 000 names."""
        return {OUTLIER: -1, **{name: i for i, name in enumerate(self.names)}}

    def _map(self, values: NDArray[Any], first: int) -> NDArray[Any]:
        # Not np.unique: NumPy 2.4 may crash when it sorts strings of variable length.
        texts = as_texts(values).tolist()
        try:
            return np.fromiter(map(self._numbers.__getitem__, texts), np.int32, len(texts))
        except KeyError as error:
            raise StoreError(
                f"the labels {self.what} contain {quoted(error.args[0])}, but did not when their "
                "names were collected; do not write to them while they are read"
            ) from error


def encode_labels(labels: Source, names: tuple[str, ...]) -> EncodedLabels:
    """Return string labels as integers; `names` are the distinct class names, sorted."""
    return EncodedLabels(labels.files, labels.shape, np.dtype(np.int32), labels, names)


def names_among(values: NDArray[Any], first: int, labels: Source) -> frozenset[str]:
    """Return the distinct names among the labels of rows from `first` on, without outliers."""
    texts = as_texts(values)
    names = frozenset(texts.tolist())
    for name in sorted(names):
        if _is_ambiguous(name):
            row = first + int(np.flatnonzero(texts == name)[0])
            raise InputError(
                f"{labels.locate(row)} has label {quoted(name)}, which may mean an outlier or a "
                f"missing label; use {OUTLIER} for outliers, and drop or fill missing labels"
            )
    return names - {OUTLIER}


def merge_names(a: frozenset[str], b: frozenset[str], what: str) -> frozenset[str]:
    """Return the union of two sets of names; raise if there are too many to be class names."""
    names = a | b
    if len(names) > _MOST_NAMES:
        raise InputError(
            f"the labels {what} have more than {_MOST_NAMES} distinct names, such as "
            f"{quoted(min(names))}; use --ids for names of rows, or give the labels as integers"
        )
    return names


def _is_ambiguous(text: str) -> bool:
    """Return whether a label is empty, NaN, or another spelling of -1: it may mean no class."""
    if not text.strip():
        return True
    try:
        number = float(text)
    except ValueError:
        return False
    return math.isnan(number) or (number == -1 and text != OUTLIER)
