"""Events are immutable values, and the default listener emits warnings."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import FrozenInstanceError
from typing import get_args

import pytest

from scrlm_dask import events
from scrlm_dask.errors import ScrlmWarning


def test_warning_of_a_run_points_to_the_line_of_the_caller() -> None:
    with pytest.warns(ScrlmWarning, match="rho=0.25") as caught:
        events.warn(events.Note("rho=0.25", warning=True))
    assert caught[0].filename == __file__


def test_other_events_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        events.warn(events.Note("rho was chosen"))
        events.warn(events.CentersFound(3))
        events.warn(events.RunEnded(1.0, "KeyError"))


def test_events_are_values() -> None:
    done = events.BlockDone("loss", 10, 80)
    assert pickle.loads(pickle.dumps(done)) == done
    with pytest.raises(FrozenInstanceError):
        done.rows = 3  # type: ignore[misc]


def test_event_type_lists_every_event_of_the_module() -> None:
    kinds = {
        value
        for value in vars(events).values()
        if isinstance(value, type) and value.__module__ == events.__name__
    }
    assert set(get_args(events.Event)) == kinds
