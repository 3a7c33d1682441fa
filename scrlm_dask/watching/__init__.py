"""Those who watch a run: a page and metrics on the scheduler, lines of JSON, a notebook's cell."""

from __future__ import annotations

SETTING = "scrlm.watch"  # of Dask, or DASK_SCRLM__WATCH=0: nobody watches, nothing is noted down


def wanted() -> bool:
    """Whether runs of this process are to be watched."""
    import dask

    return str(dask.config.get(SETTING, True)).lower() not in ("0", "false", "no", "off")
