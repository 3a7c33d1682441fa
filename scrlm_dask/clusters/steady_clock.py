"""Make Dask's timers independent of changes of the system clock.

Dask and Tornado compute deadlines from `time.time()`. After NTP or a resumed virtual machine has
set the clock back by an hour, Tornado runs no periodic callback for an hour: no heartbeats, and no
checks of memory limits. Messages that Dask has queued in the milliseconds before also wait for an
hour, so a run hangs. Neither library has a setting for this.
"""

from __future__ import annotations

import time

_OFFSET = time.time() - time.monotonic()


def steady_time() -> float:
    """Return the time in seconds; it never goes backwards, even if the system clock is set back.

    It starts as the system time, because deadlines computed earlier must remain valid.
    """
    return _OFFSET + time.monotonic()


def use_steady_clock() -> None:
    """Let the event loops and the message queues of Dask in this process use `steady_time`.

    They compare times with each other, so either both of them use it or neither does.
    """
    from distributed import batched, metrics
    from tornado.ioloop import IOLoop

    if getattr(batched, "time", None) is metrics.time:
        batched.time = steady_time
        IOLoop.time = lambda loop: steady_time()
