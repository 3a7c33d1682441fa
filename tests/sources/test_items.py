"""Items to encode: supported files, and rejected input."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scrlm_dask.errors import DamagedItemError, InputError, StoreError
from scrlm_dask.sources.items import load_text, open_items


def test_parquet_streams_row_groups_and_null_is_empty(tmp_path: Path) -> None:
    texts = [f"t{i}" for i in range(2500)]
    texts[7] = None  # type: ignore[call-overload]
    pq.write_table(pa.table({"n": range(2500), "t": texts}), tmp_path / "x.parquet")
    items = open_items(str(tmp_path / "x.parquet"), "t")
    texts[7] = ""
    assert items.source.read(0, 2500).tolist() == texts
    pieces = [piece.tolist() for piece in items.source.batches(1000, 2300, 600)]
    assert pieces == [texts[1000:1600], texts[1600:2200], texts[2200:2300]]


def test_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,text\n1,a\n")
    with pytest.raises(InputError, match=f"(?=.*{path})(?=.*text, id)(?=.*--column)"):
        open_items(str(path), None)
    with pytest.raises(InputError, match=f"(?=.*{path})(?=.*column 'txt')(?=.*text, id)"):
        open_items(str(path), "txt")
    (tmp_path / "x.txt").write_text("a\n")
    with pytest.raises(InputError, match=rf"(?=.*--column)(?=.*{tmp_path}/x\.txt)"):
        open_items(str(tmp_path / "x.txt"), "text")
    pq.write_table(pa.table({"n": [1], "t": ["a"]}), tmp_path / "x.parquet")
    facts = rf"(?=.*column 'n')(?=.*{tmp_path}/x\.parquet)(?=.*\bint64\b)"
    with pytest.raises(InputError, match=facts):
        open_items(str(tmp_path / "x.parquet"), "n")


def test_inputs(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=rf"{tmp_path}/gone\.txt"):
        open_items(str(tmp_path / "gone.txt"), None)
    (tmp_path / "x.docx").write_bytes(b"x")
    with pytest.raises(InputError, match=rf"(?=.*{tmp_path}/x\.docx)(?=.*\.jsonl)(?=.*folder)"):
        open_items(str(tmp_path / "x.docx"), None)
    with pytest.raises(InputError, match=r"s3://bucket/x\.txt"):
        open_items("s3://bucket/x.txt", None)


def test_empty_text_is_rejected() -> None:
    assert load_text(" a ") == " a "
    with pytest.raises(DamagedItemError):
        load_text(" \n")
