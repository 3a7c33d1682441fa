"""`scrlm ingest` of Parquet files with wrong metadata."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import parquet_footer as footer
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from parquet_footer import Field

ROWS = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
GROUP_ROWS = 9  # row groups have 9, 9 and 6 rows
LISTS = ("fixed lists", "lists")
KINDS = (*LISTS, "columns")
HUGE = (10**6, 10**9, 10**15, 2**62)
Change = Callable[[Field], None]
_FIRST = (footer.ROW_GROUPS, 0)
_CHUNK = (*_FIRST, footer.COLUMNS, 0, footer.COLUMN)


def _write(path: Path, kind: str, rows: list[Any] | None = None, **options: Any) -> None:
    """Write the rows; a row of None is null."""
    lists = ROWS.tolist() if rows is None else rows
    if kind == "columns":
        columns = zip(*([None] * 4 if row is None else row for row in lists), strict=True)
        table = pa.table({f"f{i}": pa.array(c, pa.float32()) for i, c in enumerate(columns)})
    else:
        item = pa.list_(pa.float32(), 4) if kind == "fixed lists" else pa.list_(pa.float32())
        table = pa.table({"emb": pa.array(lists, item)})
    pq.write_table(table, path, row_group_size=GROUP_ROWS, **options)


def _set(value: Any, *path: int) -> Change:
    def change(metadata: Field) -> None:
        metadata.at(*path).value = value

    return change


def _both_rows(n_rows: int, group: int = 0, before: int = GROUP_ROWS) -> Change:
    """Change the number of rows of a row group and, by the same difference, of the file."""

    def change(metadata: Field) -> None:
        metadata.at(footer.ROW_GROUPS, group, footer.GROUP_ROWS).value = n_rows
        metadata.at(footer.NUM_ROWS).value = len(ROWS) + n_rows - before

    return change


def _all_numbers(n_rows: int) -> Change:
    """Change all numbers of rows and values, so that the footer does not contradict itself."""

    def change(metadata: Field) -> None:
        _both_rows(n_rows)(metadata)
        chunks = metadata.at(*_FIRST, footer.COLUMNS).value
        for chunk in chunks:
            number = chunk.at(footer.COLUMN, footer.NUM_VALUES)
            number.value = number.value // GROUP_ROWS * n_rows

    return change


def _repeat_chunk(metadata: Field) -> None:
    """Let the first column of row group 1 point to its pages of row group 0."""
    groups = metadata.at(footer.ROW_GROUPS).value
    groups[1].at(footer.COLUMNS).value[0] = groups[0].at(footer.COLUMNS).value[0]


def _no_nulls(metadata: Field) -> None:
    for chunk in metadata.at(*_FIRST, footer.COLUMNS).value:
        chunk.at(footer.COLUMN, footer.STATISTICS, footer.NULL_COUNT).value = 0


def _schema(schema: pa.Schema) -> Change:
    """Replace Arrow's schema in the metadata."""

    def change(metadata: Field) -> None:
        pairs = metadata.at(footer.KEY_VALUES).value
        stored = next(pair for pair in pairs if pair.at(footer.KEY).value == b"ARROW:schema")
        stored.at(footer.VALUE).value = base64.b64encode(schema.serialize())

    return change


def _lists(item: pa.DataType, length: int = -1) -> Change:
    return _schema(pa.schema({"emb": pa.list_(item, length)}))


def _columns(kind: pa.DataType) -> Change:
    return _schema(pa.schema({f"f{i}": kind for i in range(4)}))


NUMBERS = (0, 3, 8, 10, 24, -1, *HUGE)
WRONG: dict[str, Change] = {
    **{f"file: {n} rows": _set(n, footer.NUM_ROWS) for n in (0, 3, 23, 25, -1, *HUGE)},
    **{f"group: {n} rows": _set(n, *_FIRST, footer.GROUP_ROWS) for n in NUMBERS},
    **{f"group and file: {n} rows": _both_rows(n) for n in NUMBERS},
    # Fewer rows in all numbers are not detected: such a footer does not contradict the pages.
    **{f"all numbers: {n} rows": _all_numbers(n) for n in (10, 24, -1, 10**6)},
    "last group: 3 rows": _both_rows(3, group=2, before=6),
    **{f"{n} values": _set(n, *_CHUNK, footer.NUM_VALUES) for n in (0, 3, 8, 10, 35, -1, *HUGE)},
    "a group less": lambda metadata: metadata.at(footer.ROW_GROUPS).value.pop(),
    "no groups": lambda metadata: metadata.at(footer.ROW_GROUPS).value.clear(),
    "a group twice": lambda metadata: metadata.at(footer.ROW_GROUPS).value.append(
        metadata.at(*_FIRST)
    ),
    "pages of another group": _repeat_chunk,
    **{
        f"pages from byte {n}": _set(n, *_CHUNK, footer.PAGE_OFFSET)
        for n in (0, 3, 20, 10**4, 2**31, 2**40, 2**62, -1)
    },
    **{
        f"pages of {n} bytes": _set(n, *_CHUNK, footer.COMPRESSED_SIZE)
        for n in (0, 1, 30, 10**4, 2**31, 2**62, -1)
    },
}
# These schemas contradict the pages, or pyarrow ignores them: no row may be wrong.
SCHEMAS: dict[str, Change] = {
    **{f"length {n}": _lists(pa.float32(), n) for n in (0, 1, 2, 3, 8, 2**31 - 1)},
    "doubles": _lists(pa.float64(), 4),
    "integers": _lists(pa.int32(), 4),
    "items of text": _lists(pa.string()),
    "large lists": _schema(pa.schema({"emb": pa.large_list(pa.float32())})),
    "texts": _schema(pa.schema({"emb": pa.string()})),
    "other columns": _schema(pa.schema({"a": pa.int8(), "b": pa.string()})),
    "columns of doubles": _columns(pa.float64()),
    "columns of integers": _columns(pa.int32()),
    "columns of times": _columns(pa.timestamp("s")),
    "columns of codes": _columns(pa.dictionary(pa.int32(), pa.float32())),
    "columns in another order": _schema(pa.schema({f"f{3 - i}": pa.float32() for i in range(4)})),
}


@pytest.fixture
def ingest(invoke: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Ingest a file; return the rows, or None if the command rejected the file."""

    def run(path: Path, *options: Any) -> np.ndarray | None:
        out = tmp_path / "out.zarr"
        shutil.rmtree(out, ignore_errors=True)
        outcome = invoke("ingest", path, out, *options)
        if outcome.code:
            outcome.rejected(str(path))
            assert not out.exists()
            return None
        return np.asarray(zarr.open_array(out / "features", mode="r")[:])

    return run


def _is_right(rows: np.ndarray | None) -> bool:
    return rows is not None and np.array_equal(rows, ROWS)


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False, "data_page_version": "2.0"}])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_wrong_numbers(
    ingest: Callable[..., Any], tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    """Wrong numbers and positions are rejected, or do not change the rows."""
    path, accepted = tmp_path / "x.parquet", []
    for name, change in WRONG.items():
        _write(path, kind, **options)
        footer.change_footer(path, change)
        rows = ingest(path)
        assert rows is None or _is_right(rows), name
        accepted += [name] * (rows is not None)
    # pyarrow does not use the position of data pages if there is a dictionary before them, and may
    # decode more values of lists than the metadata claims.
    harmless = ("pages from byte", "10 values", "35 values")
    assert all(name.startswith(harmless) for name in accepted), accepted


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_contradict_each_other(
    ingest: Callable[..., Any], tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "x.parquet"
    changes = (_set(23, footer.NUM_ROWS), _both_rows(8), _both_rows(-1), _repeat_chunk)
    for change in (*changes, _all_numbers(10)):
        _write(path, kind)
        footer.change_footer(path, change)
        assert ingest(path) is None


@pytest.mark.parametrize("kind", KINDS)
def test_metadata_that_pyarrow_rejects_by_ending_the_process(
    scrlm: Callable[..., Any], tmp_path: Path, kind: str
) -> None:
    """A histogram of the wrong length, in the last row group."""
    path = tmp_path / "x.parquet"
    _write(path, kind)

    def change(metadata: Field) -> None:
        chunk = metadata.at(footer.ROW_GROUPS, 2, footer.COLUMNS, 0, footer.COLUMN)
        long = footer.Items(6, [Field(6, 1)] * 7)
        chunk.at(footer.SIZES).value[footer.REPETITIONS] = Field(9, long)

    footer.change_footer(path, change)
    outcome = scrlm("ingest", path, tmp_path / "out.zarr", "--nworkers", 0)
    outcome.rejected(str(path), "7")


@pytest.mark.parametrize("kind", KINDS)
def test_null_count(ingest: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    """A null is rejected, or read as NaN, if the statistics claim that there are no nulls."""
    path, rows = tmp_path / "x.parquet", [*ROWS[:2].tolist(), None, *ROWS[3:].tolist()]
    _write(path, kind, rows)
    footer.change_footer(path, _no_nulls)
    assert ingest(path) is None
    kept = ingest(path, "--nan", "drop")
    np.testing.assert_array_equal(kept, np.delete(ROWS, 2, axis=0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_wrong_schema(ingest: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.parquet"
    for name, change in SCHEMAS.items():
        _write(path, kind)
        footer.change_footer(path, change)
        rows = ingest(path)
        assert rows is None or _is_right(rows), name


@pytest.mark.parametrize("n_rows", [10**9, 10**15])
@pytest.mark.slow
def test_memory_of_a_huge_number_of_rows(
    measured: Callable[..., Any], tmp_path: Path, n_rows: int
) -> None:
    path, out = tmp_path / "x.parquet", tmp_path / "out.zarr"
    _write(path, "fixed lists")
    footer.change_footer(path, _all_numbers(n_rows))
    outcome = measured("ingest", path, out, "--nworkers", 0)
    # A store of this size may not fit on the disk.
    outcome.rejected(str(path if outcome.code == 3 else out), code=3 if outcome.code == 3 else 1)
    assert outcome.peak_bytes < 500e6
    assert not out.exists()
