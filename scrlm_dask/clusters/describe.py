"""What was connected to, for people: workers, threads, memory, and the way to the dashboard."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Any
from urllib.parse import urlsplit

from scrlm_dask.clusters.options import Connection
from scrlm_dask.clusters.security import is_loopback

_LOGIN = "SSH_CONNECTION"  # whose address, port, our address, port: set by sshd


def count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def describe_connection(description: str, client: Any, nthreads: int | None = None) -> Connection:
    """The client's cluster as it is now; `nthreads` of a worker where not all of them compute."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    limits = [worker["memory_limit"] for worker in workers]
    return Connection(
        description,
        client.dashboard_link,
        sum(nthreads or worker["nthreads"] for worker in workers),
        sum(limits) if all(limits) else None,
        tunnel(client.dashboard_link),
    )


def tunnel(dashboard: str | None) -> str | None:
    """The ssh command, for the machine where the user's browser is, that leads to the dashboard.

    None where the browser probably is on this machine and the dashboard, too.
    """
    if dashboard is None:
        return None
    page = urlsplit(dashboard)
    login = os.environ.get(_LOGIN, "").split()
    if page.hostname is None or (is_loopback(page.hostname) and not login):
        return None
    port = page.port or (443 if page.scheme == "https" else 80)
    here = login[2] if len(login) == 4 else socket.gethostname()
    return f"ssh -N -L {port}:{page.hostname}:{port} {_user()}@{here}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as containers have
        return "USER"
