"""Preload for Dask processes: `dask worker --preload scrlm_dask.preload`, same for the scheduler.

Workers leave Ctrl-C to the client; the scheduler serves the page `/scrlm` before the first run.
"""

from __future__ import annotations

import signal
from typing import Any


def dask_setup(server: Any) -> None:
    """Prepare the worker or the scheduler that Dask starts."""
    from distributed import Scheduler

    if isinstance(server, Scheduler):
        from scrlm_dask.monitoring.dashboard import RunsPlugin

        plugin = RunsPlugin()
        plugin.attach(server)
        server.add_plugin(plugin)
    else:
        # Ctrl-C reaches the whole process group; the client stops the workers itself.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
