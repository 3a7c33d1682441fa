"""Progress in a real Jupyter kernel: a run updates one display below its cell."""

from __future__ import annotations

import asyncio
import queue
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel
from jupyter_core.utils import ensure_event_loop

from scrlm_dask.monitoring.listeners import in_notebook

CODE = """
import warnings; warnings.simplefilter("error")
import numpy as np, scrlm_dask
rng = np.random.default_rng(0)
x = (rng.normal(0, 9, (3, 4))[rng.integers(0, 3, 300)] + rng.normal(size=(300, 4)))
model = scrlm_dask.KMeans(n_clusters=3, init="random", max_iter=4, block_rows=50).fit(x)
model
"""


@pytest.fixture(scope="module")
def messages() -> Iterator[list[dict[str, Any]]]:
    """Run the cell, and return the messages of the kernel to the notebook."""
    manager, client = start_new_kernel(kernel_name="python3")
    received = []
    try:
        request = client.execute(CODE)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                message = client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            received.append(message)
            if message["content"].get("execution_state") == "idle":
                break
        yield received
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        ensure_event_loop().close()  # jupyter_client does not close it
        asyncio.set_event_loop(None)


def of_kind(messages: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [message["content"] for message in messages if message["msg_type"] == kind]


def test_progress_is_one_updated_display(messages: list[dict[str, Any]]) -> None:
    assert of_kind(messages, "error") == []
    (first,) = of_kind(messages, "display_data")
    later = of_kind(messages, "update_display_data")
    assert len(later) >= 4
    assert {m["transient"]["display_id"] for m in later} == {first["transient"]["display_id"]}
    last = later[-1]["data"]["text/html"]
    assert "kmeans-step" in last
    assert "done" in last
    assert "inertia" in last
    assert last != first["data"]["text/html"]


def test_estimator_shows_its_result(messages: list[dict[str, Any]]) -> None:
    (shown,) = of_kind(messages, "execute_result")
    html = shown["data"]["text/html"]
    assert "KMeans" in html
    assert re.search(r"<b>[^<]*\bk-means</b>", html)
    assert re.search(r"\b300\b[^<]*\b4 features", html)
    assert shown["data"]["text/plain"].startswith("KMeans(")


def test_no_notebook_outside_of_jupyter() -> None:
    assert not in_notebook()
