"""Addresses without a scheduler, and an environment without an address."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from scrlm_dask.clusters import remote as remote_module


@pytest.fixture(autouse=True)
def no_address_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "_CONNECT_TIMEOUT", 0.5)


@pytest.fixture(scope="session")
def deaf_port() -> Iterator[int]:
    """Where nobody listens, and nobody else can begin to: it is taken as long as tests run."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
