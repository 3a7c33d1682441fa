"""Settings in Dask's configuration: defaults, accepted values and rejected values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import pytest
from messages import expecting

from scrlm_dask import settings
from scrlm_dask.errors import InputError
from scrlm_dask.settings import computing_threads, read_ahead


def test_setting_from_the_environment() -> None:
    assert read_ahead() == 0
    assert read_ahead(default=1) == 1
    with dask.config.set(dask.config.collect([], {"DASK_SCRLM__READ_AHEAD": "2"})):
        assert read_ahead(default=1) == 2


@pytest.mark.parametrize("value", ["yes", -1, 0.5])
def test_read_ahead_must_be_a_number_of_threads(value: Any) -> None:
    with (
        dask.config.set({"scrlm.read-ahead": value}),
        pytest.raises(InputError, match=expecting("scrlm.read-ahead", repr(value), 0, 1)),
    ):
        read_ahead()


@pytest.mark.parametrize(("threads", "ahead", "left"), [(5, 1, 4), (2, 1, 1), (1, 1, 1), (3, 0, 3)])
def test_at_least_one_thread_computes(threads: int, ahead: int, left: int) -> None:
    assert computing_threads(threads, ahead) == left


@pytest.mark.parametrize(
    ("name", "read", "default", "values"),
    [
        ("wait-workers", settings.workers_timeout, 25.0, {"90s": 90, "2m": 120, 7: 7, "3": 3}),
        ("checkpoint-seconds", settings.checkpoint_seconds, 5.0, {0: 0, 2.5: 2.5}),
        ("dashboard-port", settings.dashboard_port, 8787, {0: 0, 65535: 65535}),
    ],
)
def test_values_and_defaults(
    name: str, read: Callable[[], float], default: float, values: dict[Any, float]
) -> None:
    with dask.config.set({"scrlm": {}}):
        assert read() == default
    for value, expected in values.items():
        with dask.config.set({f"scrlm.{name}": value}):
            assert read() == expected
            assert type(read()) is type(default)


@pytest.mark.parametrize(
    ("name", "read", "value"),
    [
        ("wait-workers", settings.workers_timeout, "soon"),
        ("wait-workers", settings.workers_timeout, "3 parsecs"),
        ("wait-workers", settings.workers_timeout, [1]),
        ("checkpoint-seconds", settings.checkpoint_seconds, "5s"),
        ("checkpoint-seconds", settings.checkpoint_seconds, -1),
        ("dashboard-port", settings.dashboard_port, "web"),
        ("dashboard-port", settings.dashboard_port, -1),
        ("dashboard-port", settings.dashboard_port, 65536),
    ],
)
def test_rejected_values_are_named(name: str, read: Callable[[], float], value: Any) -> None:
    facts = (f"scrlm.{name}", repr(value))
    with (
        dask.config.set({f"scrlm.{name}": value}),
        pytest.raises(InputError, match=expecting(*facts)),
    ):
        read()


ON, OFF = (True, 1, "yes", "on"), (False, 0, "0", "No", "off", "false")


@pytest.mark.parametrize(
    ("value", "enabled"), [*((value, True) for value in ON), *((value, False) for value in OFF)]
)
def test_monitoring_is_switched_off_by_the_usual_words(value: Any, enabled: bool) -> None:
    with dask.config.set({"scrlm": {}}):
        assert settings.monitoring_enabled()
    with dask.config.set({"scrlm.watch": value}):
        assert settings.monitoring_enabled() == enabled
