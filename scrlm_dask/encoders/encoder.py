"""What every encoder is, and what is asked of what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import EncoderError, InputError, ScrlmError

Kind = Literal["texts", "images"]


@dataclass(frozen=True)
class Encoder:
    """A function from a list of texts or of PIL images to an array (items, features)."""

    name: str  # as it was asked for
    made_by: str  # the package, with its version
    function: Callable[[list[Any]], Any]

    def encode(self, items: list[Any]) -> NDArray[Any]:
        """Features (items, p), p the same every time as far as the encoder is good."""
        try:
            found = np.asarray(self.function(items))
        except (ScrlmError, MemoryError):
            raise
        except Exception as error:  # whatever a model raises, such as that the GPU is full
            raise EncoderError(
                f"the encoder {self.name} failed at a batch of {len(items)} ({first_line(error)}); "
                "with a smaller --batch-size it needs less memory, and the same command goes on"
            ) from error
        good = found.ndim == 2 and len(found) == len(items) and found.shape[1] > 0
        if not good or found.dtype.kind not in "fiu":
            raise InputError(
                f"the encoder {self.name} gave {found.dtype} of the shape {found.shape} for "
                f"{len(items)} item(s); it must give numbers, one row an item"
            )
        return found


def version_of(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # a checkout, or installed by other means
        return package


@contextmanager
def loading(name: str, way_out: str) -> Iterator[None]:
    """Libraries raise what they please when there is no such model, or no network."""
    try:
        yield
    except (ScrlmError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"the encoder {name} cannot be loaded ({first_line(error)}); {way_out}"
        ) from error


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]:.200}" if lines else type(error).__name__
