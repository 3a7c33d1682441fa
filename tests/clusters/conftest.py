"""Fixtures: no scheduler address in the environment, a short timeout, and a port not in use."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from scrlm_dask.clusters import remote as remote_module


@pytest.fixture(autouse=True)
def no_scheduler_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "_CONNECT_TIMEOUT", 0.5)


@pytest.fixture(scope="session")
def closed_port() -> Iterator[int]:
    """Reserve a port on which no process listens, for as long as the tests run."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
