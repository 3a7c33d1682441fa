"""Reject masked elements: the mask of a NumPy masked array is lost in computations and files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError


def remove_mask(values: Any, what: str, first: int = 0) -> Any:
    """Return the data of a masked array without masked elements, and other values unchanged.

    A list may contain masked arrays. In messages, rows are numbered from `first` on.

    Raises
    ------
    InputError
        If an element is masked.
    """
    if isinstance(values, list | tuple) and any(
        isinstance(each, np.ma.MaskedArray) for each in values
    ):
        values = np.ma.array(values)
    if not isinstance(values, np.ma.MaskedArray):
        return values
    masked: NDArray[np.bool_] = np.ma.getmaskarray(values)
    if masked.any():
        rows = np.flatnonzero(masked.reshape(len(masked), -1).any(axis=1))
        raise InputError(
            f"{len(rows)} row(s) of {what} contain masked elements, the first is row "
            f"{first + int(rows[0])}; fill the masked elements or drop these rows first"
        )
    return values.data
