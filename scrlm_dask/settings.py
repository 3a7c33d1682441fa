"""Settings `scrlm.*` in Dask's configuration files or in variables `DASK_SCRLM__NAME`."""

from __future__ import annotations

from scrlm_dask.errors import InputError

READ_AHEAD_SETTING = "scrlm.read-ahead"
WORKERS_SETTING = "scrlm.wait-workers"
WAIT_LONGER = "--wait-workers (or DASK_SCRLM__WAIT_WORKERS)"  # some commands lack the option
_MONITORING_SETTING = "scrlm.watch"
_CHECKPOINT_SETTING, _CHECKPOINT_SECONDS = "scrlm.checkpoint-seconds", 5.0
_PORT_SETTING, _DASHBOARD_PORT = "scrlm.dashboard-port", 8787


def read_ahead(default: int = 0) -> int:
    """Return the number of threads per worker that prefetch blocks."""
    import dask

    value = dask.config.get(READ_AHEAD_SETTING, default)
    if not isinstance(value, int) or value < 0:
        raise InputError(
            f"the Dask setting {READ_AHEAD_SETTING} must be the number of prefetching threads per "
            f"worker, such as 1, or 0 for none, got {value!r}"
        )
    return int(value)


def computing_threads(n_threads: int, ahead: int) -> int:
    """Return the number of compute threads if `ahead` of `n_threads` prefetch; at least 1."""
    return max(1, n_threads - ahead)


def workers_timeout(default: str = "25s") -> float:
    """Return the maximum time to wait for the first worker, in seconds."""
    import dask
    from dask.utils import parse_timedelta

    value = dask.config.get(WORKERS_SETTING, default)
    try:
        return float(parse_timedelta(value, default="s"))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise InputError(
            f"the Dask setting {WORKERS_SETTING} must be a duration such as 90s or 2h, "
            f"got {value!r}"
        ) from error


def checkpoint_seconds() -> float:
    """Return the minimum time between two checkpoints of k-means, in seconds.

    A shorter iteration is not saved, because repeating it takes little time.
    """
    import dask

    value = dask.config.get(_CHECKPOINT_SETTING, _CHECKPOINT_SECONDS)
    if not isinstance(value, int | float) or value < 0:
        raise InputError(
            f"the Dask setting {_CHECKPOINT_SETTING} must be a number of seconds >= 0, "
            f"got {value!r}"
        )
    return float(value)


def dashboard_port() -> int:
    """Return the port that the dashboard tries first; 0 means any free port.

    Use 0 for runs that start at the same time: two of them may find the same port free, and one
    would fail.
    """
    import dask

    port = dask.config.get(_PORT_SETTING, _DASHBOARD_PORT)
    if not isinstance(port, int) or not 0 <= port < 2**16:
        raise InputError(
            f"the Dask setting {_PORT_SETTING} must be a port such as {_DASHBOARD_PORT}, or 0 for "
            f"any free port, got {port!r}"
        )
    return port


def monitoring_enabled() -> bool:
    """Return whether runs publish events to the dashboard, notebooks and `events.jsonl`."""
    import dask

    value = dask.config.get(_MONITORING_SETTING, True)
    return str(value).lower() not in ("0", "false", "no", "off")
