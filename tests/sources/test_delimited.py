"""Text files: tables of numbers and free texts, read by an index of lines or records."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.delimited import open_csv, open_texts, open_value_lines
from scrlm_dask.sources.items import Items, open_items

X = np.random.default_rng(0).normal(size=(10_000, 2)).round(3)


def test_rows_around_indexed_positions(tmp_path: Path) -> None:
    """The file has more lines than the step of the index, with and without a header."""
    for header in ("", "a,b"):
        path = tmp_path / f"x{header}.csv"
        np.savetxt(path, X, delimiter=",", header=header, comments="", fmt="%.3f")
        source = open_csv(str(path))
        assert source.shape == X.shape
        for start in (0, 1, 4094, 4095, 4096, 4097, 8191, 9_999):
            for stop in {start, start + 1, min(start + 4097, 10_000), 10_000}:
                np.testing.assert_array_equal(source.read(start, stop), X[start:stop])


def test_index_is_built_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scrlm_dask.sources import delimited

    np.savetxt(tmp_path / "x.csv", X, delimiter=",", fmt="%.3f")
    whole = open_csv(str(tmp_path / "x.csv")).index
    monkeypatch.setattr(delimited, "_PIECE_BYTES", 7)
    np.savetxt(tmp_path / "y.csv", X[:300], delimiter=",", fmt="%.3f")
    monkeypatch.setattr(delimited, "_INDEX_STEP", 4)
    source = open_csv(str(tmp_path / "y.csv"))
    np.testing.assert_array_equal(source.read(17, 291), X[17:291])
    assert whole.n_lines == 10_000


@pytest.mark.parametrize(
    "text",
    [
        "1,2\n3,4",
        "1,2\r\n3,4\r\n",
        "1\t2\n3\t4\n\n\n",
        "1;2\n3;4\n",
        "1 2\n3  4\n",
        "  1 2\n3 4  \n",
        "\ufeff1,2\n3,4\n",
        '"1","2"\n"3","4"\n',
        "a,b\n1e0,+2.0\n3,.4e1\n",
    ],
)
def test_common_ways_to_write_tables(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.txt").write_text(text, newline="")
    source = open_csv(str(tmp_path / "x.txt"))
    assert source.read(0, source.n_rows).tolist() == [[1, 2], [3, 4]]


def test_one_column_and_nan(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1\nnan\n-inf\n")
    np.testing.assert_array_equal(
        open_csv(str(tmp_path / "x.csv")).read(0, 3), [[1], [np.nan], [-np.inf]]
    )


def test_columns_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('file,a,b,class\n"x, y.jpg",1,2,7\nz.jpg,3,4,8\n')
    path = str(tmp_path / "x.csv")
    facts = rf"(?=.*column 'file')(?=.*{path})(?=.*'x, y\.jpg')(?=.*\brow 0\b)"
    with pytest.raises(InputError, match=facts):
        open_csv(path)
    source = open_csv(path, (), ("file", "class"))
    assert source.read(0, 2).tolist() == [[1, 2], [3, 4]]
    assert source.column("file").read(0, 2).tolist() == ["x, y.jpg", "z.jpg"]
    assert source.column("class").read(1, 2).tolist() == [8]
    assert open_csv(path, ("b",)).read(0, 2).tolist() == [[2], [4]]


def test_ids_with_leading_zeros_stay_texts(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("007\n008\n")
    assert open_value_lines(str(tmp_path / "ids.txt"), 2).read(0, 2).tolist() == ["007", "008"]
    (tmp_path / "ids.csv").write_text("7\nx\n")
    with pytest.raises(StoreError, match=rf"(?=.*\brow 1\b)(?=.*{tmp_path}/ids\.csv)(?=.*'x')"):
        open_value_lines(str(tmp_path / "ids.csv"), 2).read(0, 2)


@pytest.mark.parametrize("content", [b"", b"\n\n \n"])
def test_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(StoreError, match=rf"{tmp_path}/x\.csv") as caught:
        open_csv(str(tmp_path / "x.csv"))
    assert caught.value.__cause__ is None  # not an error of decoding or parsing


def test_binary_content(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"1,2\n\xff\xfe\n")
    with pytest.raises(StoreError, match=rf"(?=.*{tmp_path}/x\.csv)(?=.*--format)") as caught:
        open_csv(str(tmp_path / "x.csv"))
    assert isinstance(caught.value.__cause__, UnicodeDecodeError)


def test_default_names_of_pandas_are_a_header(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    x = np.arange(6.0).reshape(2, 3)
    pandas.DataFrame(x).to_csv(path, index=False)
    np.testing.assert_array_equal(open_csv(str(path)).read(0, 2), x)
    pandas.DataFrame({"name": ["a", "b"], 0: x[:, 0], 1: x[:, 1]}).to_csv(path, index=False)
    source = open_csv(str(path), apart=["name"])
    np.testing.assert_array_equal(source.read(0, 2), x[:, :2])


@pytest.mark.parametrize(("first", "text"), [("0.1,NA,0.3", "NA"), ("a,0.5,0.6", "a")])
def test_row_with_numbers_is_not_a_header(tmp_path: Path, first: str, text: str) -> None:
    (tmp_path / "x.csv").write_text(f"{first}\n1,2,3\n")
    with pytest.raises(InputError, match=rf"(?=.*'{text}')(?=.*\brow 0\b)"):
        open_csv(str(tmp_path / "x.csv"))


@pytest.mark.parametrize("other", ["02139", "1_000", "--5", "²", str(2**63)])
def test_ids_that_int_would_change_are_rejected(tmp_path: Path, other: str) -> None:
    (tmp_path / "ids.csv").write_text(f"10001\n{other}\n")
    source = open_value_lines(str(tmp_path / "ids.csv"), 2)
    facts = rf"(?=.*\brow 1\b)(?=.*{tmp_path}/ids\.csv)(?=.*'{re.escape(other)}')"
    with pytest.raises(StoreError, match=facts):
        source.read(0, 2)
    (tmp_path / "ids.csv").write_text(f"{other}\n10001\n")  # the first id makes all of them texts
    found = open_value_lines(str(tmp_path / "ids.csv"), 2).read(0, 2)
    assert found.tolist() == [other, "10001"]


def test_empty_field_is_nan_and_unnamed_index_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    frame = pandas.DataFrame({"a": [1.0, np.nan, 3.0], "b": [np.nan, 5.0, 6.0]})
    frame.to_csv(path, index=False)
    np.testing.assert_array_equal(open_csv(str(path)).read(0, 3), frame.to_numpy())
    frame.assign(name=["x,y", "z", '"']).to_csv(path, index=False)
    found = open_csv(str(path), apart=["name"]).read(0, 3)
    np.testing.assert_array_equal(found, frame.to_numpy())
    frame.to_csv(path)
    with pytest.raises(InputError, match=rf"(?=.*{path})(?=.*--exclude '')(?=.*index=False)"):
        open_csv(str(path))
    np.testing.assert_array_equal(open_csv(str(path), asked=["a"]).read(0, 3), frame[["a"]])


TEXTS = ["one, two", 'said "no"', "first\nsecond", "Ünïcode ✓", "", "-1"]


def values(items: Items) -> list[str]:
    return list(items.source.read(0, items.source.n_rows).tolist())


def write_csv(path: Path, rows: list[list[Any]], delimiter: str = ",") -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


class TestLines:
    def test_one_text_per_line(self, tmp_path: Path) -> None:
        path = tmp_path / "x.txt"
        path.write_bytes(b"\xef\xbb\xbfone, two\r\n  three\n\nfour\n\n\n")
        items = open_items(str(path), None)
        assert items.kind == "texts"
        # empty lines at the end are dropped; the caller decides about others
        assert values(items) == ["one, two", "  three", "", "four"]
        assert items.ids.read(0, 4).tolist() == [0, 1, 2, 3]
        assert items.source.locate(2) == f"line 3 of {path}"

    def test_other_alphabets_and_invalid_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "x.txt"
        path.write_bytes("naïve\n猫\n".encode() + b"caf\xe9\n")
        source = open_texts(str(path))
        assert source.read(0, 2).tolist() == ["naïve", "猫"]
        with pytest.raises(StoreError, match=rf"(?=.*{path})(?=.*UTF-8)"):
            source.read(0, 3)


class TestTables:
    @pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
    def test_fields_with_line_breaks(self, tmp_path: Path, suffix: str, delimiter: str) -> None:
        rows = [["n", "text"], *([i, text] for i, text in enumerate(TEXTS))]
        path = write_csv(tmp_path / f"x{suffix}", rows, delimiter)
        items = open_items(str(path), "text")
        assert values(items) == TEXTS
        assert items.source.columns == ("text",)
        assert items.source.column("n").read(1, 4).tolist() == [1, 2, 3]
        assert items.source.column("n").dtype == np.int64

    def test_json_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "x.jsonl"
        rows = [{"text": text, "id": f"r{i}", "y": i} for i, text in enumerate(TEXTS)]
        rows += [{"text": None, "id": "null", "y": 6}, {"id": "gone", "y": 7}]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        items = open_items(str(path), "text")
        assert values(items) == [*TEXTS, "", ""]
        assert items.source.column("id").read(5, 8).tolist() == ["r5", "null", "gone"]
        assert items.source.column("y").dtype == np.int64

    @given(
        texts=st.lists(st.text("ab,\"\n\r é'", max_size=6), min_size=1, max_size=20),
        start=st.integers(0, 20),
        rows=st.integers(1, 7),
    )
    def test_any_texts_are_read_back(
        self, tmp_path_factory: pytest.TempPathFactory, texts: list[str], start: int, rows: int
    ) -> None:
        path = tmp_path_factory.mktemp("any") / "x.csv"
        write_csv(path, [["i", "t"], *([i, text] for i, text in enumerate(texts))])
        source = open_texts(str(path), "t")
        start = min(start, len(texts))
        pieces = list(source.batches(start, len(texts), rows))
        assert [text for piece in pieces for text in piece.tolist()] == texts[start:]
        assert all(len(piece) == rows for piece in pieces[:-1])

    def test_rows_far_into_the_file_are_read(self, tmp_path: Path) -> None:
        rows = [["i", "t"], *([i, f"{i}\n" * (i % 3 + 1)] for i in range(9000))]
        source = open_texts(str(write_csv(tmp_path / "x.csv", rows)), "t")
        for row in (0, 4094, 4095, 4096, 8191, 8999):
            assert source.read(row, row + 1).tolist() == [rows[row + 1][1]]


class TestRejected:
    def test_invalid_tables(self, tmp_path: Path) -> None:
        path = tmp_path / "x.csv"
        path.write_text('id,text\n1,"never closed\n')
        with pytest.raises(StoreError, match=rf"(?=.*{path})(?=.*CSV)"):
            open_texts(str(path), "text")
        path.write_text("id,text\n1,a\n2,b,c\n")
        with pytest.raises(StoreError, match=rf"(?=.*\brow 1\b)(?=.*{path})(?=.*\b3\b)(?=.*\b2\b)"):
            open_texts(str(path), "text").read(0, 2)
        path.write_text("id,text\n")
        with pytest.raises(StoreError, match=f"(?=.*{path})(?=.*header)"):
            open_texts(str(path), "text")

    def test_invalid_json(self, tmp_path: Path) -> None:
        path = tmp_path / "x.jsonl"
        path.write_text('{"t": "a"}\n{"t": ["b"]}\n[1]\n{"t": \n')
        source = open_texts(str(path), "t")
        for row, fact in ((1, "'b'"), (2, r"\[1\]"), (3, "JSON")):
            with pytest.raises(
                StoreError, match=rf"(?=.*\bline {row + 1}\b)(?=.*{path})(?=.*{fact})"
            ):
                source.read(row, row + 1)

    def test_json_that_cannot_be_a_text(self, tmp_path: Path) -> None:
        path = tmp_path / "x.jsonl"
        deep = "[" * 100_000 + "]" * 100_000
        path.write_text(f'{{"t": "a"}}\n{{"t": "\\ud800"}}\n{{"t": "b", "u": {deep}}}\n')
        source = open_texts(str(path), "t")
        with pytest.raises(StoreError, match=rf"(?=.*\bline 2\b)(?=.*{path})(?=.*ud800)"):
            source.read(1, 2)
        with pytest.raises(StoreError, match=rf"(?=.*\bline 3\b)(?=.*{path})") as caught:
            source.read(2, 3)
        assert isinstance(caught.value.__cause__, RecursionError)

    def test_text_after_integers(self, tmp_path: Path) -> None:
        rows = [["t", "y"], *(["a", i] for i in range(1200)), ["a", "owl"]]
        source = open_texts(str(write_csv(tmp_path / "x.csv", rows)), "t").column("y")
        with pytest.raises(StoreError, match=r"(?=.*\brow 1200\b)(?=.*column 'y')(?=.*'owl')"):
            source.read(1190, 1201)


def test_long_field_next_to_the_features(tmp_path: Path) -> None:
    previous = csv.field_size_limit(131_072)
    try:
        path = tmp_path / "x.csv"
        path.write_text(f'a,text,b\n1,"{"y," * 100_000}",2\n3,"z",4\n')
        source = open_csv(str(path), apart=["text"])
        assert source.read(0, 2).tolist() == [[1, 2], [3, 4]]
    finally:
        csv.field_size_limit(previous)


class TestLongFields:
    """Messages name the row of a field that is too long, and do not repeat the whole field."""

    LONG = "x" * 100_000

    @pytest.fixture
    def small_limit(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        from scrlm_dask.sources import delimited

        previous = csv.field_size_limit()
        monkeypatch.setattr(delimited, "_MAX_FIELD", 1000)
        yield
        csv.field_size_limit(previous)

    @pytest.mark.usefixtures("small_limit")
    def test_over_the_limit(self, tmp_path: Path) -> None:
        path = tmp_path / "x.csv"
        path.write_text(f'a,b,c\n1,2,"u"\n4,5,"{self.LONG}"\n')
        source = open_csv(str(path), apart=["c"])
        named = rf"(?=.*\brow 1\b)(?=.*{path})(?=.*\b1000\b)"
        with pytest.raises(StoreError, match=named):
            source.read(0, 2)
        with pytest.raises(StoreError, match=named):
            source.column("c").read(0, 2)
        for row in (f'4,5,"{self.LONG}"', f'"{self.LONG}",b,c'):
            path.write_text(f"{row}\n1,2,3\n")
            with pytest.raises(StoreError, match=rf"(?=.*{path})(?=.*\b1000\b)"):
                open_csv(str(path))

    def test_carriage_return_in_the_middle_of_a_line(self, tmp_path: Path) -> None:
        path = tmp_path / "x.csv"
        path.write_bytes(b'a,b\n1,2\n3\r4,"5"\n')
        with pytest.raises(StoreError, match=rf"(?=.*\brow 1\b)(?=.*{path})"):
            open_csv(str(path)).read(0, 2)

    def check(self, error: pytest.ExceptionInfo[Exception]) -> None:
        assert "x" * 50 in str(error.value)
        assert len(str(error.value)) < 1500

    def test_messages_are_short(self, tmp_path: Path) -> None:
        path = str(tmp_path / "x.csv")
        header = f"a,b,{self.LONG}"
        Path(path).write_text(f"{header}\n1,2,3\n1,{self.LONG},3\n")
        with pytest.raises(StoreError) as caught:
            open_csv(path, asked=["b"]).read(0, 2)
        self.check(caught)
        with pytest.raises(StoreError) as caught:
            open_csv(path).column("b").read(0, 2)
        self.check(caught)
        with pytest.raises(InputError) as caught:
            open_csv(path, asked=["d"])
        self.check(caught)
        Path(path).write_text(f"{header}\n1,2,{self.LONG}\n")
        with pytest.raises(InputError) as caught:
            open_csv(path)
        assert len(str(caught.value)) < 1500

    def test_long_digits_are_not_an_integer(self, tmp_path: Path) -> None:
        """Python raises ValueError for integers of more than 4300 digits."""
        path = tmp_path / "ids.txt"
        path.write_text(f"{'7' * 5000}\n1\n")
        assert open_value_lines(str(path), 2).read(0, 2).tolist() == ["7" * 5000, "1"]
        path.write_text(f"1\n{'7' * 5000}\n")
        with pytest.raises(StoreError, match="row 1"):
            open_value_lines(str(path), 2).read(0, 2)
