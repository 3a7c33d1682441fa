"""The interface of encoders, and checks of their output."""

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
    """A function that maps a list of texts or PIL images to an array (items, features)."""

    name: str  # as given by the user
    made_by: str  # package and version
    function: Callable[[list[Any]], Any]

    def encode(self, items: list[Any]) -> NDArray[Any]:
        """Return the features of the items, shape (items, p); p must not depend on the batch."""
        try:
            features = np.asarray(self.function(items))
        except (ScrlmError, MemoryError):
            raise
        except Exception as error:  # models raise arbitrary exceptions, such as out of GPU memory
            raise EncoderError(
                f"the encoder {self.name} failed on a batch of {len(items)} "
                f"({first_line(error, 200)}); a smaller --batch-size requires less memory; run the "
                "same command again to resume"
            ) from error
        good = features.ndim == 2 and len(features) == len(items) and features.shape[1] > 0
        if not good or features.dtype.kind not in "fiu":
            raise InputError(
                f"the encoder {self.name} must return an array of numbers with one row per item, "
                f"got {features.dtype} of shape {features.shape} for {len(items)} item(s)"
            )
        return features


def version_of(package: str) -> str:
    """Return the name and the installed version of a package, or only its name if unknown."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # not installed as a distribution, such as a source checkout
        return package


@contextmanager
def explain_failure(name: str, remedy: str) -> Iterator[None]:
    """Convert errors that occur while an encoder is loaded to InputError with the hint `remedy`."""
    try:
        yield
    except (ScrlmError, MemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"the encoder {name} cannot be loaded ({first_line(error, 200)}); {remedy}"
        ) from error
