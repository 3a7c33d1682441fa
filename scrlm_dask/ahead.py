"""Reading ahead: threads of a worker beyond those that compute.

Dask runs as many tasks at a worker as it has threads, and the task of a block reads it and then
computes. Where a worker has a thread more than may compute at once, that one reads the next block.
"""

from __future__ import annotations

from scrlm_dask.errors import InputError

SETTING = "scrlm.read-ahead"


def read_ahead(default: int = 0) -> int:
    """How many threads of each worker read ahead, as Dask's configuration has it here."""
    import dask

    value = dask.config.get(SETTING, default)
    if not isinstance(value, int) or value < 0:
        raise InputError(
            f"Dask's setting {SETTING} is {value!r}; give the number of threads that read ahead, "
            "such as 1, or 0 for none"
        )
    return int(value)


def computing_threads(n_threads: int, ahead: int) -> int:
    """How many threads are left to compute; one always is."""
    return max(1, n_threads - ahead)
