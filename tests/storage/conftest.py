"""Locations for tests: a local folder, and a URL of fsspec's in-memory file system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from scrlm_dask.storage.locations import Location, locate


@pytest.fixture
def memory() -> Iterator[str]:
    """Return a unique URL of the in-memory file system, and remove its files afterwards."""
    root = f"memory://scrlm-{uuid4().hex}"
    yield root
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists(root):
        filesystem.rm(root, recursive=True)


@pytest.fixture(params=["disk", "memory"])
def root(request: pytest.FixtureRequest, memory: str, tmp_path: Path) -> Location:
    return locate(tmp_path if request.param == "disk" else memory)
