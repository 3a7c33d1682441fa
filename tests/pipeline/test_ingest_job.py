"""Rejected settings and sources of an ingest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import expecting

from scrlm_dask.errors import InputError, UnusableRowsError
from scrlm_dask.events import PhaseFinished
from scrlm_dask.pipeline.ingest import ingest
from scrlm_dask.pipeline.ingest_job import IngestConfig


@pytest.mark.parametrize(
    ("config", "pattern"),
    [
        ({"dtype": "float64"}, expecting("float64", "float16", "float32")),
        ({"limit": 0}, expecting("limit", 0, 1)),
        ({"nan": "zero"}, expecting("nan", "'zero'", "error", "drop", "keep")),
        ({"chunk_bytes": 0}, r"(?=.*chunk)(?=.*\b0\b)"),
    ],
)
def test_config(config: Any, pattern: str) -> None:
    with pytest.raises(InputError, match=pattern):
        IngestConfig(**config)


def test_source_that_changes_during_the_ingest(tmp_path: Path) -> None:
    source, out = tmp_path / "x.npy", tmp_path / "out"
    np.save(source, np.ones((20, 3), np.float32))

    def write(event: Any) -> None:
        if isinstance(event, PhaseFinished):
            np.save(source, np.full((20, 3), 2, np.float32))

    with pytest.raises(UnusableRowsError, match=expecting(source)):
        ingest(source, out, listener=write)
    assert not out.exists()
