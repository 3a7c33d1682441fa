"""Dask's messages and periodic callbacks while the system clock is set back."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from distributed import batched, metrics
from tornado.ioloop import IOLoop, PeriodicCallback

from scrlm_dask.clusters.steady_clock import steady_time, use_steady_clock

HOUR, TIMEOUT = 3600.0, 60.0


class SystemClock:
    """Replacement of `time.time` that can be set back."""

    def __init__(self) -> None:
        self._read, self._behind = time.time, 0.0

    def __call__(self) -> float:
        return self._read() - self._behind

    def set_back(self) -> None:
        self._behind += HOUR


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SystemClock:
    """Let Dask and Tornado read the system clock, as without this package."""
    clock = SystemClock()
    monkeypatch.setattr(time, "time", clock)
    monkeypatch.setattr(IOLoop, "time", lambda loop: clock())
    for module in (metrics, batched):
        monkeypatch.setattr(module, "time", clock)
    return clock


class SetBackWhileSending:
    """A connection that sets the clock back while the first message is sent."""

    def __init__(self, clock: SystemClock) -> None:
        self._clock, self.second = clock, asyncio.Event()
        self.sent: list[Any] = []

    async def write(self, messages: list[Any], **options: Any) -> int:
        self.sent += messages
        if len(self.sent) == 1:
            self._clock.set_back()
        else:
            self.second.set()
        return 1

    def closed(self) -> bool:
        return False


async def send_two(clock: SystemClock) -> list[Any]:
    connection = SetBackWhileSending(clock)
    queue = batched.BatchedSend("10ms")
    queue.start(connection)
    queue.send("before")
    while not connection.sent:
        await asyncio.sleep(0)
    queue.send("after")
    await asyncio.wait_for(connection.second.wait(), TIMEOUT)
    queue.please_stop = True
    queue.waker.set()
    await queue.stopped.wait()
    return connection.sent


def test_a_queued_message_is_sent(clock: SystemClock) -> None:
    use_steady_clock()
    assert asyncio.run(send_two(clock)) == ["before", "after"]


async def call_periodically(clock: SystemClock) -> int:
    calls, enough = 0, asyncio.Event()

    def call() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            clock.set_back()
        if calls == 3:
            enough.set()

    callback = PeriodicCallback(call, 10)
    callback.start()
    await asyncio.wait_for(enough.wait(), TIMEOUT)
    callback.stop()
    return calls


def test_periodic_callbacks_continue(clock: SystemClock) -> None:
    use_steady_clock()
    assert asyncio.run(call_periodically(clock)) >= 3


def test_other_versions_of_dask_are_not_changed(
    clock: SystemClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Event loop and queue must have the same clock: otherwise the queue would wait busily."""
    monkeypatch.setattr(batched, "time", time.monotonic)
    before = IOLoop.time
    use_steady_clock()
    assert batched.time is time.monotonic
    assert IOLoop.time is before


def test_steady_time_starts_as_the_system_time() -> None:
    assert abs(steady_time() - time.time()) < HOUR
