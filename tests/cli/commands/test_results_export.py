"""`scrlm export`: exported files contain the same values as the run."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import zarr

from scrlm_dask.storage.model_store import load_model


@pytest.fixture(scope="module")
def named(tmp_path_factory, scrlm, rows):
    """A run on shuffled features whose rows have ids."""
    folder = tmp_path_factory.mktemp("named")
    np.save(folder / "x.npy", rows[:900])
    np.save(folder / "ids.npy", np.array([f"item <{i}>" for i in range(900)]))
    store, run = folder / "named.zarr", folder / "run"
    scrlm("ingest", folder / "x.npy", store, "--ids", folder / "ids.npy", "--shuffle",
          "--nworkers", 0).ok()  # fmt: skip
    scrlm("fit", store, "--out", run, "--clusters", 10, "--block-rows", 400, "--nworkers", 0).ok()
    return store, run


@pytest.fixture(scope="module")
def export(invoke):
    """`scrlm export`, which needs no cluster."""
    return partial(invoke, "export", threads=False)


def _column(path: Path, name: str) -> np.ndarray:
    return zarr.open_array(path / name, mode="r")[:]


def test_parquet_contains_every_row_with_its_id(export, named, tmp_path):
    store, run = named
    done = export(run, "--out", tmp_path / "x", "--json").json()
    assert done["rows"] == 900
    assert done["ids"] is True
    table = pyarrow.parquet.read_table(tmp_path / "x" / "labels.parquet")
    names = ["store_row", "source_row", "source_file", "id", "label", "distance", "margin"]
    assert table.column_names == names
    assert table["store_row"].to_pylist() == list(range(900))
    ids = [str(name) for name in _column(store, "ids")]
    assert sorted(ids) != ids  # shuffled: a wrong order would show
    assert table["id"].to_pylist() == ids
    for name, column in (("label", "labels"), ("distance", "distances"), ("margin", "margins")):
        assert np.array_equal(
            table[name].to_numpy(), _column(run / "labels.zarr", column), equal_nan=True
        )


def test_csv_contains_the_same_values(export, named, tmp_path):
    _, run = named
    export(run, "--out", tmp_path / "x", "--format", "csv").ok()
    table = pyarrow.csv.read_csv(tmp_path / "x" / "labels.csv")
    labels = _column(run / "labels.zarr", "labels")
    assert table["label"].to_pylist() == labels.tolist()
    assert (labels == -1).any()
    assert np.allclose(table["distance"].to_numpy(), _column(run / "labels.zarr", "distances"))


def test_centers_in_three_forms(export, named, tmp_path):
    faiss = pytest.importorskip("faiss")
    store, run = named
    out = tmp_path / "x"
    done = export(run, "--out", out, "--json").json()
    assert done["files"] == ["labels.parquet", "centers.npy", "centers.fbin", "centers.faiss"]
    centers = load_model(run).centers
    assert np.array_equal(np.load(out / "centers.npy"), centers)
    raw = (out / "centers.fbin").read_bytes()
    assert np.frombuffer(raw[:8], "<u4").tolist() == list(centers.shape)
    assert np.array_equal(
        np.frombuffer(raw[8:], "<f4").reshape(centers.shape), centers.astype("<f4")
    )
    # The index accepts rows as stored, without the preprocessing of the model.
    x, labels = _column(store, "features"), _column(run / "labels.zarr", "labels")
    squares, nearest = faiss.read_index(str(out / "centers.faiss")).search(x, 1)
    inside = labels >= 0
    assert np.array_equal(nearest[inside, 0], labels[inside])
    distances = _column(run / "labels.zarr", "distances")
    assert np.allclose(np.sqrt(squares[inside, 0]), distances[inside], rtol=1e-3)


def test_ids_are_omitted_without_the_features(export, named, tmp_path):
    _, run = named
    mine = Path(shutil.copytree(run, tmp_path / "run"))
    record = json.loads((mine / "run.json").read_text())
    record["features"]["path"] = str(tmp_path / "gone.zarr")
    (mine / "run.json").write_text(json.dumps(record))
    done = export(mine, "--out", tmp_path / "x", "--json")
    assert re.search(r"\bids\b", done.stderr)
    assert "gone.zarr" in done.stderr
    assert done.json()["ids"] is False
    table = pyarrow.parquet.read_table(tmp_path / "x" / "labels.parquet")
    assert table.column_names == ["store_row", "label", "distance", "margin"]


def test_rejected_arguments(export, named, tmp_path):
    _, run = named
    export(tmp_path / "no", "--out", tmp_path / "x").rejected(str(tmp_path / "no"))
    (tmp_path / "empty").mkdir()
    export(tmp_path / "empty", "--out", tmp_path / "x").rejected(
        str(tmp_path / "empty"), "run.json"
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    export(run, "--out", tmp_path / "mine", "--overwrite").rejected(str(tmp_path / "mine"))
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    message = export(run, "--out", run / "x").rejected(str(run / "x"))
    assert message.count(str(run)) == 2  # the output and the run that contains it
    export(run, "--out", run.parent).rejected(str(run), str(run.parent))
    export(run, "--out", tmp_path / "x").ok()
    export(run, "--out", tmp_path / "x").rejected("--overwrite")
    export(run, "--out", tmp_path / "x", "--format", "csv", "--overwrite").ok()
    assert not (tmp_path / "x" / "labels.parquet").exists()
    export(run, "--out", tmp_path / "y", "--format", "xls").rejected(code=2)
