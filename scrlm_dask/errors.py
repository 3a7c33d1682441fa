"""What the package raises on purpose.

Each error inherits the project's base and the builtin a caller would expect, and carries one
message only: exceptions travel from workers to the client by pickle, which replays `args`.
"""

from __future__ import annotations


class ScrlmError(Exception):
    """Base of every error that the package raises on purpose."""


class InputError(ScrlmError, ValueError):
    """A value, an array or a parameter that cannot be used as it is."""


class NonFiniteRowError(InputError):
    """A row of the block in hand is not finite; what runs the block knows its true number."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row  # its position in the block


class UnusableRowsError(InputError):
    """Features that no run can go on with: a row that cannot be used, or rows that changed."""


class StoreError(ScrlmError, OSError):
    """A file, store or run directory that is missing, broken, unfinished or in the way."""


class DamagedItemError(StoreError):
    """Why an item cannot be encoded, beginning with a verb; who reads it knows which one it is."""


class MissingError(StoreError, FileNotFoundError):
    """Nothing lies at the place that was named."""


class UnreachableError(StoreError):
    """A remote store that does not answer, or lets nobody in: what lies there is not known."""


class EncoderError(ScrlmError, RuntimeError):
    """An encoder that failed at its work; what it encoded before is as good as it was."""


class ClusterError(ScrlmError, RuntimeError):
    """The scheduler or its workers cannot be reached, or were lost."""


class ScrlmWarning(UserWarning):
    """A result that is an answer but perhaps not the one that was hoped for."""
