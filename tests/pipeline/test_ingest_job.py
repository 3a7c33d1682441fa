"""Settings of an ingest that are rejected, and notes about columns."""

from __future__ import annotations

from typing import Any

import pytest

from scrlm_dask.errors import InputError
from scrlm_dask.pipeline.ingest_job import IngestConfig


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"dtype": "float64"}, "float64"),
        ({"limit": 0}, "limit is 0"),
        ({"nan": "zero"}, "'zero'"),
        ({"chunk_bytes": 0}, "0 bytes"),
    ],
)
def test_config(config: Any, word: str) -> None:
    with pytest.raises(InputError, match=word):
        IngestConfig(**config)
