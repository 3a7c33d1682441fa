"""What Dask calls when it starts a worker or a scheduler with the preload."""

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


def test_a_worker_leaves_interrupts_to_the_client(interrupt: None) -> None:
    dask_setup(object())
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


class BareScheduler(Scheduler):
    """A scheduler that is not started: it only takes plugins."""

    def __init__(self) -> None:
        self.added: list[Any] = []

    def add_plugin(self, plugin: Any, **options: Any) -> None:
        self.added.append(plugin)


def test_a_scheduler_gets_the_page_and_keeps_its_interrupts(interrupt: None) -> None:
    before = signal.getsignal(signal.SIGINT)
    scheduler = BareScheduler()
    dask_setup(scheduler)
    (plugin,) = scheduler.added
    try:
        assert isinstance(plugin, RunsPlugin)
        assert plugin.latest() is None  # it is ready before the first run
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        asyncio.run(plugin.close())
