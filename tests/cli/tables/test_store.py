"""Description of a features store as JSON and as tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scrlm_cli.tables.store import damage_content, rows_content, store_content, store_tables

from scrlm_dask.passes.digests import DamagedBlock
from scrlm_dask.pipeline.ingest import ingest
from scrlm_dask.pipeline.inspect import inspect_rows, inspect_store
from scrlm_dask.pipeline.stores import write_features


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five rows of two features in three blocks; one row is a duplicate."""
    path = tmp_path_factory.mktemp("store") / "x.zarr"
    rows = np.array([[0.0, 3], [4, 3], [0, 3], [8, 3], [6, 3]], np.float32)
    labels = np.array([0, 1, 0, 1, -1])
    write_features(rows, path, labels=labels, chunk_bytes=16)
    return path


def table(content: dict[str, Any]) -> dict[str, str]:
    """Return the rows of all tables as keys, like those of the JSON output, and values."""
    console = Console(width=200, file=None)
    with console.capture() as shown:
        console.print(store_tables(content))
    cells = [line.split("│") for line in shown.get().splitlines() if line.count("│") == 3]
    return {name.strip().replace(" ", "_"): value.strip() for _, name, value, _ in cells}


def numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[\d.]+", text)]


def test_request_is_short(tmp_path: Path) -> None:
    """The manifest also has a digest of the times of every source file."""
    paths = [tmp_path / f"{number}.npy" for number in range(3)]
    for path in paths:
        np.save(path, np.eye(2, dtype=np.float32))
    ingest(paths, tmp_path / "x.zarr")
    stored = inspect_store(tmp_path / "x.zarr")
    assert stored.manifest is not None
    assert stored.manifest.request["modified"].keys() == set(map(str, paths))
    assert store_content(stored)["manifest"]["request"].keys() == {"ingest", "source"}


def test_description_without_rows(store: Path) -> None:
    content = store_content(inspect_store(store))
    expected = {
        **{"store": str(store), "rows": 5, "features": 2, "dtype": "float32", "bytes": 40},
        **{"chunks": [2, 2], "shards": None, "n_files": 3, "n_missing_chunks": 0},
        **{"checksums": True, "complete": True, "missing_blocks": [], "labels": "int32"},
    }
    assert {name: content[name] for name in expected} == expected
    assert (content["manifest"]["blocks"], content["manifest"]["block_rows"]) == (3, 2)
    shown = table(content)
    assert shown["rows"] == "5"
    assert shown["size"].startswith("40 B, ")
    assert shown["chunks"] == "2 x 2"
    assert shown["complete"] == "yes"
    assert numbers(shown["manifest"]) == [3, 2]  # blocks and rows per block
    assert (shown["labels"], shown["ids"]) == ("int32", "none")


@pytest.mark.parametrize(
    ("blocks", "chunks", "facts"),
    [([1, 2], 2, ("2 blocks", "(1, 2)")), ([], 4, ("4 chunks",)), ([], 0, ())],
)
def test_missing_parts_are_counted(
    store: Path, blocks: list[int], chunks: int, facts: tuple[str, ...]
) -> None:
    content = store_content(inspect_store(store))
    missing = {"complete": False, "missing_blocks": blocks, "n_missing_chunks": chunks}
    shown = table({**content, **missing})["complete"]
    assert shown.startswith("no")
    assert all(fact in shown for fact in facts)


def test_statistics_of_the_rows(store: Path) -> None:
    report = inspect_rows(store, preprocess="none", rho=1.0)
    content = rows_content(report)
    assert (content["usable_rows"], content["nan_rows"], content["duplicate_rows"]) == (5, 0, 1)
    assert content["largest_duplicate_groups"] == [{"first_row": 0, "rows": 2}]
    assert content["constant_features"] == [1]
    assert (content["classes"], content["outlier_share"]) == (2, 0.2)
    assert content["mean_range"] == pytest.approx([3.0, 3.6])  # 18 / 5
    assert (content["norms"]["min"], content["norms"]["mean"]) == pytest.approx(
        (3.0, (3 + 5 + 3 + 73**0.5 + 45**0.5) / 5)
    )
    assert content["distances"]["pairs"] == 10
    shown = table({**store_content(inspect_store(store)), "statistics": content})
    assert shown["usable_rows"] == "5"
    assert numbers(shown["duplicates"]) == [1, 0, 2]  # one duplicate: row 0 occurs twice
    assert shown["constant_features"] == "1 (1)"
    assert shown["outlier_share"] == "20.00 %"
    assert numbers(shown["means"]) == [3, 3.6]


def test_damaged_blocks(store: Path) -> None:
    description = inspect_store(store)
    damaged = (DamagedBlock(1, 2, 3, "its bytes differ"),)
    content = damage_content(damaged, description)
    assert content["damaged_blocks"] == [
        {"block": 1, "first_row": 2, "last_row": 3, "reason": "its bytes differ"}
    ]
    shown = table({**store_content(description), "verification": content})
    assert shown["damaged_blocks"] == "1"
    assert numbers(shown["block_1"]) == [2, 3]
    assert shown["block_1"].endswith("its bytes differ")
    assert any("digests" in value and "checksums" in value for value in shown.values())
