"""Settings `scrlm.*` of Dask's configuration; a file or DASK_SCRLM__NAME sets them."""

from __future__ import annotations

from scrlm_dask.errors import InputError

READ_AHEAD_SETTING = "scrlm.read-ahead"
WORKERS_SETTING = "scrlm.wait-workers"
WAIT_LONGER = "--wait-workers (or DASK_SCRLM__WAIT_WORKERS)"  # few commands have the option
_MONITORING_SETTING = "scrlm.watch"
_CHECKPOINT_SETTING, _CHECKPOINT_SECONDS = "scrlm.checkpoint-seconds", 5.0
_PORT_SETTING, _DASHBOARD_PORT = "scrlm.dashboard-port", 8787


def read_ahead(default: int = 0) -> int:
    """Return how many threads of each worker prefetch blocks."""
    import dask

    value = dask.config.get(READ_AHEAD_SETTING, default)
    if not isinstance(value, int) or value < 0:
        raise InputError(
            f"Dask's setting {READ_AHEAD_SETTING} is {value!r}; give the number of threads that "
            "read ahead, such as 1, or 0 for none"
        )
    return int(value)


def computing_threads(n_threads: int, ahead: int) -> int:
    """Return how many threads compute when `ahead` of them prefetch; at least one."""
    return max(1, n_threads - ahead)


def workers_timeout(default: str = "25s") -> float:
    """Return how many seconds to wait for the first worker."""
    import dask
    from dask.utils import parse_timedelta

    value = dask.config.get(WORKERS_SETTING, default)
    try:
        return float(parse_timedelta(value, default="s"))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise InputError(
            f"Dask's setting {WORKERS_SETTING} is {value!r}; give a time such as 90s or 2h"
        ) from error


def checkpoint_seconds() -> float:
    """Return the least time between two checkpoints of k-means.

    An iteration that ends sooner is not saved: repeating it takes little time.
    """
    import dask

    value = dask.config.get(_CHECKPOINT_SETTING, _CHECKPOINT_SECONDS)
    if not isinstance(value, int | float) or value < 0:
        raise InputError(
            f"Dask's setting {_CHECKPOINT_SETTING} is {value!r}; give a number of seconds"
        )
    return float(value)


def dashboard_port() -> int:
    """Return the port that the dashboard tries first; 0 is any free port.

    Two runs that start at the same moment may both find the usual port free and fail on it.
    """
    import dask

    port = dask.config.get(_PORT_SETTING, _DASHBOARD_PORT)
    if not isinstance(port, int) or not 0 <= port < 2**16:
        raise InputError(
            f"Dask's setting {_PORT_SETTING} is {port!r}; give a port such as {_DASHBOARD_PORT}, "
            "or 0 for any that is free"
        )
    return port


def monitoring_enabled() -> bool:
    """Return whether runs publish their events: to the dashboard, a notebook and events.jsonl."""
    import dask

    value = dask.config.get(_MONITORING_SETTING, True)
    return str(value).lower() not in ("0", "false", "no", "off")
