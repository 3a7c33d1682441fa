"""Errors inherit from the usual builtin and can be pickled."""

from __future__ import annotations

import inspect
import pickle

import pytest
from distributed.core import clean_exception, error_message

from scrlm_dask import errors

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if kind.__module__ == errors.__name__
]


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InputError, ValueError),
        (errors.NonFiniteRowError, ValueError),
        (errors.UnusableRowsError, ValueError),
        (errors.StoreError, OSError),
        (errors.DamagedItemError, OSError),
        (errors.MissingError, FileNotFoundError),
        (errors.UnreachableError, OSError),
        (errors.UntrustedOriginError, OSError),
        (errors.EncoderError, RuntimeError),
        (errors.ClusterError, RuntimeError),
    ],
)
def test_errors_inherit_from_builtins(kind: type[Exception], builtin: type) -> None:
    assert issubclass(kind, builtin)
    assert issubclass(kind, errors.ScrlmError)


def test_warning_is_not_an_error() -> None:
    assert issubclass(errors.ScrlmWarning, UserWarning)
    assert not issubclass(errors.ScrlmWarning, errors.ScrlmError)


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_survives_pickle(kind: type[Exception]) -> None:
    error = kind(7) if kind is errors.NonFiniteRowError else kind("what happened")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert copy.args == error.args
    assert str(copy) == str(error)
    if isinstance(copy, errors.NonFiniteRowError):
        assert copy.row == 7


def test_row_error_names_its_row() -> None:
    assert "row 7" in str(errors.NonFiniteRowError(7))
    assert "row 9 of x.npy" in str(errors.NonFiniteRowError(7).named("row 9 of x.npy"))


class _UnpicklableError(Exception):
    def __init__(self, *, secret: str) -> None:
        super().__init__(secret)


def test_error_of_a_task_reaches_the_client_without_its_suppressed_context() -> None:
    try:
        try:
            raise _UnpicklableError(secret="token")
        except _UnpicklableError:
            raise errors.UnreachableError("the store is slow") from None
    except errors.UnreachableError as error:
        sent = error_message(error)["exception"].data
    _, received, _ = clean_exception(sent)
    assert isinstance(received, errors.UnreachableError)
    assert str(received) == "the store is slow"
    assert b"token" not in sent


def test_messages_contain_no_control_characters() -> None:
    for kind in (errors.InputError, errors.StoreError, errors.ClusterError):
        assert str(kind("\x1b[2J\r\n\u202e")) == r"\x1b[2J\r\n\u202e"
