"""Settings read from Dask's configuration: read-ahead threads, worker timeout, monitoring."""

from __future__ import annotations

from scrlm_dask.errors import InputError

READ_AHEAD_SETTING = "scrlm.read-ahead"


def read_ahead(default: int = 0) -> int:
    """How many threads of each worker read ahead, as Dask's configuration has it here."""
    import dask

    value = dask.config.get(READ_AHEAD_SETTING, default)
    if not isinstance(value, int) or value < 0:
        raise InputError(
            f"Dask's setting {READ_AHEAD_SETTING} is {value!r}; give the number of threads that "
            "read ahead, such as 1, or 0 for none"
        )
    return int(value)


def computing_threads(n_threads: int, ahead: int) -> int:
    """How many threads are left to compute; one always is."""
    return max(1, n_threads - ahead)


# Dask's setting, or DASK_SCRLM__WAIT_WORKERS
WORKERS_SETTING = "scrlm.wait-workers"


WAIT_LONGER = "--wait-workers (or DASK_SCRLM__WAIT_WORKERS)"  # few commands have the option


def workers_timeout(default: str = "25s") -> float:
    """Seconds, as Dask's configuration has it here."""
    import dask
    from dask.utils import parse_timedelta

    value = dask.config.get(WORKERS_SETTING, default)
    try:
        return float(parse_timedelta(value, default="s"))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise InputError(
            f"Dask's setting {WORKERS_SETTING} is {value!r}; give a time such as 90s or 2h"
        ) from error


MONITORING_SETTING = (
    "scrlm.watch"  # of Dask, or DASK_SCRLM__WATCH=0: nobody watches, nothing is noted down
)


def monitoring_enabled() -> bool:
    """Whether runs of this process are to be watched."""
    import dask

    return str(dask.config.get(MONITORING_SETTING, True)).lower() not in ("0", "false", "no", "off")
