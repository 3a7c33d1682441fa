"""`Run`: model, labels and verbs of a complete run, on a run computed by hand."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr
from backends import backend
from by_hand import LABELS as LABEL_LIST
from messages import expecting

import scrlm_dask
from scrlm_dask import FitConfig, Run
from scrlm_dask.errors import InputError, StoreError

LABELS = np.array(LABEL_LIST)
ROWS = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


@pytest.fixture
def run(run_by_hand: Path) -> Run:
    return Run(run_by_hand)


def test_a_run_has_model_labels_and_record(run: Run, run_by_hand: Path) -> None:
    assert run.path == str(run_by_hand)
    assert run.record == json.loads((run_by_hand / "run.json").read_text())
    assert run.model.n_clusters == run.record["clusters"]
    assert run.model is run.model  # loaded once
    assert str(run_by_hand) in repr(run)


def test_unknown_method_of_an_edited_record_is_rejected(run_by_hand: Path, tmp_path: Path) -> None:
    path = tmp_path / "run\x1b"
    shutil.copytree(run_by_hand, path)
    assert "\x1b" not in repr(Run(path))
    record = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(record | {"method": "\x1b[2J"}))
    with pytest.raises(StoreError, match=expecting("method")):
        Run(path)
    run = Run(run_by_hand)
    run.record["method"] = "\x1b[2J"  # changed after it was read
    assert r"\x1b[2J" in repr(run)


def test_labels_are_lazy_and_those_of_the_store(run: Run, run_by_hand: Path) -> None:
    stored = zarr.open_group(run_by_hand / "labels.zarr", mode="r")
    for name in ("labels", "distances", "margins"):
        column = getattr(run, name)
        assert isinstance(column, da.Array)
        np.testing.assert_array_equal(column.compute(), stored[name][:])
    np.testing.assert_array_equal(run.labels.compute(), LABELS)
    np.testing.assert_array_equal(run.labels[1:3].compute(), LABELS[1:3])


@pytest.mark.cluster
def test_workers_read_the_labels(run: Run) -> None:
    with backend("two workers of two threads"):
        np.testing.assert_array_equal(run.labels.compute(), LABELS)


def test_margins_are_none_if_the_run_has_none(tmp_path: Path) -> None:
    scrlm_dask.fit(ROWS, FitConfig(rho=0.5, margins=False), out=tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.margins is None
    assert run.distances is not None


def test_methods_are_those_of_the_functions(run: Run, tmp_path: Path) -> None:
    assert run.evaluate().scores == scrlm_dask.evaluate(run.path).scores
    assert run.evaluate(LABELS).scores.accuracy == 1.0
    assert run.verify().ok
    assert run.cut(1, out=tmp_path / "coarse.zarr").counts.sum() == (LABELS >= 0).sum()
    assert scrlm_dask.evaluate(tmp_path / "coarse.zarr", LABELS).scores.n_clusters == 1
    assert run.export(tmp_path / "tables", table="csv").files[0] == "labels.csv"
    assert Path(run.report(tmp_path / "page.html").page).is_file()


def test_a_report_compares_with_other_runs(run: Run, run_by_hand: Path, tmp_path: Path) -> None:
    shutil.copytree(run_by_hand, tmp_path / "second")
    page = run.report(tmp_path / "both.html", others=[tmp_path / "second"]).page
    assert "second" in Path(page).read_text()


def test_predict_collects_labels_unless_there_is_an_output(run: Run, tmp_path: Path) -> None:
    rows = scrlm_dask.FeatureStore(Path(run.record["features"]["path"]))
    collected = run.predict(rows)
    assert collected.labels is not None
    np.testing.assert_array_equal(collected.labels, LABELS)
    written = run.predict(rows, out=tmp_path / "labels.zarr")
    assert written.labels is None
    np.testing.assert_array_equal(written.counts, collected.counts)
    both = run.predict(rows, out=tmp_path / "labels.zarr", overwrite=True, collect_labels=True)
    np.testing.assert_array_equal(both.labels, LABELS)
    np.testing.assert_array_equal(run.model.predict(rows).labels, LABELS)


def test_storage_options_are_used_and_hidden(run_by_hand: Path) -> None:
    run = Run(run_by_hand, storage_options={"key": "s3cr3t"})
    assert "s3cr3t" not in repr(run) + repr(vars(run))
    assert run.location.options.reveal() == {"key": "s3cr3t"}


def test_a_run_can_be_sent_to_a_worker(run: Run) -> None:
    again: Run = pickle.loads(pickle.dumps(run))
    assert again.record == run.record


def test_a_missing_run_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        Run(tmp_path / "nowhere")


def test_an_unfinished_run_is_rejected(run_by_hand: Path, tmp_path: Path) -> None:
    shutil.copytree(run_by_hand, tmp_path / "run")
    record = tmp_path / "run" / "run.json"
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "status": "interrupted"}))
    with pytest.raises(StoreError, match="interrupted"):
        Run(tmp_path / "run")
    record.write_text(json.dumps({**content, "phases": 3}))
    with pytest.raises(StoreError, match="'phases'"):
        Run(tmp_path / "run")


def test_a_cut_to_more_clusters_is_rejected(run: Run) -> None:
    with pytest.raises(InputError, match="77"):
        run.cut(77)
