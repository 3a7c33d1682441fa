"""In a real kernel of Jupyter: a run keeps a picture of itself up to date below its cell."""

from __future__ import annotations

import asyncio
import queue
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
def told() -> Iterator[list[dict[str, Any]]]:
    """What the kernel sent to the notebook while it ran the cell."""
    manager, client = start_new_kernel(kernel_name="python3")
    messages = []
    try:
        asked = client.execute(CODE)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                message = client.get_iopub_msg(timeout=1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            messages.append(message)
            if message["content"].get("execution_state") == "idle":
                break
        yield messages
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        ensure_event_loop().close()  # which nobody else would
        asyncio.set_event_loop(None)


def of_kind(messages: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [message["content"] for message in messages if message["msg_type"] == kind]


def test_progress_is_one_picture_that_changes(told: list[dict[str, Any]]) -> None:
    assert of_kind(told, "error") == []
    (first,) = of_kind(told, "display_data")
    later = of_kind(told, "update_display_data")
    assert len(later) >= 4
    assert {m["transient"]["display_id"] for m in later} == {first["transient"]["display_id"]}
    last = later[-1]["data"]["text/html"]
    assert "kmeans-step" in last
    assert "done, " in last
    assert "inertia" in last
    assert last != first["data"]["text/html"]


def test_the_estimator_shows_what_it_found(told: list[dict[str, Any]]) -> None:
    (shown,) = of_kind(told, "execute_result")
    html = shown["data"]["text/html"]
    assert "KMeans" in html
    assert "Run of k-means" in html
    assert "300 of 4 features" in html
    assert shown["data"]["text/plain"].startswith("KMeans(")


def test_elsewhere_there_is_no_cell() -> None:
    assert not in_notebook()
