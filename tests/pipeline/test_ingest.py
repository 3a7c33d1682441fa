"""From files to a features store: which rows it holds, what it says of itself, how it goes on."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import dask
import h5py
import numpy as np
import pandas
import pyarrow as pa
import pytest
import zarr
from backends import backend
from formats import WRITERS, columns_of, write_csv
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import Note
from scrlm_dask.pipeline.ingest import ingest, prepare_ingest
from scrlm_dask.pipeline.ingest_job import IngestConfig
from scrlm_dask.sources.registry import SourceOptions
from scrlm_dask.storage.arrays import read_rows
from scrlm_dask.storage.feature_store import block_arrays, open_features_store
from scrlm_dask.storage.manifest import check_digest, missing_blocks, read_manifest
from scrlm_dask.storage.store_info import describe_store

P = 4
ROW_BYTES = 4 * P


def drawn(rows: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, P)).astype(dtype)


def ignore(event: Any) -> None:
    """Notes are looked at where they matter."""


def run(paths: Any, out: Path, options: SourceOptions | None = None, **config: Any) -> Any:
    with dask.config.set(scheduler="sync"):
        return ingest(
            paths,
            out,
            IngestConfig(**{"chunk_bytes": 10 * ROW_BYTES, **config}),
            options=options,
            overwrite=True,
            listener=ignore,
        )


def stored(out: Path, name: str = "features") -> np.ndarray:
    return zarr.open_group(out, mode="r")[name][:]


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_becomes_a_store(name: str, tmp_path: Path) -> None:
    write, dtypes = WRITERS[name]
    for dtype in dtypes:
        (tmp_path / dtype).mkdir()
        x = (drawn(37) * 40).astype(dtype)
        paths, options = write(tmp_path / dtype, x)
        found = run(paths, tmp_path / "out", options)
        kind = "float16" if dtype == "float16" else "float32"
        n_blocks = 2 if dtype == "float16" else 4
        assert (found.n_rows, found.n_features, found.dtype) == (37, P, kind)
        assert found.n_blocks == n_blocks
        assert stored(tmp_path / "out").dtype == kind
        np.testing.assert_array_equal(stored(tmp_path / "out"), x.astype(kind))
        assert open_features_store(tmp_path / "out").shape == x.shape


def test_the_manifest_says_what_was_asked_and_proves_what_is_there(tmp_path: Path) -> None:
    paths, _ = WRITERS["shards"][0](tmp_path, drawn(37))
    np.save(tmp_path / "labels.npy", np.arange(37))
    run(paths, tmp_path / "out", labels=str(tmp_path / "labels.npy"))
    url = str(tmp_path / "out")
    manifest = read_manifest(url)
    assert manifest is not None
    assert (manifest.n_rows, manifest.n_features, manifest.block_rows) == (37, P, 10)
    names = [Path(file.path).name for file in manifest.sources]
    assert names == [*(f"emb_{i}.npy" for i in range(11)), "labels.npy"]
    assert manifest.sources[3].bytes == Path(manifest.sources[3].path).stat().st_size
    assert manifest.request["ingest"]["nan"] == "error"
    assert missing_blocks(url) == []
    for block in range(manifest.n_blocks):
        rows = manifest.rows_of(block)
        check_digest(url, block, *block_arrays(url, rows.start, rows.stop))


@pytest.mark.slow
@settings(max_examples=30)
@given(
    rows=st.integers(1, 60),
    bad=st.sets(st.integers(0, 59)),
    block_rows=st.integers(1, 12),
    limit=st.one_of(st.none(), st.integers(1, 70)),
    shuffle=st.booleans(),
    seed=st.integers(0, 3),
    group_rows=st.one_of(st.none(), st.integers(1, 30)),
)
@example(30, set(range(10, 20)), 10, None, False, 0, None)  # all of a chunk
@example(30, {0, 9, 10, 19, 20, 29}, 10, None, False, 0, 25)  # the borders of chunks
def test_dropped_limited_and_shuffled_rows_are_what_numpy_says(
    rows: int,
    bad: set[int],
    block_rows: int,
    limit: int | None,
    shuffle: bool,
    seed: int,
    group_rows: int | None,
) -> None:
    """`group_rows`: from Parquet, whose row groups are read as spans of several blocks."""
    import pyarrow.parquet as pq

    x = drawn(rows)
    x[[row for row in bad if row < rows], 1] = np.inf
    taken = np.arange(min(rows, limit or rows))
    kept = taken[np.isfinite(x[taken]).all(axis=1)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = {"limit": limit, "shuffle": shuffle, "seed": seed, "nan": "drop"}
        if group_rows is None:
            np.save(folder / "x.npy", x)
            np.save(folder / "ids.npy", np.array([f"{i}.jpg" for i in range(rows)]))
            np.save(folder / "labels.npy", np.arange(rows) % 5)
            paths = [folder / "x.npy"]
            config |= {"labels": str(folder / "labels.npy"), "ids": str(folder / "ids.npy")}
        else:
            pq.write_table(columns_of(x, "list"), folder / "x.parquet", row_group_size=group_rows)
            paths = [folder / "x.parquet"]
            config |= {"labels": "label", "ids": "name"}
        out, chunk = folder / "out", block_rows * ROW_BYTES
        if len(kept) == 0:
            with pytest.raises(InputError, match="no row is left"):
                run(paths, out, chunk_bytes=chunk, **config)
            assert not out.exists()
            return
        found = run(paths, out, chunk_bytes=chunk, **config)
        assert (found.n_rows, found.n_dropped) == (len(kept), len(taken) - len(kept))
        order = np.array([int(str(i).removesuffix(".jpg")) for i in stored(out, "ids")])
        np.testing.assert_array_equal(np.sort(order), kept)
        if not shuffle:
            np.testing.assert_array_equal(order, kept)
        np.testing.assert_array_equal(stored(out), x[order])
        np.testing.assert_array_equal(stored(out, "labels"), order % 5)
        dropped = np.setdiff1d(taken, kept)
        if len(dropped):
            np.testing.assert_array_equal(stored(out, "dropped"), dropped)
        assert not (out / ".shuffle").exists()


def test_a_shuffle_depends_on_the_seed_and_not_on_the_chunks(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", drawn(100))
    found = []
    for name, seed, rows in (("a", 1, 7), ("b", 1, 40), ("c", 2, 7)):
        run([tmp_path / "x.npy"], tmp_path / name, shuffle=True, seed=seed, chunk_bytes=rows * 16)
        found.append(stored(tmp_path / name))
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])
    assert (found[0] == drawn(100)).all(axis=1).mean() < 0.1


@pytest.mark.slow
@pytest.mark.cluster
def test_every_backend_writes_the_same_bytes(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", drawn(300))
    found = {}
    for name in ("one thread", "three threads", "two workers of two threads"):
        out = tmp_path / name
        config = IngestConfig(chunk_bytes=10 * ROW_BYTES, shuffle=True, nan="drop")
        with backend(name):
            ingest([tmp_path / "x.npy"], out, config, listener=ignore)
        found[name] = {
            str(file.relative_to(out)): file.read_bytes()
            for file in out.rglob("*")
            if file.is_file()
        }
    first = found["one thread"]
    assert len(first) == 3 + 2 * 30
    assert all(files == first for files in found.values())


@pytest.mark.parametrize("mode", ["error", "keep", "drop"])
def test_values_too_large_for_the_stored_dtype(tmp_path: Path, mode: Any) -> None:
    x = drawn(30, "float64")
    x[17, 2] = 1e6
    np.save(tmp_path / "x.npy", x)
    config = {"dtype": "float16", "nan": mode}
    if mode == "error":
        with pytest.raises(InputError, match=r"row 17 of .*x\.npy \(block 0\).*for float16"):
            run([tmp_path / "x.npy"], tmp_path / "out", **config)
        assert not (tmp_path / "out").exists()
        return
    run([tmp_path / "x.npy"], tmp_path / "out", **config)
    found = stored(tmp_path / "out")
    assert len(found) == (29 if mode == "drop" else 30)
    assert np.isinf(found).sum() == (mode == "keep")


def test_a_row_is_named_by_the_file_that_holds_it(tmp_path: Path) -> None:
    x = drawn(44)
    x[30] = np.nan
    paths, _ = WRITERS["shards"][0](tmp_path, x)
    for shuffle in (False, True):
        with pytest.raises(InputError, match=r"row 2 of .*emb_7\.npy \(block 3\) holds NaN"):
            run(paths, tmp_path / "out", shuffle=shuffle)


class TestLabelsAndIds:
    def test_labels_of_text_files_with_and_without_a_header(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", drawn(12))
        for header in ("", "label\n"):
            text = header + "".join(f"{i - 1}\n" for i in range(12))
            (tmp_path / "labels.csv").write_text(text)
            run([tmp_path / "x.npy"], tmp_path / "out", labels=str(tmp_path / "labels.csv"))
            assert stored(tmp_path / "out", "labels").tolist() == list(range(-1, 11))
            assert stored(tmp_path / "out", "labels").dtype == np.int32

    def test_ids_with_spaces_and_commas(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", drawn(3))
        (tmp_path / "ids.txt").write_text("a b.jpg\nc,d.jpg\nübung.jpg\n")
        run([tmp_path / "x.npy"], tmp_path / "out", ids=str(tmp_path / "ids.txt"))
        assert stored(tmp_path / "out", "ids").tolist() == ["a b.jpg", "c,d.jpg", "übung.jpg"]

    def test_columns_of_a_csv_file_are_no_features(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_text('"a,1",class,b\n1.5,3,2\n2.5,-1,4\n')
        run([tmp_path / "x.csv"], tmp_path / "out", labels="class")
        assert stored(tmp_path / "out").tolist() == [[1.5, 2], [2.5, 4]]
        assert stored(tmp_path / "out", "labels").tolist() == [3, -1]

    def test_labels_and_ids_of_a_features_store(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", drawn(12))
        np.save(tmp_path / "n.npy", np.arange(12, dtype=np.uint8))
        np.save(tmp_path / "i.npy", np.array([b"a"] * 11 + ["ü".encode()]))
        names = {"labels": str(tmp_path / "n.npy"), "ids": str(tmp_path / "i.npy")}
        run([tmp_path / "x.npy"], tmp_path / "a", **names)
        run([tmp_path / "a"], tmp_path / "b", labels="labels", ids="ids", chunk_bytes=5 * ROW_BYTES)
        assert stored(tmp_path / "b", "labels").tolist() == list(range(12))
        assert stored(tmp_path / "b", "ids").tolist() == ["a"] * 11 + ["ü"]
        run([tmp_path / "x.npy"], tmp_path / "c", labels=str(tmp_path / "a"))
        assert stored(tmp_path / "c", "labels").tolist() == list(range(12))

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            (np.arange(11), ["11 rows", "12", "same rows"]),
            (np.ones(12), ["float64", "labels are integers"]),
            (np.arange(24).reshape(12, 2), ["(12, 2)", "one a row"]),
            (
                np.where(np.arange(12) == 7, 2**31, 0),
                ["row 7", "labels.npy", "2147483648", "32 bits"],
            ),
        ],
        ids=["fewer rows", "floats", "a table", "too large"],
    )
    def test_labels_that_are_none(self, tmp_path: Path, values: Any, words: list[str]) -> None:
        np.save(tmp_path / "x.npy", drawn(12))
        np.save(tmp_path / "labels.npy", values)
        with pytest.raises(InputError) as caught:
            run([tmp_path / "x.npy"], tmp_path / "out", labels=str(tmp_path / "labels.npy"))
        for word in [str(tmp_path), *words]:
            assert word in str(caught.value)
        assert not (tmp_path / "out").exists()

    def test_ids_too_large_for_64_bits(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", drawn(3))
        np.save(tmp_path / "ids.npy", np.array([1, 2**63, 2], np.uint64))
        with pytest.raises(InputError, match=r"row 1 of .*ids\.npy is the id 9223372036854775808"):
            run([tmp_path / "x.npy"], tmp_path / "out", ids=str(tmp_path / "ids.npy"))

    def test_a_column_that_is_not_there(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", drawn(3))
        with pytest.raises(InputError, match=r"x\.npy has no columns .* no 'label'; give a file"):
            run([tmp_path / "x.npy"], tmp_path / "out", labels="label")
        paths, _ = write_csv(tmp_path, drawn(3))
        with pytest.raises(InputError, match=r"no column 'label' \(it has f0, f1, f2, f3\)"):
            run(paths, tmp_path / "out", labels="label")


TEXTS = ["owl", "cat", "-1", "dog", "cat", "-1", "übung, x", "cat"] * 5
NAMES = ["cat", "dog", "owl", "übung, x"]
NUMBERS = [-1 if text == "-1" else NAMES.index(text) for text in TEXTS]


def with_texts(kind: str, folder: Path) -> tuple[Path, str]:
    """40 rows with labels that are texts: the source, and what --labels is given."""
    x, path = drawn(40), folder / f"x.{kind}"
    frame = pandas.DataFrame({"kind": TEXTS, **{f"f{i}": x[:, i] for i in range(P)}})
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path, index=False, row_group_size=7)
    elif kind == "arrow":
        table = pa.Table.from_pandas(frame.astype({"kind": "category"}), preserve_index=False)
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=9)
    elif kind == "h5":
        with h5py.File(path, "w") as file:
            file["x"], file["kind"] = x, TEXTS
    else:
        path = folder / "x.npy"
        np.save(path, x)
        np.save(folder / "kind.npy", np.array(TEXTS))
        return path, str(folder / "kind.npy")
    return path, "kind"


class TestLabelsThatAreTexts:
    @pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "h5", "npy"])
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_they_are_numbered_in_their_order(
        self, tmp_path: Path, kind: str, shuffle: bool
    ) -> None:
        path, labels = with_texts(kind, tmp_path)
        done = run([path], tmp_path / "out", labels=labels, shuffle=shuffle)
        assert done.label_names == tuple(NAMES)
        assert zarr.open_group(tmp_path / "out", mode="r").attrs["label_names"] == NAMES
        found, rows = stored(tmp_path / "out", "labels"), stored(tmp_path / "out")
        assert found.dtype == np.int32
        order = [int(np.flatnonzero((drawn(40) == row).all(axis=1))[0]) for row in rows]
        assert (order == list(range(40))) != shuffle
        assert found.tolist() == [NUMBERS[row] for row in order]
        check_digest(tmp_path / "out", 0, *block_arrays(tmp_path / "out", 0, 10))
        assert describe_store(tmp_path / "out").label_names == tuple(NAMES)

    def test_only_those_of_the_rows_that_are_taken(self, tmp_path: Path) -> None:
        path, labels = with_texts("csv", tmp_path)
        assert run([path], tmp_path / "out", labels=labels, limit=2).label_names == ("cat", "owl")
        assert stored(tmp_path / "out", "labels").tolist() == [1, 0]

    def test_outliers_may_come_first(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_text("kind,a,b\n-1,1,2\n-1,3,4\nowl,5,6\ncat,7,8\n-1,9,9\n")
        done = run([tmp_path / "x.csv"], tmp_path / "out", labels="kind")
        assert done.label_names == ("cat", "owl")
        assert stored(tmp_path / "out", "labels").tolist() == [-1, -1, 1, 0, -1]

    @pytest.mark.slow
    @pytest.mark.cluster
    @pytest.mark.parametrize("name", ["three threads", "two workers of two threads"])
    def test_by_several_workers(self, tmp_path: Path, name: str) -> None:
        path, labels = with_texts("parquet", tmp_path)
        with backend(name):
            ingest([path], tmp_path / "out", IngestConfig(labels=labels, chunk_bytes=80))
        assert stored(tmp_path / "out", "labels").tolist() == NUMBERS

    def test_it_is_said_once(self, tmp_path: Path) -> None:
        path, labels = with_texts("csv", tmp_path)
        heard: list[Any] = []
        ingest([path], tmp_path / "out", IngestConfig(labels=labels), listener=heard.append)
        notes = [event.text for event in heard if isinstance(event, Note)]
        assert len(notes) == 2
        assert "first line is taken as names" in notes[0]
        assert "4 names, sorted, are numbered from 0 on" in notes[1]

    def test_what_was_stopped_goes_on_with_the_same_numbers(self, tmp_path: Path) -> None:
        path, labels = with_texts("csv", tmp_path)
        config = IngestConfig(labels=labels, chunk_bytes=10 * ROW_BYTES)
        with dask.config.set(scheduler="sync"):
            with pytest.raises(StoppedError):
                ingest([path], tmp_path / "out", config, listener=stop_after(2))
            heard: list[Any] = []
            done = ingest([path], tmp_path / "out", config, listener=heard.append)
        assert done.kept_blocks == 2
        assert "names" not in [e.name for e in heard if type(e).__name__ == "PhaseStarted"]
        assert stored(tmp_path / "out", "labels").tolist() == NUMBERS

    @pytest.mark.parametrize("text", ["", " ", "nan", "NaN", "-1.0", "-01"])
    def test_what_may_be_an_outlier_is_no_class(self, tmp_path: Path, text: str) -> None:
        np.save(tmp_path / "x.npy", drawn(4))
        np.save(tmp_path / "y.npy", np.array(["b", "a", text, "b"]))
        words = rf"row 2 of .*y\.npy has the label {text!r}, .*write -1 for outliers"
        with pytest.raises(InputError, match=words):
            run([tmp_path / "x.npy"], tmp_path / "out", labels=str(tmp_path / "y.npy"))
        assert not (tmp_path / "out").exists()

    def test_names_of_rows_are_no_classes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("scrlm_dask.sources.label_encoding._MOST_NAMES", 20)
        np.save(tmp_path / "x.npy", drawn(40))
        np.save(tmp_path / "y.npy", np.array([f"{i}.jpg" for i in range(40)]))
        with pytest.raises(InputError, match=r"more than 20 different texts, .*--ids"):
            run([tmp_path / "x.npy"], tmp_path / "out", labels=str(tmp_path / "y.npy"))


def test_the_columns_that_features_come_from(tmp_path: Path) -> None:
    path, labels = with_texts("csv", tmp_path)
    assert run([path], tmp_path / "out", labels=labels).columns == ("f0", "f1", "f2", "f3")
    path, labels = with_texts("parquet", tmp_path)
    options = SourceOptions(exclude=("f1", "f2"))
    assert run([path], tmp_path / "out", options, labels=labels).columns == ("f0", "f3")
    np.testing.assert_array_equal(stored(tmp_path / "out"), drawn(40)[:, [0, 3]])
    np.save(tmp_path / "x.npy", drawn(3))
    assert run([tmp_path / "x.npy"], tmp_path / "out").columns == ()


@pytest.mark.parametrize("headers", [4, 3])
def test_a_header_of_many_files_is_said_once(tmp_path: Path, headers: int) -> None:
    for i in range(4):
        names = "a,b,k,n" if i < headers else ""
        values = np.column_stack([np.arange(8).reshape(4, 2), np.arange(4), np.arange(4)])
        np.savetxt(tmp_path / f"{i}.csv", values, "%d", ",", header=names, comments="")
    heard: list[Any] = []
    config = IngestConfig(labels="k", ids="n") if headers == 4 else IngestConfig()
    ingest([tmp_path / "*.csv"], tmp_path / "out", config, listener=heard.append)
    said = [event.text for event in heard if isinstance(event, Note)]
    some = "" if headers == 4 else " (of 3 of the 4 files)"
    line = "the first line is taken as names of columns"
    assert said == [f"{tmp_path}/0.csv and 3 more: {line}{some}"]


class StoppedError(Exception):
    """What a test raises in the middle of an ingest."""


def stop_after(blocks: int) -> Any:
    left = [blocks]

    def listener(event: Any) -> None:
        if type(event).__name__ == "BlockDone" and event.name == "ingest":
            left[0] -= 1
            if left[0] == 0:
                raise StoppedError

    return listener


class TestGoingOn:
    def begin(self, tmp_path: Path, **config: Any) -> None:
        """An ingest of 10 blocks that is stopped after 4."""
        np.save(tmp_path / "x.npy", drawn(100))
        config = IngestConfig(**{"chunk_bytes": 10 * ROW_BYTES, **config})
        with dask.config.set(scheduler="sync"), pytest.raises(StoppedError):
            ingest([tmp_path / "x.npy"], tmp_path / "out", config, listener=stop_after(4))

    @pytest.mark.parametrize("config", [{}, {"shuffle": True}, {"nan": "drop"}])
    def test_blocks_that_are_done_are_kept(self, tmp_path: Path, config: Any) -> None:
        self.begin(tmp_path, **config)
        done = {f: f.stat().st_mtime_ns for f in (tmp_path / "out/features/c").rglob("*")}
        assert len(missing_blocks(str(tmp_path / "out"))) == 6
        with pytest.raises(StoreError, match="6 of 10 blocks are missing"):
            open_features_store(tmp_path / "out")
        notes: list[Any] = []
        with dask.config.set(scheduler="sync"):
            found = ingest(
                [tmp_path / "x.npy"],
                tmp_path / "out",
                IngestConfig(chunk_bytes=10 * ROW_BYTES, **config),
                listener=notes.append,
            )
        assert found.kept_blocks == 4
        assert Note("going on: 4 of 10 blocks are done") in notes
        files = [f for f in done if f.is_file()]
        assert len(files) == 4
        assert all(f.stat().st_mtime_ns == done[f] for f in files)
        whole = run([tmp_path / "x.npy"], tmp_path / "whole", **config)
        assert whole.kept_blocks == 0
        np.testing.assert_array_equal(stored(tmp_path / "out"), stored(tmp_path / "whole"))
        assert open_features_store(tmp_path / "out").shape == (100, P)

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            ({"seed": 3}, ["ingest seed was 0 and is 3"]),
            ({"nan": "keep"}, ["ingest nan was error and is keep"]),
            ({"dtype": "float16"}, ["stored dtype was float32 and is float16"]),
            ({"chunk_bytes": 20 * ROW_BYTES}, ["rows of a block was 10 and is 20"]),
            ({"limit": 50}, ["ingest limit was None and is 50"]),
        ],
    )
    def test_another_request_is_refused(
        self, tmp_path: Path, config: Any, words: list[str]
    ) -> None:
        self.begin(tmp_path)
        asked = IngestConfig(**{"chunk_bytes": 10 * ROW_BYTES, **config})
        for refuse in (prepare_ingest, ingest):
            with pytest.raises(StoreError) as caught:
                refuse([tmp_path / "x.npy"], tmp_path / "out", asked)
            for word in [str(tmp_path / "out"), "--overwrite", *words]:
                assert word in str(caught.value)
        assert len(missing_blocks(str(tmp_path / "out"))) == 6
        run([tmp_path / "x.npy"], tmp_path / "out", **config)  # overwrites

    def test_overwrite_begins_anew(self, tmp_path: Path) -> None:
        self.begin(tmp_path)
        config = IngestConfig(chunk_bytes=10 * ROW_BYTES)
        asked = ([tmp_path / "x.npy"], tmp_path / "out", config)
        assert ingest(*asked, overwrite=True).kept_blocks == 0

    @pytest.mark.parametrize("change", ["longer", "rewritten", "another file"])
    def test_another_source_is_refused(self, tmp_path: Path, change: str) -> None:
        self.begin(tmp_path)
        path = tmp_path / "x.npy"
        match change:
            case "longer":
                np.save(path, drawn(110))
                words = [str(path), "had 1728 bytes and has 1888"]
            case "rewritten":
                np.save(path, drawn(100) + 1)
                words = ["modified was"]
            case _:
                path = Path(shutil.copy2(path, tmp_path / "y.npy"))
                words = [f"{path} was not there", f"{tmp_path / 'x.npy'} was there"]
        with pytest.raises(StoreError) as caught:
            prepare_ingest([path], tmp_path / "out", IngestConfig(chunk_bytes=10 * ROW_BYTES))
        for word in words:
            assert word in str(caught.value)

    def test_rows_that_were_to_be_dropped_are_remembered(self, tmp_path: Path) -> None:
        x = drawn(100)
        x[[3, 55]] = np.nan
        np.save(tmp_path / "x.npy", x)
        config = IngestConfig(chunk_bytes=10 * ROW_BYTES, nan="drop")
        phases: list[str] = []

        def listener(event: Any) -> None:
            if type(event).__name__ == "PhaseStarted":
                phases.append(event.name)

        with dask.config.set(scheduler="sync"):
            with pytest.raises(StoppedError):
                ingest([tmp_path / "x.npy"], tmp_path / "out", config, listener=stop_after(4))
            ingest([tmp_path / "x.npy"], tmp_path / "out", config, listener=listener)
        assert phases == ["ingest"]
        np.testing.assert_array_equal(stored(tmp_path / "out"), np.delete(x, [3, 55], axis=0))

    def test_a_finished_store_is_not_written_again(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", drawn(20))
        run([tmp_path / "x.npy"], tmp_path / "out")
        with pytest.raises(StoreError, match=r"exists already; .* --overwrite"):
            ingest([tmp_path / "x.npy"], tmp_path / "out")

    def test_a_store_without_a_manifest_was_never_begun(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", drawn(20))
        attributes = {"scrlm": "features", "complete": False}
        zarr.create_group(tmp_path / "out", attributes=attributes)
        prepare_ingest([tmp_path / "x.npy"], tmp_path / "out", IngestConfig())
        ingest([tmp_path / "x.npy"], tmp_path / "out", IngestConfig(), listener=ignore)
        assert open_features_store(tmp_path / "out").shape == (20, P)


def test_what_another_hand_wrote_is_left_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", drawn(20))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("1 2\n3 4\n")
    with pytest.raises(StoreError, match="left alone"):
        run([tmp_path / "x.npy"], tmp_path / "out")
    with pytest.raises(StoreError, match="inside the output"):
        run([tmp_path / "out" / "thesis.txt"], tmp_path / "out", SourceOptions(format="csv"))
    assert (tmp_path / "out" / "thesis.txt").read_text() == "1 2\n3 4\n"


def test_tall_chunks_of_the_source_come_with_a_note(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "x", shape=(100, P), chunks=(100, 1), dtype="float32")
    array[...] = drawn(100)
    notes: list[Any] = []
    config = IngestConfig(chunk_bytes=10 * ROW_BYTES)
    ingest([tmp_path / "x"], tmp_path / "out", config, listener=notes.append)
    text = next(event.text for event in notes if isinstance(event, Note))
    assert "chunks of 100 rows: each is read about 10 times" in text
    out = open_features_store(tmp_path / "out")
    np.testing.assert_array_equal(read_rows(out, 0, 100, "it"), drawn(100))


def test_a_deflated_archive_says_what_it_costs(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", drawn(100))
    notes: list[Any] = []
    config = IngestConfig(chunk_bytes=10 * ROW_BYTES)
    ingest([tmp_path / "x.npz"], tmp_path / "out", config, listener=notes.append)
    assert any(isinstance(e, Note) and "deflated" in e.text for e in notes)
    # one task reads it all, and still writes block by block and says so
    blocks = [e for e in notes if type(e).__name__ == "BlockDone"]
    assert [(e.rows, e.bytes) for e in blocks] == [(10, 10 * ROW_BYTES)] * 10
    np.testing.assert_array_equal(stored(tmp_path / "out"), drawn(100))


def test_rows_of_a_damaged_file_are_not_gone_on_from(tmp_path: Path) -> None:
    """Restored with its old time and size, the file would look as it did."""
    x = drawn(100)
    np.savez(tmp_path / "x.npz", x)
    good = (tmp_path / "x.npz").read_bytes()
    place = good.index(x[50].tobytes())
    (tmp_path / "x.npz").write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
    stat = (tmp_path / "x.npz").stat()
    with pytest.raises(StoreError, match=r"x\.npz"):
        ingest([tmp_path / "x.npz"], tmp_path / "out")
    (tmp_path / "x.npz").write_bytes(good)
    os.utime(tmp_path / "x.npz", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    ingest([tmp_path / "x.npz"], tmp_path / "out")
    found = zarr.open_group(tmp_path / "out", mode="r")["features"][:]
    np.testing.assert_array_equal(found, x)
