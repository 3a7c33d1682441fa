"""Errors and warnings of the package.

Each error inherits from `ScrlmError` and from the builtin exception that a caller would expect.
An error takes a single argument, because workers send exceptions to the client by pickle, which
calls the class again with `args`.
"""

from __future__ import annotations

from typing import Any

from scrlm_dask.text import printable


class ScrlmError(Exception):
    """Base class of all errors that the package raises.

    The command line prints the message of such an error without a traceback.

    Examples
    --------
    >>> import scrlm_dask
    >>> try:
    ...     config = scrlm_dask.FitConfig(rho=-1)
    ... except scrlm_dask.ScrlmError as error:
    ...     print(error)
    rho must be a finite number > 0 or 'auto', got -1
    """

    def __str__(self) -> str:
        """Return the message; control characters, such as those in file names, are escaped."""
        return printable(super().__str__())

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Drop a suppressed context before the error is sent to another process.

        Dask also sends `__context__`. An error of another library may not be picklable, and Dask
        would then replace this error by a text.
        """
        if self.__suppress_context__:
            self.__context__ = None
        return super().__reduce__()


class InputError(ScrlmError, ValueError):
    """Raised if a parameter, an array or a value is invalid; also a `ValueError`."""


class NonFiniteRowError(InputError):
    """Raised inside a task if a row contains NaN, infinity or a number that is too large.

    The code that runs the task catches it and raises the result of `named`. Also a `ValueError`.

    Parameters
    ----------
    row : int
        Position of the row in its block or sample.
    """

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row

    def __str__(self) -> str:
        """Return the message for a row whose number in the features is unknown."""
        return str(self.named(f"row {self.row} of a block or sample"))

    def named(self, where: str) -> UnusableRowsError:
        """Return the error for the user; `where` names the row in the features."""
        return UnusableRowsError(
            f"{where} contains NaN, infinity or a value whose square is too large for float32; "
            "drop the row (scrlm ingest --nan drop writes a store without NaN and infinity), or, "
            "if all its values are finite, divide all features by a large number or, unless you do "
            "so already, fit with --preprocess standardize (preprocess='standardize')"
        )


class UnusableRowsError(InputError):
    """Raised if a run cannot continue with its features; also a `ValueError`.

    Either a row is not finite, or the features or another input changed during the run.
    """


class StoreError(ScrlmError, OSError):
    """Raised if a file, store or run directory cannot be read or written; also an `OSError`.

    Examples are a damaged or unfinished store, or an output that exists already.
    """


class DamagedItemError(StoreError):
    """Raised if an image or a text cannot be encoded; also an `OSError`.

    The message starts with a verb ("cannot be read as an image"). The caller catches the error and
    adds the name of the item.
    """


class MissingError(StoreError, FileNotFoundError):
    """Raised if a file, store or run does not exist; also a `FileNotFoundError`."""


class UnreachableError(StoreError):
    """Raised if a store does not respond or denies access; also an `OSError`.

    It is then unknown whether the file or store exists.
    """


class UntrustedOriginError(StoreError):
    """Raised if a file names a URL whose origin the user has not given; also an `OSError`.

    The origin of a URL is its scheme with its bucket or host. No request is sent.
    """


class EncoderError(ScrlmError, RuntimeError):
    """Raised if an encoder fails; also a `RuntimeError`.

    Items that were encoded before stay valid, so the command can be resumed.
    """


class ClusterError(ScrlmError, RuntimeError):
    """Raised if the Dask scheduler or its workers cannot be reached or are lost.

    Also a `RuntimeError`.
    """


class ScrlmWarning(UserWarning):
    """Issued if a result is valid but may not be what was intended.

    Examples are a bandwidth that the data does not determine clearly, and clusters without rows.

    Examples
    --------
    Turn these warnings into errors:

    >>> import warnings
    >>> import scrlm_dask
    >>> warnings.simplefilter("error", scrlm_dask.ScrlmWarning)
    """
