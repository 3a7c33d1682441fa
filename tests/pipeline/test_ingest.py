"""Ingest: rows, labels, ids and manifest of the store, and resuming an unfinished store."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import dask
import h5py
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from backends import backend
from formats import WRITERS, columns_of, write_csv
from hypothesis import example, given, settings
from hypothesis import strategies as st
from messages import expecting

from scrlm_dask.config import KMeansConfig
from scrlm_dask.errors import InputError, ScrlmWarning, StoreError, UnusableRowsError
from scrlm_dask.events import Note
from scrlm_dask.passes import copy_rows
from scrlm_dask.pipeline.evaluate import evaluate
from scrlm_dask.pipeline.ingest import ingest, prepare_ingest
from scrlm_dask.pipeline.ingest_job import IngestConfig
from scrlm_dask.pipeline.inspect import verify_store
from scrlm_dask.pipeline.kmeans import kmeans
from scrlm_dask.sources.registry import SourceOptions
from scrlm_dask.storage.arrays import read_rows
from scrlm_dask.storage.feature_store import (
    block_arrays,
    is_shuffled,
    open_features_store,
    open_origins,
    write_features_block,
)
from scrlm_dask.storage.manifest import check_digest, missing_blocks, read_manifest
from scrlm_dask.storage.store_info import describe_store

P = 4
ROW_BYTES = 4 * P


def drawn(rows: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, P)).astype(dtype)


def ignore(event: Any) -> None:
    """Ignore events; tests of notes pass their own listener."""


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
def test_every_format(name: str, tmp_path: Path) -> None:
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


def test_manifest_contains_the_request_and_the_digests(tmp_path: Path) -> None:
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
@example(30, set(range(10, 20)), 10, None, False, 0, None)  # a complete chunk
@example(30, {0, 9, 10, 19, 20, 29}, 10, None, False, 0, 25)  # at the boundaries of chunks
def test_dropped_limited_and_shuffled_rows_agree_with_numpy(
    rows: int,
    bad: set[int],
    block_rows: int,
    limit: int | None,
    shuffle: bool,
    seed: int,
    group_rows: int | None,
) -> None:
    """With `group_rows`, the source is a Parquet file with row groups of this size."""
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
            with pytest.raises(InputError, match=expecting(paths[0], "NaN", "float32")) as caught:
                run(paths, out, chunk_bytes=chunk, **config)
            assert "--nan" not in str(caught.value)  # not the rejection of a single row
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


def test_shuffle_depends_on_the_seed_and_not_on_the_chunks(tmp_path: Path) -> None:
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
        del found[name]["zarr.json"]  # contains a digest of modification times
    first = found["one thread"]
    assert len(first) == 4 + 4 * 30
    assert all(files == first for files in found.values())


@pytest.mark.parametrize("mode", ["error", "keep", "drop"])
def test_values_too_large_for_the_stored_dtype(tmp_path: Path, mode: Any) -> None:
    x = drawn(30, "float64")
    x[17, 2] = 1e6
    np.save(tmp_path / "x.npy", x)
    config = {"dtype": "float16", "nan": mode}
    if mode == "error":
        facts = ("row 17", tmp_path / "x.npy", "block 0", "float16")
        with pytest.raises(InputError, match=expecting(*facts)):
            run([tmp_path / "x.npy"], tmp_path / "out", **config)
        assert not (tmp_path / "out").exists()
        return
    run([tmp_path / "x.npy"], tmp_path / "out", **config)
    found = stored(tmp_path / "out")
    assert len(found) == (29 if mode == "drop" else 30)
    assert np.isinf(found).sum() == (mode == "keep")


def test_error_names_the_file_of_the_row(tmp_path: Path) -> None:
    x = drawn(44)
    x[30] = np.nan
    paths, _ = WRITERS["shards"][0](tmp_path, x)
    for shuffle in (False, True):
        with pytest.raises(InputError, match=expecting("row 2", "emb_7.npy", "block 3", "NaN")):
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

    def test_shuffled_ids_keep_their_last_characters(self, tmp_path: Path) -> None:
        ids = [f"{i}\0" if i % 2 else f"{i}" for i in range(12)]
        table = pa.table({"emb": drawn(12).tolist(), "id": ids})
        pq.write_table(table, tmp_path / "x.parquet")
        for shuffle in (False, True):
            run(tmp_path / "x.parquet", tmp_path / "out", ids="id", shuffle=shuffle)
            rows = stored(tmp_path / "out", "source_row") if shuffle else range(12)
            assert stored(tmp_path / "out", "ids").tolist() == [ids[row] for row in rows]

    def test_label_column_of_a_csv_file_is_not_a_feature(self, tmp_path: Path) -> None:
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
        ("values", "facts"),
        [
            (np.arange(11), (11, 12)),
            (np.ones(12), ("float64", -1)),
            (np.arange(24).reshape(12, 2), ("(12, 2)",)),
            (np.where(np.arange(12) == 7, 2**31, 0), ("row 7", 2147483648)),
        ],
        ids=["11 rows", "float64", "2-D", "2**31"],
    )
    def test_invalid_labels(self, tmp_path: Path, values: Any, facts: tuple[Any, ...]) -> None:
        np.save(tmp_path / "x.npy", drawn(12))
        path = tmp_path / "labels.npy"
        np.save(path, values)
        with pytest.raises(InputError, match=expecting(path, *facts)):
            run([tmp_path / "x.npy"], tmp_path / "out", labels=str(path))
        assert not (tmp_path / "out").exists()

    def test_ids_too_large_for_64_bits(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", drawn(3))
        np.save(tmp_path / "ids.npy", np.array([1, 2**63, 2], np.uint64))
        with pytest.raises(InputError, match=expecting("row 1", "ids.npy", 2**63)):
            run([tmp_path / "x.npy"], tmp_path / "out", ids=str(tmp_path / "ids.npy"))

    def test_missing_column(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", drawn(3))
        with pytest.raises(InputError, match=expecting("x.npy", "'label'")):
            run([tmp_path / "x.npy"], tmp_path / "out", labels="label")
        paths, _ = write_csv(tmp_path, drawn(3))
        with pytest.raises(InputError, match=expecting("'label'", "f0", "f1", "f2", "f3")):
            run(paths, tmp_path / "out", labels="label")


TEXTS = ["owl", "cat", "-1", "dog", "cat", "-1", "übung, x", "cat"] * 5
NAMES = ["cat", "dog", "owl", "übung, x"]
NUMBERS = [-1 if text == "-1" else NAMES.index(text) for text in TEXTS]


def with_texts(kind: str, folder: Path) -> tuple[Path, str]:
    """Write 40 rows with text labels; return the source and the value of --labels."""
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


class TestTextLabels:
    @pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "h5", "npy"])
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_labels_are_numbered_in_sorted_order(
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

    def test_limit_restricts_the_names(self, tmp_path: Path) -> None:
        path, labels = with_texts("csv", tmp_path)
        assert run([path], tmp_path / "out", labels=labels, limit=2).label_names == ("cat", "owl")
        assert stored(tmp_path / "out", "labels").tolist() == [1, 0]

    def test_first_rows_may_be_outliers(self, tmp_path: Path) -> None:
        (tmp_path / "x.csv").write_text("kind,a,b\n-1,1,2\n-1,3,4\nowl,5,6\ncat,7,8\n-1,9,9\n")
        done = run([tmp_path / "x.csv"], tmp_path / "out", labels="kind")
        assert done.label_names == ("cat", "owl")
        assert stored(tmp_path / "out", "labels").tolist() == [-1, -1, 1, 0, -1]

    @pytest.mark.slow
    @pytest.mark.cluster
    @pytest.mark.parametrize("name", ["three threads", "two workers of two threads"])
    def test_several_workers(self, tmp_path: Path, name: str) -> None:
        path, labels = with_texts("parquet", tmp_path)
        with backend(name):
            ingest([path], tmp_path / "out", IngestConfig(labels=labels, chunk_bytes=80))
        assert stored(tmp_path / "out", "labels").tolist() == NUMBERS

    def test_notes_are_emitted_once(self, tmp_path: Path) -> None:
        path, labels = with_texts("csv", tmp_path)
        events: list[Any] = []
        ingest([path], tmp_path / "out", IngestConfig(labels=labels), listener=events.append)
        notes = [event.text for event in events if isinstance(event, Note)]
        assert len(notes) == 2
        assert re.search(expecting(path), notes[0])
        assert re.search(expecting(path, 4, "'label_names'"), notes[1])

    def test_resumed_ingest_uses_the_same_numbers(self, tmp_path: Path) -> None:
        path, labels = with_texts("csv", tmp_path)
        config = IngestConfig(labels=labels, chunk_bytes=10 * ROW_BYTES)
        with dask.config.set(scheduler="sync"):
            with pytest.raises(StoppedError):
                ingest([path], tmp_path / "out", config, listener=stop_after(2))
            events: list[Any] = []
            done = ingest([path], tmp_path / "out", config, listener=events.append)
        assert done.kept_blocks == 2
        assert "names" not in [e.name for e in events if type(e).__name__ == "PhaseStarted"]
        assert stored(tmp_path / "out", "labels").tolist() == NUMBERS

    @pytest.mark.parametrize("text", ["", " ", "nan", "NaN", "-1.0", "-01"])
    def test_ambiguous_labels_are_rejected(self, tmp_path: Path, text: str) -> None:
        np.save(tmp_path / "x.npy", drawn(4))
        np.save(tmp_path / "y.npy", np.array(["b", "a", text, "b"]))
        with pytest.raises(InputError, match=expecting("row 2", "y.npy", repr(text), -1)):
            run([tmp_path / "x.npy"], tmp_path / "out", labels=str(tmp_path / "y.npy"))
        assert not (tmp_path / "out").exists()

    def test_too_many_names_are_rejected(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("scrlm_dask.sources.label_encoding._MOST_NAMES", 20)
        np.save(tmp_path / "x.npy", drawn(40))
        np.save(tmp_path / "y.npy", np.array([f"{i}.jpg" for i in range(40)]))
        with pytest.raises(InputError, match=expecting(tmp_path / "y.npy", 20, "--ids")):
            run([tmp_path / "x.npy"], tmp_path / "out", labels=str(tmp_path / "y.npy"))


def test_columns_of_the_features(tmp_path: Path) -> None:
    path, labels = with_texts("csv", tmp_path)
    assert run([path], tmp_path / "out", labels=labels).columns == ("f0", "f1", "f2", "f3")
    path, labels = with_texts("parquet", tmp_path)
    options = SourceOptions(exclude=("f1", "f2"))
    assert run([path], tmp_path / "out", options, labels=labels).columns == ("f0", "f3")
    np.testing.assert_array_equal(stored(tmp_path / "out"), drawn(40)[:, [0, 3]])
    np.save(tmp_path / "x.npy", drawn(3))
    assert run([tmp_path / "x.npy"], tmp_path / "out").columns == ()


@pytest.mark.parametrize("headers", [4, 3])
def test_headers_of_many_files_give_one_note(tmp_path: Path, headers: int) -> None:
    for i in range(4):
        names = "a,b,k,n" if i < headers else ""
        values = np.column_stack([np.arange(8).reshape(4, 2), np.arange(4), np.arange(4)])
        np.savetxt(tmp_path / f"{i}.csv", values, "%d", ",", header=names, comments="")
    events: list[Any] = []
    config = IngestConfig(labels="k", ids="n") if headers == 4 else IngestConfig()
    ingest([tmp_path / "*.csv"], tmp_path / "out", config, listener=events.append)
    (note,) = [event.text for event in events if isinstance(event, Note)]
    assert str(tmp_path / "0.csv") in note
    numbers = re.findall(r"\b\d+\b(?!\.csv)", note.replace(str(tmp_path), ""))
    # 3 more files; if some have no header, 3 of 4 have one
    assert numbers == (["3"] if headers == 4 else ["3", "3", "4"])


class TestOrder:
    """A list of files keeps its order; a folder and a pattern have numeric order."""

    def write(self, folder: Path) -> list[str]:
        """Write 12 files of 2 rows; all features of a row are equal to its label."""
        paths = [str(folder / f"part{i}.npy") for i in range(12)]
        for i, path in enumerate(paths):
            np.save(path, np.full((2, P), i + 1, np.float32))
        return paths

    def ingest(self, sources: Any, labels: list[str], out: Path) -> list[Note]:
        """Ingest with labels in the order of `labels`; check the rows, and return the notes."""
        folder = out.parent
        given = [np.load(path)[:, 0].astype(int) for path in labels]
        np.save(folder / "y.npy", np.concatenate(given))
        events: list[Any] = []
        config = IngestConfig(labels=str(folder / "y.npy"))
        ingest(sources, out, config, overwrite=True, listener=events.append)
        np.testing.assert_array_equal(stored(out, "labels"), stored(out)[:, 0])
        return [event for event in events if isinstance(event, Note)]

    def test_alphabetical_list_is_kept(self, tmp_path: Path) -> None:
        paths = self.write(tmp_path)
        (note,) = self.ingest(sorted(paths), sorted(paths), tmp_path / "out")
        assert re.search(expecting(paths[10], 3, "labels"), note.text)
        assert note.warning
        events: list[Any] = []
        ingest(sorted(paths), tmp_path / "without-labels", listener=events.append)
        assert [each.warning for each in events if isinstance(each, Note)] == [False]

    def test_numeric_order(self, tmp_path: Path) -> None:
        paths = self.write(tmp_path)
        for sources in (paths, [f"{tmp_path}/part*.npy"], f"{tmp_path}/part*.npy"):
            assert self.ingest(sources, paths, tmp_path / "out") == []

    def test_import_that_was_started_in_another_order_is_rejected(self, tmp_path: Path) -> None:
        paths, out = self.write(tmp_path), tmp_path / "out"
        config = IngestConfig(chunk_bytes=2 * ROW_BYTES)
        with dask.config.set(scheduler="sync"), pytest.raises(StoppedError):
            ingest(paths, out, config, listener=stop_after(4))
        with pytest.raises(StoreError, match=expecting(out, "order", "--overwrite")):
            ingest(sorted(paths), out, config)
        assert ingest(paths, out, config).kept_blocks == 4


@pytest.mark.parametrize(
    ("sources", "config", "facts"),
    [
        (np.ones((3, 2)), None, ("ndarray", "FeatureStore.write")),
        ([np.ones((3, 2))], None, ("ndarray", "FeatureStore.write")),
        (None, None, ("NoneType",)),
        ("x.npy", {"nan": "drop"}, ("IngestConfig", "dict")),
    ],
)
def test_arguments_of_other_types(
    tmp_path: Path, sources: Any, config: Any, facts: tuple[str, ...]
) -> None:
    with pytest.raises(InputError, match=expecting(*facts)):
        ingest(sources, tmp_path / "out", config)


@pytest.mark.parametrize("name", ["labels", "ids"])
def test_array_in_the_place_of_a_path(name: str) -> None:
    with pytest.raises(InputError, match=expecting(name, "ndarray")):
        IngestConfig(**{name: np.arange(3)})  # type: ignore[arg-type]


class StoppedError(Exception):
    """The error with which a test stops an ingest."""


def stop_after(blocks: int) -> Any:
    left = [blocks]

    def listener(event: Any) -> None:
        if type(event).__name__ == "BlockDone" and event.name == "ingest":
            left[0] -= 1
            if left[0] == 0:
                raise StoppedError

    return listener


FUTURE = 2**33  # the year 2242, in seconds since 1970


class TestResume:
    def begin(self, tmp_path: Path, **config: Any) -> None:
        """Start an ingest of 10 blocks and stop it after 4."""
        np.save(tmp_path / "x.npy", drawn(100))
        config = IngestConfig(**{"chunk_bytes": 10 * ROW_BYTES, **config})
        with dask.config.set(scheduler="sync"), pytest.raises(StoppedError):
            ingest([tmp_path / "x.npy"], tmp_path / "out", config, listener=stop_after(4))

    @pytest.mark.parametrize("config", [{}, {"shuffle": True}, {"nan": "drop"}])
    def test_complete_blocks_are_kept(self, tmp_path: Path, config: Any) -> None:
        self.begin(tmp_path, **config)
        done = {f: f.stat().st_mtime_ns for f in (tmp_path / "out/features/c").rglob("*")}
        assert len(missing_blocks(str(tmp_path / "out"))) == 6
        with pytest.raises(StoreError, match=expecting(tmp_path / "out", "6 of 10")):
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
        assert any("4 of 10" in event.text for event in notes if isinstance(event, Note))
        files = [f for f in done if f.is_file()]
        assert len(files) == 4
        assert all(f.stat().st_mtime_ns == done[f] for f in files)
        uninterrupted = run([tmp_path / "x.npy"], tmp_path / "other", **config)
        assert uninterrupted.kept_blocks == 0
        np.testing.assert_array_equal(stored(tmp_path / "out"), stored(tmp_path / "other"))
        assert open_features_store(tmp_path / "out").shape == (100, P)

    @pytest.mark.parametrize(
        ("config", "facts"),
        [
            ({"seed": 123}, ("seed", 0, 123)),
            ({"nan": "keep"}, ("nan", "error", "keep")),
            ({"dtype": "float16"}, ("dtype", "float32", "float16")),
            ({"chunk_bytes": 20 * ROW_BYTES}, (10, 20)),
            ({"limit": 50}, ("limit", None, 50)),
        ],
    )
    def test_changed_request_is_rejected(
        self, tmp_path: Path, config: Any, facts: tuple[Any, ...]
    ) -> None:
        self.begin(tmp_path)
        changed = IngestConfig(**{"chunk_bytes": 10 * ROW_BYTES, **config})
        out = tmp_path / "out"
        for function in (prepare_ingest, ingest):
            with pytest.raises(StoreError, match=expecting(out, "--overwrite", *facts)):
                function([tmp_path / "x.npy"], out, changed)
        assert len(missing_blocks(str(tmp_path / "out"))) == 6
        run([tmp_path / "x.npy"], tmp_path / "out", **config)  # overwrites

    def test_overwrite_starts_again(self, tmp_path: Path) -> None:
        self.begin(tmp_path)
        config = IngestConfig(chunk_bytes=10 * ROW_BYTES)
        found = ingest([tmp_path / "x.npy"], tmp_path / "out", config, overwrite=True)
        assert found.kept_blocks == 0

    def test_source_rewritten_after_the_clock_was_set_back_is_rejected(
        self, tmp_path: Path
    ) -> None:
        """Another source is newer, and the rewritten source has an earlier time than before."""
        paths = [tmp_path / "x.npy", tmp_path / "y.npy"]
        for path in paths:
            np.save(path, drawn(50))
            os.utime(path, (FUTURE, FUTURE))
        config, out = IngestConfig(chunk_bytes=10 * ROW_BYTES), tmp_path / "out"
        with dask.config.set(scheduler="sync"), pytest.raises(StoppedError):
            ingest(paths, out, config, listener=stop_after(4))
        job = prepare_ingest(paths, out, config)
        np.save(paths[0], drawn(50) + 1)
        with pytest.raises(StoreError, match=expecting(paths[0])):
            job.run()
        with pytest.raises(StoreError, match=expecting(out, paths[0], "modified")) as caught:
            ingest(paths, out, config)
        assert str(paths[1]) not in str(caught.value)
        np.save(paths[0], drawn(50))
        os.utime(paths[0], (FUTURE, FUTURE))
        assert ingest(paths, out, config).kept_blocks == 4

    @pytest.mark.parametrize("change", ["longer", "rewritten", "another file"])
    def test_changed_source_is_rejected(self, tmp_path: Path, change: str) -> None:
        self.begin(tmp_path)
        path = tmp_path / "x.npy"
        facts: tuple[Any, ...]
        match change:
            case "longer":
                np.save(path, drawn(110))
                facts = (path, 1728, 1888)
            case "rewritten":
                np.save(path, drawn(100) + 1)
                facts = (path,)
            case _:
                path = Path(shutil.copy2(path, tmp_path / "y.npy"))
                facts = (path, tmp_path / "x.npy")
        with pytest.raises(StoreError, match=expecting(tmp_path / "out", *facts)):
            prepare_ingest([path], tmp_path / "out", IngestConfig(chunk_bytes=10 * ROW_BYTES))

    @pytest.mark.parametrize("name", WRITERS)
    def test_any_replaced_source_file_is_rejected(self, tmp_path: Path, name: str) -> None:
        """Another file of the same size takes the place of a file that is not the newest."""
        write, dtypes = WRITERS[name]
        x = drawn(40).astype(dtypes[0])
        paths, options = write(tmp_path, x)
        np.save(tmp_path / "labels.npy", np.zeros(40, int))
        np.save(tmp_path / "ids.npy", np.arange(40))
        config = IngestConfig(
            labels=str(tmp_path / "labels.npy"),
            ids=str(tmp_path / "ids.npy"),
            chunk_bytes=5 * ROW_BYTES,
        )
        given = (paths, tmp_path / "out", config)
        with dask.config.set(scheduler="sync"), pytest.raises(StoppedError):
            ingest(*given, options=options, listener=stop_after(1))
        unfinished = read_manifest(tmp_path / "out")
        assert unfinished is not None
        assert {"labels.npy", "ids.npy"} < {Path(file.path).name for file in unfinished.sources}
        for source in unfinished.sources:
            changed = Path(source.path)
            if changed.is_dir():  # a Zarr array: change a chunk
                changed = max(f for f in changed.rglob("*") if f.is_file() and "z" not in f.name)
            before = changed.stat().st_mtime_ns
            os.utime(changed, ns=(1, 1))
            with pytest.raises(StoreError, match=expecting(source.path, "--overwrite")):
                prepare_ingest(*given, options=options)
            os.utime(changed, ns=(before, before))
        assert ingest(*given, options=options, listener=ignore).kept_blocks > 0

    def test_store_of_an_earlier_version_is_rejected(self, tmp_path: Path) -> None:
        """Earlier versions recorded no digests of the source files."""
        self.begin(tmp_path)
        group = zarr.open_group(tmp_path / "out", mode="r+")
        manifest: Any = group.attrs["manifest"]
        for source in manifest["sources"]:
            del source["digest"]
        manifest["request"]["modified"] = "2026-01-01T00:00:00+00:00"
        group.attrs["manifest"] = manifest
        config = IngestConfig(chunk_bytes=10 * ROW_BYTES)
        for function in (prepare_ingest, ingest):
            with pytest.raises(StoreError, match=r"earlier version.*--overwrite"):
                function([tmp_path / "x.npy"], tmp_path / "out", config)

    def test_dropped_rows_are_determined_once(self, tmp_path: Path) -> None:
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
        assert phases == ["verify", "ingest"]  # not "scan"
        np.testing.assert_array_equal(stored(tmp_path / "out"), np.delete(x, [3, 55], axis=0))

    @pytest.mark.parametrize("config", [{}, {"shuffle": True}, {"zeros": "drop"}], ids=str)
    @pytest.mark.parametrize("damage", ["rewritten", "unreadable", "digest"])
    def test_changed_blocks_are_written_again(
        self, tmp_path: Path, config: Any, damage: str
    ) -> None:
        self.begin(tmp_path, **config)
        source, out = tmp_path / "x.npy", tmp_path / "out"
        changed = sorted(set(range(10)) - set(missing_blocks(out)))[1]
        if damage == "rewritten":  # with a valid checksum
            rows = slice(10 * changed, 10 * changed + 10)
            zarr.open_array(out / "features", mode="r+")[rows] = 77
        else:
            array = "features" if damage == "unreadable" else "digests"
            (out / array / "c" / str(changed) / "0").write_bytes(b"damaged")
        given = IngestConfig(chunk_bytes=10 * ROW_BYTES, **config)
        notes: list[Any] = []
        with dask.config.set(scheduler="sync"):
            found = ingest(source, out, given, listener=notes.append)
        assert found.kept_blocks == 3
        (warning,) = [note.text for note in notes if isinstance(note, Note) and note.warning]
        assert re.search(expecting(out, changed, "1 of 4"), warning)
        run(source, tmp_path / "other", **config)
        np.testing.assert_array_equal(stored(out), stored(tmp_path / "other"))
        assert verify_store(out, listener=ignore) == ()

    @pytest.mark.parametrize("kept", [0, 0.5, 1], ids=["empty", "half", "zeros"])
    def test_damaged_parts_of_a_shuffle_are_written_again(
        self, tmp_path: Path, kept: float
    ) -> None:
        self.begin(tmp_path, shuffle=True)
        out = tmp_path / "out"
        parts = sorted((out / ".shuffle").iterdir())
        sizes = [part.stat().st_size for part in parts]
        for part, size in zip(parts[:3], sizes, strict=False):
            part.write_bytes(bytes(int(size * kept)))
        given = IngestConfig(chunk_bytes=10 * ROW_BYTES, shuffle=True)
        assert ingest(tmp_path / "x.npy", out, given, listener=ignore).kept_blocks == 4
        np.testing.assert_array_equal(stored(out), drawn(100)[stored(out, "source_row")])
        assert np.sort(stored(out, "source_row")).tolist() == list(range(100))

    def test_all_blocks_are_verified_if_none_is_missing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        np.save(tmp_path / "x.npy", drawn(100))
        config, out = IngestConfig(chunk_bytes=10 * ROW_BYTES), tmp_path / "out"
        with monkeypatch.context() as patch:
            patch.setattr(copy_rows, "check_stored_pass", _stop)
            with pytest.raises(StoppedError):
                ingest(tmp_path / "x.npy", out, config)
        zarr.open_array(out / "features", mode="r+")[42] = 77
        assert ingest(tmp_path / "x.npy", out, config, listener=ignore).kept_blocks == 9
        np.testing.assert_array_equal(stored(out), drawn(100))

    def test_complete_store_is_not_overwritten(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", drawn(20))
        run([tmp_path / "x.npy"], tmp_path / "out")
        with pytest.raises(StoreError, match=expecting(tmp_path / "out", "--overwrite")):
            ingest([tmp_path / "x.npy"], tmp_path / "out")

    def test_unfinished_store_without_a_manifest_is_replaced(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", drawn(20))
        attributes = {"scrlm": "features", "complete": False}
        zarr.create_group(tmp_path / "out", attributes=attributes)
        prepare_ingest([tmp_path / "x.npy"], tmp_path / "out", IngestConfig())
        ingest([tmp_path / "x.npy"], tmp_path / "out", IngestConfig(), listener=ignore)
        assert open_features_store(tmp_path / "out").shape == (20, P)


def test_other_folders_are_not_overwritten(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", drawn(20))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("1 2\n3 4\n")
    with pytest.raises(StoreError, match=expecting(tmp_path / "out")) as caught:
        run([tmp_path / "x.npy"], tmp_path / "out")
    assert "--overwrite" not in str(caught.value)
    with pytest.raises(StoreError, match=expecting(tmp_path / "out" / "thesis.txt")):
        run([tmp_path / "out" / "thesis.txt"], tmp_path / "out", SourceOptions(format="csv"))
    assert (tmp_path / "out" / "thesis.txt").read_text() == "1 2\n3 4\n"


def test_note_about_large_chunks_of_the_source(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "x", shape=(100, P), chunks=(100, 1), dtype="float32")
    array[...] = drawn(100)
    notes: list[Any] = []
    config = IngestConfig(chunk_bytes=10 * ROW_BYTES)
    ingest([tmp_path / "x"], tmp_path / "out", config, listener=notes.append)
    text = next(event.text for event in notes if isinstance(event, Note))
    assert re.search(expecting(tmp_path / "x", 100, 10, "--chunk-size"), text)
    out = open_features_store(tmp_path / "out")
    np.testing.assert_array_equal(read_rows(out, 0, 100, "it"), drawn(100))


def test_note_about_a_compressed_archive(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", drawn(100))
    notes: list[Any] = []
    config = IngestConfig(chunk_bytes=10 * ROW_BYTES)
    ingest([tmp_path / "x.npz"], tmp_path / "out", config, listener=notes.append)
    assert any(isinstance(e, Note) and "np.savez" in e.text for e in notes)
    # One task reads the archive, but writes and reports each block.
    blocks = [e for e in notes if type(e).__name__ == "BlockDone"]
    assert [(e.rows, e.bytes) for e in blocks] == [(10, 10 * ROW_BYTES)] * 10
    np.testing.assert_array_equal(stored(tmp_path / "out"), drawn(100))


def test_blocks_of_a_damaged_file_are_not_kept(tmp_path: Path) -> None:
    """The restored file has the size and the modification time of the damaged one."""
    x = drawn(100)
    np.savez(tmp_path / "x.npz", x)
    good = (tmp_path / "x.npz").read_bytes()
    position = good.index(x[50].tobytes())
    flipped = bytes([good[position] ^ 1])
    (tmp_path / "x.npz").write_bytes(good[:position] + flipped + good[position + 1 :])
    stat = (tmp_path / "x.npz").stat()
    with pytest.raises(StoreError, match=r"x\.npz"):
        ingest([tmp_path / "x.npz"], tmp_path / "out")
    (tmp_path / "x.npz").write_bytes(good)
    os.utime(tmp_path / "x.npz", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    ingest([tmp_path / "x.npz"], tmp_path / "out")
    found = zarr.open_group(tmp_path / "out", mode="r")["features"][:]
    np.testing.assert_array_equal(found, x)


class TestSourceRows:
    """`source_row` and `source_file` lead from each stored row to its row in the source."""

    def check(self, out: Path, sources: dict[str, np.ndarray]) -> None:
        origins = open_origins(out)
        assert origins is not None
        features = stored(out)
        rows, files = origins.read(0, len(features))
        found = [sources[origins.files[f]][r] for r, f in zip(rows, files, strict=True)]
        np.testing.assert_array_equal(features, np.array(found))

    def write(self, folder: Path) -> tuple[list[Path], dict[str, np.ndarray]]:
        x = drawn(100)
        x[[3, 55]] = np.nan
        paths = [folder / f"x{number}.npy" for number in range(3)]
        parts = dict(zip(map(str, paths), np.split(x, [30, 37]), strict=True))
        for path, part in parts.items():
            np.save(path, part)
        return paths, parts

    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("nan", ["drop", "keep"])
    def test_several_files(self, tmp_path: Path, shuffle: bool, nan: str) -> None:
        paths, parts = self.write(tmp_path)
        run(paths, tmp_path / "out", shuffle=shuffle, nan=nan)
        self.check(tmp_path / "out", parts)

    @pytest.mark.parametrize("config", [{"shuffle": True}, {"nan": "drop"}, {"limit": 20}, {}])
    def test_one_file(self, tmp_path: Path, config: dict[str, Any]) -> None:
        x = drawn(50)
        x[[3, 5]] = np.nan if "nan" in config else 0
        np.save(tmp_path / "x.npy", x)
        run([tmp_path / "x.npy"], tmp_path / "out", **config)
        self.check(tmp_path / "out", {str(tmp_path / "x.npy"): x})
        moved = config.keys() & {"shuffle", "nan"}
        assert ("source_row" in zarr.open_group(tmp_path / "out", mode="r")) == bool(moved)

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_resumed(self, tmp_path: Path, shuffle: bool) -> None:
        paths, parts = self.write(tmp_path)
        config = IngestConfig(chunk_bytes=10 * ROW_BYTES, shuffle=shuffle, nan="drop")
        with dask.config.set(scheduler="sync"):
            with pytest.raises(StoppedError):
                ingest(paths, tmp_path / "out", config, listener=stop_after(5))
            ingest(paths, tmp_path / "out", config, listener=ignore)
        self.check(tmp_path / "out", parts)

    def test_interrupted_shuffle_is_overwritten(self, tmp_path: Path) -> None:
        paths, parts = self.write(tmp_path)
        config = IngestConfig(chunk_bytes=10 * ROW_BYTES, shuffle=True, nan="drop")
        with dask.config.set(scheduler="sync"), pytest.raises(StoppedError):
            ingest(paths, tmp_path / "out", config, listener=stop_after(5))
        assert (tmp_path / "out" / ".shuffle").is_dir()
        run(paths, tmp_path / "out", nan="drop")
        self.check(tmp_path / "out", parts)

    def test_digests_cover_the_source_rows(self, tmp_path: Path) -> None:
        paths, _ = self.write(tmp_path)
        run(paths, tmp_path / "out", nan="drop")
        zarr.open_array(tmp_path / "out" / "source_row", mode="r+")[12] = 99
        damaged = verify_store(tmp_path / "out", listener=ignore)
        assert [damage.block for damage in damaged] == [1]


class TestCopiedStores:
    """A copy of a features store has the source rows of the store, and is shuffled if it is."""

    def write(self, folder: Path, **config: Any) -> tuple[Path, dict[str, np.ndarray]]:
        """Ingest two files with labels and ids, and remove them; return the store and the rows."""
        x, paths = drawn(60), [folder / "x0.npy", folder / "x1.npy"]
        x[[3, 44]] = np.nan
        parts = dict(zip(map(str, paths), np.split(x, [25]), strict=True))
        for path, part in parts.items():
            np.save(path, part)
        np.save(folder / "y.npy", np.arange(60))
        names = {"labels": str(folder / "y.npy"), "ids": str(folder / "y.npy")}
        run(paths, folder / "a", nan="drop", **names, **config)
        for path in paths:
            path.unlink()
        return folder / "a", parts

    @pytest.mark.parametrize("config", [{}, {"shuffle": True, "seed": 5}, {"limit": 50}], ids=str)
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_source_rows(self, tmp_path: Path, shuffle: bool, config: dict[str, Any]) -> None:
        store, parts = self.write(tmp_path, shuffle=shuffle)
        run(store, tmp_path / "b", **config)
        TestSourceRows().check(tmp_path / "b", parts)
        assert is_shuffled(tmp_path / "b") == (shuffle or "shuffle" in config)
        for number, copied in enumerate((tmp_path / "b", tmp_path / "b/features")):
            run(copied, tmp_path / f"c{number}")  # a copy of the copy
            TestSourceRows().check(tmp_path / f"c{number}", parts)
            assert is_shuffled(tmp_path / f"c{number}") == is_shuffled(tmp_path / "b")

    def test_with_other_sources(self, tmp_path: Path) -> None:
        store, parts = self.write(tmp_path, shuffle=True)
        parts[str(tmp_path / "z.npy")] = drawn(7) + 9
        np.save(tmp_path / "z.npy", parts[str(tmp_path / "z.npy")])
        run([tmp_path / "z.npy", store], tmp_path / "b", chunk_bytes=3 * ROW_BYTES)
        TestSourceRows().check(tmp_path / "b", parts)
        assert is_shuffled(tmp_path / "b")

    def test_resumed(self, tmp_path: Path) -> None:
        store, parts = self.write(tmp_path, shuffle=True)
        config = IngestConfig(chunk_bytes=10 * ROW_BYTES)
        with dask.config.set(scheduler="sync"), pytest.raises(StoppedError):
            ingest(store, tmp_path / "b", config, listener=stop_after(2))
        assert ingest(store, tmp_path / "b", config, listener=ignore).kept_blocks == 2
        TestSourceRows().check(tmp_path / "b", parts)

    def test_source_rows_that_change(self, tmp_path: Path) -> None:
        store, _ = self.write(tmp_path, shuffle=True)

        def write(event: Any) -> None:
            if type(event).__name__ == "PhaseFinished":
                zarr.open_array(store / "source_row", mode="r+")[:] = 0

        with pytest.raises(UnusableRowsError, match=expecting(store / "source_row")):
            ingest(store, tmp_path / "b", listener=write)

    @pytest.mark.parametrize(
        ("given", "left"),
        [
            ({}, ["labels", "ids"]),
            ({"labels": "labels"}, ["ids"]),
            ({"ids": "a/ids"}, ["labels"]),
            ({"labels": "a/labels", "ids": "ids"}, []),
        ],
        ids=str,
    )
    def test_note_about_labels_and_ids(
        self, tmp_path: Path, given: dict[str, str], left: list[str]
    ) -> None:
        store, _ = self.write(tmp_path)
        named = {k: str(tmp_path / v) if "/" in v else v for k, v in given.items()}
        notes: list[Any] = []
        ingest(store, tmp_path / "b", IngestConfig(**named), listener=notes.append)  # type: ignore[arg-type]
        found = [event.text for event in notes if isinstance(event, Note)]
        assert len(found) == bool(left)
        for name in ("labels", "ids"):
            assert any(f"--{name} {name}" in text for text in found) == (name in left)
            assert (tmp_path / "b" / name).exists() == (name in given)
            if name in given:
                np.testing.assert_array_equal(stored(tmp_path / "b", name), stored(store, name))

    def test_truth_and_weights_of_the_original_source(self, tmp_path: Path) -> None:
        kinds = np.arange(120) % 3
        np.save(tmp_path / "x.npy", np.arange(8.0) + 50 * kinds[:, None])
        run(tmp_path / "x.npy", tmp_path / "a", shuffle=True)
        run(tmp_path / "a", tmp_path / "b")
        model, weights = KMeansConfig(3), np.ones(120)
        with pytest.warns(ScrlmWarning, match=expecting(tmp_path / "b", "source_row")):
            kmeans(tmp_path / "b", model, out=tmp_path / "run", sample_weight=weights)
        truth = kinds[stored(tmp_path / "b", "source_row")]
        with pytest.warns(ScrlmWarning, match=expecting(tmp_path / "b", "source_row")):
            assert evaluate(tmp_path / "run", kinds).scores.accuracy < 0.7
        with pytest.warns(ScrlmWarning, match=expecting(tmp_path / "b", "source_row")):
            assert evaluate(tmp_path / "run", truth).scores.accuracy == 1.0


def _stop(*_: Any) -> None:
    raise StoppedError


def _stopping_after(blocks: int) -> Any:
    """Return a function that writes this number of blocks and then raises."""
    left = iter(range(blocks))

    def write(*arguments: Any, **columns: Any) -> None:
        if next(left, None) is None:
            raise StoppedError
        write_features_block(*arguments, **columns)

    return write


class TestRowsOfZeros:
    """Rows of zeros are counted and, if requested, dropped."""

    @staticmethod
    def ingest(tmp_path: Path, **config: Any) -> tuple[Any, list[Note]]:
        x = drawn(60)
        x[[3, 25, 55]], x[7, 0] = 0.0, 0.0  # row 7 contains other numbers
        x[40, 1] = np.nan if config.get("nan") else 1.0
        if not (tmp_path / "x.npy").exists():
            np.save(tmp_path / "x.npy", x)
        notes: list[Any] = []
        given = IngestConfig(chunk_bytes=10 * ROW_BYTES, **config)
        with dask.config.set(scheduler="sync"):
            written = ingest(tmp_path / "x.npy", tmp_path / "out", given, listener=notes.append)
        return written, [note for note in notes if isinstance(note, Note)]

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_their_number_is_reported(self, tmp_path: Path, shuffle: bool) -> None:
        written, notes = self.ingest(tmp_path, shuffle=shuffle)
        assert (written.n_rows, written.n_dropped) == (60, 0)
        (warning,) = (note.text for note in notes if note.warning)
        assert re.search(r"\b3 of 60\b.*--zeros drop", warning)

    @pytest.mark.parametrize("stop_after", [1, 6])
    def test_their_number_includes_rows_of_an_earlier_attempt(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
    ) -> None:
        with monkeypatch.context() as patch:
            if stop_after == 6:  # all blocks are written
                patch.setattr(copy_rows, "check_stored_pass", _stop)
            else:
                patch.setattr(copy_rows, "write_features_block", _stopping_after(stop_after))
            with pytest.raises(StoppedError):
                self.ingest(tmp_path)
        assert len(missing_blocks(tmp_path / "out")) == 6 - stop_after
        written, notes = self.ingest(tmp_path)
        assert written.kept_blocks == stop_after
        (warning,) = (note.text for note in notes if note.warning)
        assert re.search(r"\b3 of 60\b", warning)

    @pytest.mark.parametrize(("nan", "dropped"), [("drop", [3, 25, 40, 55]), ("keep", [3, 25, 55])])
    def test_they_are_dropped(self, tmp_path: Path, nan: Any, dropped: list[int]) -> None:
        written, notes = self.ingest(tmp_path, zeros="drop", nan=nan)
        assert (written.n_rows, written.n_dropped) == (60 - len(dropped), len(dropped))
        assert stored(tmp_path / "out", "dropped").tolist() == dropped
        expected = np.delete(np.arange(60), dropped)
        np.testing.assert_array_equal(stored(tmp_path / "out", "source_row"), expected)
        assert not any(note.warning for note in notes)

    def test_nan_is_still_rejected(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=expecting("row 40", "--nan drop")):
            self.ingest(tmp_path, zeros="drop", nan="error")

    @pytest.mark.parametrize("suffix", ["npy", "csv", "parquet"])
    @pytest.mark.parametrize(
        "config",
        [
            {"nan": "drop"},
            {"nan": "drop", "limit": 21},
            {"nan": "keep", "zeros": "drop"},
            {"nan": "drop", "zeros": "drop", "shuffle": True},
        ],
        ids=str,
    )
    def test_labels_that_are_texts(
        self, tmp_path: Path, suffix: str, config: dict[str, Any]
    ) -> None:
        x = drawn(30)
        x[[2, 20]], x[[11, 25]] = np.nan, 0.0
        kinds = np.array(["no", "yes", "-1"])[np.arange(30) % 3]
        path, labels = tmp_path / f"x.{suffix}", "kind"
        if suffix == "npy":
            labels = str(tmp_path / "labels.npy")
            np.save(path, x)
            np.save(labels, kinds)
        elif suffix == "csv":
            pandas.DataFrame(x).assign(kind=kinds).to_csv(path, index=False)
        else:
            table = pa.table({"emb": [None if np.isnan(row[0]) else row for row in x]})
            pq.write_table(table.append_column("kind", pa.array(kinds)), path)
        dropped = [2, 20] * (config["nan"] == "drop") + [11, 25] * ("zeros" in config)
        kept = np.setdiff1d(np.arange(config.get("limit", 30)), dropped)
        found = run(path, tmp_path / "out", labels=labels, **config)
        assert (found.n_rows, found.label_names) == (len(kept), ("no", "yes"))
        rows = stored(tmp_path / "out", "source_row")
        np.testing.assert_array_equal(np.sort(rows), kept)
        np.testing.assert_array_equal(
            stored(tmp_path / "out", "labels"), np.array([0, 1, -1])[rows % 3]
        )

    def test_no_row_is_left(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.zeros((9, P)))
        with pytest.raises(InputError, match="zeros"):
            run(tmp_path / "x.npy", tmp_path / "out", zeros="drop")

    def test_other_choices_are_rejected(self) -> None:
        with pytest.raises(InputError, match=expecting("zeros", "'error'", "drop")):
            IngestConfig(zeros="error")  # type: ignore[arg-type]


class TestNulls:
    """Nulls of Parquet and Arrow are treated like NaN, unless NaN is an error."""

    @staticmethod
    def write(path: Path, kind: str, item: Any) -> np.ndarray:
        """Write 50 rows; rows 0, 20 and 21 are null, and row 30 contains a null."""
        rows: list[Any] = [[i, i + 1, i + 2] for i in range(50)]
        rows[0] = rows[20] = rows[21] = None
        rows[30] = [30, None, 32]
        if kind == "columns":
            columns = [[None if row is None else row[j] for row in rows] for j in range(3)]
            table = pa.table({f"f{j}": pa.array(columns[j], item) for j in range(3)})
        else:
            listed = pa.list_(item, 3 if kind == "fixed" else -1)
            table = pa.table({"emb": pa.array(rows, listed)})
        table = table.append_column("name", [[f"row {i}" for i in range(50)]])
        if path.suffix == ".parquet":
            pq.write_table(table, path, row_group_size=15)
        else:
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=15)
        return np.delete(np.arange(50), [0, 20, 21, 30])

    @pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
    @pytest.mark.parametrize("kind", ["list", "fixed", "columns"])
    @pytest.mark.parametrize("item", [pa.float32(), pa.float16(), pa.int16()], ids=str)
    def test_they_are_dropped(self, tmp_path: Path, suffix: str, kind: str, item: Any) -> None:
        path = tmp_path / f"x{suffix}"
        kept = self.write(path, kind, item)
        run(path, tmp_path / "out", nan="drop", ids="name")
        np.testing.assert_array_equal(stored(tmp_path / "out"), kept[:, None] + [0, 1, 2])
        assert stored(tmp_path / "out", "dropped").tolist() == [0, 20, 21, 30]
        assert stored(tmp_path / "out", "ids").tolist() == [f"row {i}" for i in kept]
        run(path, tmp_path / "out", nan="keep", ids="name")
        found = np.flatnonzero(np.isnan(stored(tmp_path / "out")).any(axis=1))
        assert found.tolist() == [0, 20, 21, 30]

    @pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
    def test_they_are_rejected_by_default(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"x{suffix}"
        for kind, row in (("list", "row 0"), ("columns", "row")):
            self.write(path, kind, pa.float32())
            with pytest.raises(StoreError, match=expecting(row, "null", "--nan drop")):
                run(path, tmp_path / "out", ids="name")

    def test_null_labels_are_rejected_with_other_advice(self, tmp_path: Path) -> None:
        table = pa.table({"emb": [[1.0, 2.0], [3.0, 4.0]], "kind": ["a", None]})
        pq.write_table(table, tmp_path / "x.parquet")
        with pytest.raises(StoreError, match=expecting("row 1", "kind", "null")) as caught:
            run(tmp_path / "x.parquet", tmp_path / "out", labels="kind")
        assert "--nan" not in str(caught.value)

    def test_lists_of_another_length_are_still_rejected(self, tmp_path: Path) -> None:
        rows = [None, [1.0, 2.0], None, [3.0]]
        pq.write_table(pa.table({"emb": rows}), tmp_path / "x.parquet")
        with pytest.raises(StoreError, match=expecting("row 3", "1 items")):
            run(tmp_path / "x.parquet", tmp_path / "out", nan="drop")
