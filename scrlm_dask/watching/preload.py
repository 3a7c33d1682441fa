"""`dask scheduler --preload scrlm_dask.watching.preload`: the page before the first run."""

from __future__ import annotations

from typing import Any


def dask_setup(scheduler: Any) -> None:
    from scrlm_dask.watching.plugin import RunsPlugin

    plugin = RunsPlugin()
    plugin.attach(scheduler)
    scheduler.add_plugin(plugin)
