"""Tables in text files, by the index of their lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.text import open_text, open_text_values

X = np.random.default_rng(0).normal(size=(10_000, 2)).round(3)


def test_rows_around_the_places_that_the_index_knows(tmp_path: Path) -> None:
    """More lines than lie between two of them, with and without a header."""
    for header in ("", "a,b"):
        path = tmp_path / f"x{header}.csv"
        np.savetxt(path, X, delimiter=",", header=header, comments="", fmt="%.3f")
        source = open_text(str(path))
        assert source.shape == X.shape
        for start in (0, 1, 4094, 4095, 4096, 4097, 8191, 9_999):
            for stop in {start, start + 1, min(start + 4097, 10_000), 10_000}:
                np.testing.assert_array_equal(source.read(start, stop), X[start:stop])


def test_the_index_is_made_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scrlm_dask.sources import text

    np.savetxt(tmp_path / "x.csv", X, delimiter=",", fmt="%.3f")
    whole = open_text(str(tmp_path / "x.csv")).index
    text._index_of.cache_clear()
    monkeypatch.setattr(text, "_PIECE", 7)
    np.savetxt(tmp_path / "y.csv", X[:300], delimiter=",", fmt="%.3f")
    monkeypatch.setattr(text, "STEP", 4)
    source = open_text(str(tmp_path / "y.csv"))
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
def test_how_people_write_tables(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.txt").write_text(text, newline="")
    source = open_text(str(tmp_path / "x.txt"))
    assert source.read(0, source.n_rows).tolist() == [[1, 2], [3, 4]]


def test_one_column_and_nan(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1\nnan\n-inf\n")
    np.testing.assert_array_equal(
        open_text(str(tmp_path / "x.csv")).read(0, 3), [[1], [np.nan], [-np.inf]]
    )


def test_columns_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('file,a,b,class\n"x, y.jpg",1,2,7\nz.jpg,3,4,8\n')
    path = str(tmp_path / "x.csv")
    with pytest.raises(InputError, match=r"column 'file' of .* holds 'x, y.jpg' in row 0"):
        open_text(path)
    source = open_text(path, (), ("file", "class"))
    assert source.read(0, 2).tolist() == [[1, 2], [3, 4]]
    assert source.column("file").read(0, 2).tolist() == ["x, y.jpg", "z.jpg"]
    assert source.column("class").read(1, 2).tolist() == [8]
    assert open_text(path, ("b",)).read(0, 2).tolist() == [[2], [4]]


def test_ids_with_zeros_in_front_stay_texts(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_text("007\n008\n")
    assert open_text_values(str(tmp_path / "ids.txt"), 2).read(0, 2).tolist() == ["007", "008"]
    (tmp_path / "ids.csv").write_text("7\nx\n")
    with pytest.raises(StoreError, match=r"row 1 of .* holds 'x'"):
        open_text_values(str(tmp_path / "ids.csv"), 2).read(0, 2)


@pytest.mark.parametrize("content", [b"", b"\n\n \n"])
def test_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(StoreError, match="is empty"):
        open_text(str(tmp_path / "x.csv"))


def test_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"1,2\n\xff\xfe\n")
    with pytest.raises(StoreError, match=r"x\.csv is no text"):
        open_text(str(tmp_path / "x.csv"))


def test_the_names_that_pandas_gives_are_a_header(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    x = np.arange(6.0).reshape(2, 3)
    pandas.DataFrame(x).to_csv(path, index=False)
    np.testing.assert_array_equal(open_text(str(path)).read(0, 2), x)
    pandas.DataFrame({"name": ["a", "b"], 0: x[:, 0], 1: x[:, 1]}).to_csv(path, index=False)
    source = open_text(str(path), apart=["name"])
    np.testing.assert_array_equal(source.read(0, 2), x[:, :2])


@pytest.mark.parametrize("first", ["0.1,NA,0.3", "a,0.5,0.6"])
def test_a_row_with_something_else_in_it_is_no_header(tmp_path: Path, first: str) -> None:
    (tmp_path / "x.csv").write_text(f"{first}\n1,2,3\n")
    with pytest.raises(InputError, match="row 0, which is no number"):
        open_text(str(tmp_path / "x.csv"))


@pytest.mark.parametrize("other", ["02139", "1_000", "--5", "²", str(2**63)])
def test_ids_that_would_become_others_are_refused(tmp_path: Path, other: str) -> None:
    (tmp_path / "ids.csv").write_text(f"10001\n{other}\n")
    source = open_text_values(str(tmp_path / "ids.csv"), 2)
    with pytest.raises(StoreError, match=r"row 1 of .*where row 0 holds an integer"):
        source.read(0, 2)
    (tmp_path / "ids.csv").write_text(f"{other}\n10001\n")  # as the first it makes all of them text
    found = open_text_values(str(tmp_path / "ids.csv"), 2).read(0, 2)
    assert found.tolist() == [other, "10001"]


def test_nothing_at_all_is_nan_and_an_index_is_no_feature(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    frame = pandas.DataFrame({"a": [1.0, np.nan, 3.0], "b": [np.nan, 5.0, 6.0]})
    frame.to_csv(path, index=False)
    np.testing.assert_array_equal(open_text(str(path)).read(0, 3), frame.to_numpy())
    frame.assign(name=["x,y", "z", '"']).to_csv(path, index=False)
    found = open_text(str(path), apart=["name"]).read(0, 3)
    np.testing.assert_array_equal(found, frame.to_numpy())
    frame.to_csv(path)
    with pytest.raises(InputError, match=r"first column of .* has no name.*index=False"):
        open_text(str(path))
    np.testing.assert_array_equal(open_text(str(path), asked=["a"]).read(0, 3), frame[["a"]])
