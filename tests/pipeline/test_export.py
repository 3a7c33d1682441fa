"""Exports of a run with known labels, and files that an export does not overwrite."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import zarr
from by_hand import DISTANCES, LABELS, MARGINS
from messages import expecting

import scrlm_dask
from scrlm_dask.errors import InputError, StoreError, UnusableRowsError
from scrlm_dask.pipeline.export import _without_formulas, export
from scrlm_dask.pipeline.run import Run
from scrlm_dask.pipeline.stores import write_features


@pytest.fixture
def run(run_by_hand: Path) -> Path:
    return run_by_hand


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_table_has_one_line_per_row(run: Path, tmp_path: Path, form: str) -> None:
    found = export(run, tmp_path / "out", table=form)
    assert (found.n_rows, found.n_clusters, found.ids) == (6, 2, False)
    read = pyarrow.csv.read_csv if form == "csv" else pyarrow.parquet.read_table
    assert read(tmp_path / "out" / f"labels.{form}").to_pydict() == {
        "store_row": [0, 1, 2, 3, 4, 5],
        "label": LABELS,
        "distance": DISTANCES,
        "margin": MARGINS,
    }


def test_centers_are_in_the_units_of_the_features(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert {"labels.parquet", "centers.npy", "centers.fbin"} <= set(export(run, out).files)
    assert np.load(out / "centers.npy").tolist() == [[1.0], [10.0]]
    raw = (out / "centers.fbin").read_bytes()
    assert np.frombuffer(raw, "<u4", 2).tolist() == [2, 1]  # clusters, features
    assert np.frombuffer(raw, "<f4", offset=8).tolist() == [1.0, 10.0]
    record = json.loads((out / "export.json").read_text())
    assert (record["run"], record["status"]) == (str(run), "complete")


def test_rejected_outputs(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(run, out)
    with pytest.raises(StoreError, match=expecting(out)):
        export(run, out, table="csv")
    assert not (out / "labels.csv").exists()
    export(run, out, table="csv", overwrite=True)
    assert not (out / "labels.parquet").exists()
    with pytest.raises((InputError, StoreError), match=expecting(run)):
        export(run, run / "inside")
    with pytest.raises(InputError, match=expecting("'xls'", "parquet", "csv")):
        export(run, tmp_path / "other", table="xls")
    with pytest.raises(StoreError, match=expecting(tmp_path / "none")):
        export(tmp_path / "none", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_faiss_index_of_normalized_rows(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    rows = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    config = scrlm_dask.KMeansConfig(5, "random", preprocess="l2")
    write_features(rows, tmp_path / "x.zarr")
    scrlm_dask.kmeans(tmp_path / "x.zarr", config, out=tmp_path / "run")
    export(tmp_path / "run", tmp_path / "out", table="csv")
    _, nearest = faiss.read_index(str(tmp_path / "out" / "centers.faiss")).search(rows, 1)
    labels = zarr.open_array(tmp_path / "run/labels.zarr/labels", mode="r")[:]
    assert np.array_equal(nearest[:, 0], labels)


@pytest.mark.parametrize("name", ["labels.zarr/distances", "model.zarr/centers"])
def test_input_that_changes_during_the_export(
    run: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(run, tmp_path / "run")

    def write(*args: object) -> list[str]:
        zarr.open_array(run / name, mode="r+")[0] = 1
        return []

    monkeypatch.setattr("scrlm_dask.pipeline.export._write_centers", write)
    with pytest.raises(UnusableRowsError, match=f"{run}/{name.split('/')[0]}"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("folder", ["labels.zarr/labels", "labels.zarr/labels/c", "model.zarr"])
def test_links_in_a_run_to_other_folders_are_not_followed(
    run: Path, tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of another author could otherwise contain a link to /proc, and an export hang."""
    run = shutil.copytree(run, tmp_path / "run")
    (tmp_path / "other").mkdir()
    (run / folder / "link").symlink_to(tmp_path / "other")

    def write(*args: object) -> list[str]:
        (tmp_path / "other/file").touch()
        return []

    monkeypatch.setattr("scrlm_dask.pipeline.export._write_centers", write)
    export(run, tmp_path / "out")


@pytest.mark.parametrize("change", [{"shape": [0]}, {"data_type": "complex64"}])
@pytest.mark.parametrize("name", ["distances", "margins"])
def test_columns_unlike_the_labels_are_rejected(
    run: Path, tmp_path: Path, name: str, change: dict[str, Any]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    metadata = copy / "labels.zarr" / name / "zarr.json"
    fill = {"fill_value": [0, 0]} if "data_type" in change else {}
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | change | fill))
    with pytest.raises(StoreError, match=expecting(name, "shape", "dtype")):
        export(copy, tmp_path / "out")
    with pytest.raises(StoreError, match=expecting(name, "shape", "dtype")):
        getattr(Run(copy), name)


def test_labels_are_joined_with_the_source_rows(tmp_path: Path) -> None:
    kinds = np.repeat([0, 1, 2], 40)
    rows = np.random.default_rng(0).normal(size=(120, 4)) + 50 * kinds[:, None]
    rows[7] = np.nan
    np.save(tmp_path / "x.npy", rows)
    config = scrlm_dask.IngestConfig(shuffle=True, nan="drop")
    scrlm_dask.ingest(tmp_path / "x.npy", tmp_path / "x.zarr", config, listener=lambda event: None)
    scrlm_dask.kmeans(tmp_path / "x.zarr", scrlm_dask.KMeansConfig(3), out=tmp_path / "run")
    export(tmp_path / "run", tmp_path / "out")
    table = pyarrow.parquet.read_table(tmp_path / "out" / "labels.parquet")
    source_rows, labels = table["source_row"].to_numpy(), table["label"].to_numpy()
    assert sorted(source_rows) == sorted({*range(120)} - {7})
    assert len(set(zip(kinds[source_rows], labels, strict=True))) == 3
    assert set(table["source_file"].to_pylist()) == {str(tmp_path / "x.npy")}


@pytest.mark.parametrize("read", ["features", "features/features"])
def test_features_stores_may_be_called_features(tmp_path: Path, read: str) -> None:
    np.save(tmp_path / "x.npy", np.arange(24.0).reshape(6, 4))
    store, run = tmp_path / "features", tmp_path / "run"
    scrlm_dask.ingest(tmp_path / "x.npy", store, scrlm_dask.IngestConfig(shuffle=True))
    scrlm_dask.kmeans(tmp_path / read, scrlm_dask.KMeansConfig(1), out=run)
    export(run, tmp_path / "out")
    table = pyarrow.parquet.read_table(tmp_path / "out/labels.parquet")
    source_row = zarr.open_array(store / "source_row", mode="r")[:]
    assert table["source_row"].to_pylist() == source_row.tolist()


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_names_of_source_files_that_are_not_utf8(tmp_path: Path, form: str) -> None:
    for number in range(2):
        with (tmp_path / os.fsdecode(b"\xff%d.npy" % number)).open("wb") as file:
            np.save(file, np.eye(3)[number:])
    scrlm_dask.ingest(sorted(tmp_path.glob("*.npy")), tmp_path / "x.zarr")
    scrlm_dask.kmeans(tmp_path / "x.zarr", scrlm_dask.KMeansConfig(2), out=tmp_path / "run")
    export(tmp_path / "run", tmp_path / "out", table=form)
    read = pyarrow.csv.read_csv if form == "csv" else pyarrow.parquet.read_table
    files = read(tmp_path / "out" / f"labels.{form}")["source_file"].to_pylist()
    assert files == [f"{tmp_path}/\\udcff{number}.npy" for number in (0, 0, 0, 1, 1)]


def test_labels_are_not_joined_with_a_store_that_was_ingested_again(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(120, 4)) + 50 * np.repeat([0, 1, 2], 40)[:, None]
    np.save(tmp_path / "x.npy", rows)
    np.save(tmp_path / "ids.npy", np.arange(120))

    def ingest(seed: int) -> None:
        config = scrlm_dask.IngestConfig(shuffle=True, seed=seed, ids=str(tmp_path / "ids.npy"))
        scrlm_dask.ingest(tmp_path / "x.npy", tmp_path / "x.zarr", config, overwrite=True)

    ingest(0)
    scrlm_dask.kmeans(tmp_path / "x.zarr", scrlm_dask.KMeansConfig(3), out=tmp_path / "run")
    assert export(tmp_path / "run", tmp_path / "before").ids
    ingest(1)
    with pytest.warns(scrlm_dask.ScrlmWarning, match=f"{tmp_path}/x.zarr"):
        found = export(tmp_path / "run", tmp_path / "after")
    assert not found.ids
    table = pyarrow.parquet.read_table(tmp_path / "after" / "labels.parquet")
    assert table.column_names == ["store_row", "label", "distance", "margin"]
    ingest(0)  # the same rows in the same order
    assert export(tmp_path / "run", tmp_path / "again").ids


FORMULAS = [
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t1",
    "\r1",
    "'=1",
    " =1",
    "\uff1d1",
    "' \uff0b1",
    "\x0b=1",
    "\xa0=1",
    "\u200b \ufeff=1",
    "'plain",
    "a =1",
    "a=1",
    "<script>",
    "é",
    "",
]


@pytest.mark.filterwarnings("ignore::scrlm_dask.ScrlmWarning")
def test_ids_in_csv_are_not_formulas(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(len(FORMULAS), 2)).astype(np.float32)
    np.save(tmp_path / "x.npy", rows)
    np.save(tmp_path / "ids.npy", np.array(FORMULAS))
    config = scrlm_dask.IngestConfig(ids=str(tmp_path / "ids.npy"))
    scrlm_dask.ingest([tmp_path / "x.npy"], tmp_path / "x.zarr", config)
    scrlm_dask.fit(tmp_path / "x.zarr", scrlm_dask.FitConfig(rho=5.0), out=tmp_path / "run")
    notes: list[Any] = []
    export(tmp_path / "run", tmp_path / "csv", table="csv", listener=notes.append)
    assert [re.findall(r"^\d+", note.text) for note in notes if note.warning] == [["13"]]
    with (tmp_path / "csv" / "labels.csv").open(newline="") as file:
        ids = [row["id"] for row in csv.DictReader(file)]
    quoted = [f"'{name}" for name in FORMULAS[:13]]
    assert ids == quoted + FORMULAS[13:]
    ignored = "[\\s\u200b\ufeff]*"
    original = re.compile(f"\\A'('*{ignored}[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20])")
    assert [original.sub(r"\1", name) for name in ids] == FORMULAS
    export(tmp_path / "run", tmp_path / "parquet")
    table = pyarrow.parquet.read_table(tmp_path / "parquet" / "labels.parquet")
    assert table["id"].to_pylist() == FORMULAS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a;=cmd|' /C calc'!A0;b", "a;'=cmd|' /C calc'!A0;b"),
        ("a;'=1; +1", "a;''=1;' +1"),
        ('a;"=1', "a;'\"=1"),
        ("a\t=1\n@x", "a\t'=1\n'@x"),
        ("\t=1", "'\t'=1"),
        ("=1;\xa0=1", "'=1;'\xa0=1"),
        *((text, text) for text in ("a;b=1", "a;1", "x;'y", "a,=1", ";")),
    ],
)
def test_cells_after_separators_are_not_formulas(text: str, expected: str) -> None:
    rows, _ = _without_formulas(pyarrow.table({"id": [text]}))
    assert rows["id"].to_pylist() == [expected]
    restored = re.sub("""([;\t\r\n])'(['"]*\\s*['"]*[=+@-])""", r"\1\2", expected)
    assert re.sub(r"\A'(\s*=)", r"\1", restored) == text


@pytest.mark.parametrize(("are_missing", "fact"), [(True, "c/0"), (False, "(5,)")])
def test_ids_of_other_software_that_do_not_fit(
    tmp_path: Path, are_missing: bool, fact: str
) -> None:
    group = zarr.create_group(tmp_path / "x.zarr")
    group.create_array("features", data=np.eye(4, dtype=np.float32), chunks=(2, 4))
    if are_missing:
        ids = group.create_array("ids", shape=(4,), chunks=(1,), shards=(4,), dtype="int64")
        ids[:2] = [5, 6]  # the other chunks of the shard would be read as 0
    else:
        group.create_array("ids", data=np.arange(5))
    scrlm_dask.kmeans(tmp_path / "x.zarr", scrlm_dask.KMeansConfig(2), out=tmp_path / "run")
    given = expecting(tmp_path / "x.zarr/ids", fact)
    with pytest.warns(scrlm_dask.ScrlmWarning, match=given):
        assert not export(tmp_path / "run", tmp_path / "out").ids


@pytest.mark.filterwarnings("ignore::scrlm_dask.ScrlmWarning")
def test_numeric_ids_in_csv_stay_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(3, dtype=np.float32))
    np.save(tmp_path / "ids.npy", np.array([-1, 0, 7]))
    config = scrlm_dask.IngestConfig(ids=str(tmp_path / "ids.npy"))
    scrlm_dask.ingest([tmp_path / "x.npy"], tmp_path / "x.zarr", config)
    scrlm_dask.fit(tmp_path / "x.zarr", scrlm_dask.FitConfig(rho=5.0), out=tmp_path / "run")
    export(tmp_path / "run", tmp_path / "csv", table="csv")
    table = pyarrow.csv.read_csv(tmp_path / "csv" / "labels.csv")
    assert table["id"].to_pylist() == [-1, 0, 7]
