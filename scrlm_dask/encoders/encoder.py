"""The interface of encoders, and the checks of their output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import EncoderError, InputError, ScrlmError
from scrlm_dask.text import first_line

Kind = Literal["texts", "images"]


@dataclass(frozen=True)
class Encoder:
    """A function from a list of texts or of PIL images to an array (items, features)."""

    name: str  # as the user gave it
    made_by: str  # the package, with its version
    function: Callable[[list[Any]], Any]

    def encode(self, items: list[Any]) -> NDArray[Any]:
        """Return features (items, p); p should be the same for every batch."""
        try:
            features = np.asarray(self.function(items))
        except (ScrlmError, MemoryError):
            raise
        except Exception as error:  # whatever a model raises, such as that the GPU is full
            raise EncoderError(
                f"the encoder {self.name} failed at a batch of {len(items)} "
                f"({first_line(error, 200)}); with a smaller --batch-size it needs less memory, "
                "and the same command goes on"
            ) from error
        good = features.ndim == 2 and len(features) == len(items) and features.shape[1] > 0
        if not good or features.dtype.kind not in "fiu":
            raise InputError(
                f"the encoder {self.name} gave {features.dtype} of the shape {features.shape} for "
                f"{len(items)} item(s); it must give numbers, one row an item"
            )
        return features


def version_of(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # a checkout, or installed by other means
        return package


@contextmanager
def explain_failure(name: str, remedy: str) -> Iterator[None]:
    """Name the encoder and a remedy for whatever its library raises: no model, no network."""
    try:
        yield
    except (ScrlmError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"the encoder {name} cannot be loaded ({first_line(error, 200)}); {remedy}"
        ) from error
