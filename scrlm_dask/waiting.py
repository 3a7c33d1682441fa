"""How long to wait for the first worker of a cluster."""

from __future__ import annotations

from scrlm_dask.errors import InputError

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
