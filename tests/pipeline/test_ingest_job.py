"""Rejected settings of an ingest."""

from __future__ import annotations

from typing import Any

import pytest
from messages import expecting

from scrlm_dask.errors import InputError
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
