"""A source of features that an encoder computes from items, in the process that has the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.encoders.encoder import Encoder
from scrlm_dask.errors import DamagedItemError, InputError, StoreError
from scrlm_dask.sources.base import MappedSource
from scrlm_dask.sources.items import Items
from scrlm_dask.sources.tables import as_floats


@dataclass(frozen=True)
class EmbeddedSource(MappedSource):
    """Features that an encoder computes from items, batch by batch.

    A batch never spans two blocks, so that encoding a block again, for example after a resume,
    gives the same features.
    """

    items: Items
    encoder: Encoder
    batch_size: int
    skip: bool  # whether an item that cannot be loaded becomes a row of NaN instead of an error

    @property
    def is_here(self) -> bool:
        """Always true: the model is in this process."""
        return True

    def _map(self, values: NDArray[Any], first: int) -> NDArray[Any]:
        block = np.full((len(values), self.n_features), np.nan, self.dtype)
        for at in range(0, len(values), self.batch_size):
            positions, loaded = self._load(values[at : at + self.batch_size].tolist(), first + at)
            if loaded:
                block[at + positions] = self._encode(loaded, first + at + positions)
        return block

    def _load(self, values: list[str], first: int) -> tuple[NDArray[np.int64], list[Any]]:
        """Load the items that can be encoded, and return their positions among the values."""
        positions, loaded = [], []
        for position, value in enumerate(values):
            try:
                loaded.append(self.items.load(value))
                positions.append(position)
            except DamagedItemError as error:
                if not self.skip:
                    raise StoreError(
                        f"{self.locate(first + position)} {error}; fix it, or use --on-error skip "
                        "to skip such items"
                    ) from error
        return np.array(positions, np.int64), loaded

    def _encode(self, loaded: list[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
        output = self.encoder.encode(loaded)
        if output.shape[1] != self.n_features:
            raise InputError(
                f"the encoder {self.encoder.name} returned {output.shape[1]} features for "
                f"{self.locate(int(rows[0]))}, expected {self.n_features} as for earlier items"
            )
        features = as_floats(output, str(self.dtype))
        bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
        if len(bad):
            raise InputError(
                f"the encoder {self.encoder.name} returned NaN, infinity or a value too large for "
                f"{self.dtype} for {self.locate(int(rows[bad[0]]))}; features must be finite"
            )
        return features


@dataclass(frozen=True)
class ItemCheck(MappedSource):
    """A source of one number per item: 0, or NaN if the item cannot be loaded; shape (rows, 1)."""

    items: Items

    def _map(self, values: NDArray[Any], first: int) -> NDArray[np.float32]:
        return np.array([[0 if self._loads(v) else np.nan] for v in values.tolist()], np.float32)

    def _loads(self, value: str) -> bool:
        try:
            self.items.load(value)
        except DamagedItemError:
            return False
        return True


def open_embedded(
    items: Items, encoder: Encoder, n_rows: int, dtype: str | None, batch_size: int, skip: bool
) -> EmbeddedSource:
    """Open the features of items.

    The first item that can be loaded is encoded to determine the number of features and the dtype.
    """
    source, options = items.source, (items, encoder, batch_size, skip)
    features = EmbeddedSource(source.files, (n_rows, 1), np.dtype(np.float32), source, *options)
    for row, values in enumerate(source.batches(0, n_rows, 1)):
        _, loaded = features._load(values.tolist(), row)
        if loaded:
            output = encoder.encode(loaded)
            stored = dtype or ("float16" if output.dtype == np.float16 else "float32")
            return replace(features, shape=(n_rows, output.shape[1]), dtype=np.dtype(stored))
    raise InputError(f"none of the {n_rows} item(s) of {source.what} can be read; no rows are left")


def open_item_check(items: Items) -> ItemCheck:
    """Open a source that checks which items can be loaded."""
    source = items.source
    return ItemCheck(source.files, (source.n_rows, 1), np.dtype(np.float32), source, items)
