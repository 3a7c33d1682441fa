"""Preload module for Dask workers and schedulers: `dask worker --preload scrlm_dask.preload`.

Workers then ignore Ctrl-C, and the scheduler serves the page `/scrlm` even before the first run.
"""

from __future__ import annotations

import signal
from typing import Any


def dask_setup(server: Any) -> None:
    """Set up a worker or a scheduler; Dask calls this when the process starts."""
    from distributed import Scheduler

    if isinstance(server, Scheduler):
        from scrlm_dask.monitoring.dashboard import RunsPlugin

        plugin = RunsPlugin()
        plugin.attach(server)
        server.add_plugin(plugin)
    else:
        # Ctrl-C is sent to the whole process group, but the client stops the workers itself.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
