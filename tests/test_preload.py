"""What Dask calls when it starts a worker or a scheduler with the preload."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

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


def test_a_scheduler_gets_the_page_and_keeps_its_interrupts(interrupt: None) -> None:
    before = signal.getsignal(signal.SIGINT)

    async def plugins() -> list[type]:
        async with Scheduler(port=0, dashboard=False) as scheduler:
            dask_setup(scheduler)
            return [type(plugin) for plugin in scheduler.plugins.values()]

    assert RunsPlugin in asyncio.run(plugins())
    assert signal.getsignal(signal.SIGINT) is before
