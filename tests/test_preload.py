"""The preload module of workers and schedulers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Scheduler

from scrlm_dask.monitoring.dashboard import RunsPlugin
from scrlm_dask.preload import dask_setup


@pytest.fixture
def interrupt() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_worker_ignores_interrupts(interrupt: None) -> None:
    dask_setup(object())
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


class BareScheduler(Scheduler):
    """A scheduler that is not started and only records its plugins."""

    def __init__(self) -> None:
        self.added: list[Any] = []

    def add_plugin(self, plugin: Any, **options: Any) -> None:
        self.added.append(plugin)


def test_scheduler_gets_the_dashboard_page_and_keeps_its_signal_handler(interrupt: None) -> None:
    before = signal.getsignal(signal.SIGINT)
    scheduler = BareScheduler()
    dask_setup(scheduler)
    (plugin,) = scheduler.added
    try:
        assert isinstance(plugin, RunsPlugin)
        assert plugin.latest() is None  # there is no run yet
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        asyncio.run(plugin.close())
