"""Preload of the workers of a local cluster."""

from __future__ import annotations

import signal


def dask_setup(worker: object) -> None:
    """Leave Ctrl-C to the client: it reaches the whole process group, and the client ends all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
