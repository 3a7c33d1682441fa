"""Verification of runs: recomputed labels, distances and losses are compared."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from by_hand import CONFIG, ROWS, write_run
from messages import expecting

import scrlm_dask
from scrlm_dask.errors import StoreError, UnusableRowsError
from scrlm_dask.events import PhaseFinished
from scrlm_dask.pipeline.stores import write_features
from scrlm_dask.pipeline.verify import verify_run


@pytest.fixture
def run(run_by_hand: Path, tmp_path: Path) -> Path:
    """Copy the run, so that a test can change it."""
    return Path(shutil.copytree(run_by_hand, tmp_path / "run"))


def change(run: Path, name: str, index: Any, value: float) -> None:
    zarr.open_array(run / name, mode="r+")[index] = value


def test_unchanged_run(run: Path) -> None:
    found = verify_run(run)
    assert found.ok
    assert found.rows == 6
    assert found.clusters == (0, 1)
    assert (found.wrong_labels, found.wrong_distances, found.wrong_clusters) == (0, 0, ())
    none = verify_run(run, blocks=0, losses=0)
    assert none.ok
    assert (none.blocks, none.rows, none.clusters) == ((), 0, ())


def test_changed_labels_and_distances(run: Path) -> None:
    change(run, "labels.zarr/labels", 4, 0)
    change(run, "labels.zarr/distances", 3, 0.5)
    found = verify_run(run, losses=0)
    assert not found.ok
    assert (found.wrong_labels, found.wrong_distances, found.first_wrong_row) == (1, 1, 3)


@pytest.mark.parametrize(("name", "value"), [("losses", -1.4), ("neighbors", 2)])
def test_changed_losses(run: Path, name: str, value: float) -> None:
    change(run, f"model.zarr/{name}", 1, value)
    found = verify_run(run, blocks=0)
    assert not found.ok
    assert found.first_wrong_row is None
    assert found.wrong_clusters == (1,)


def test_changed_centers(run: Path) -> None:
    # The second center is 30: rows 3 and 4 become outliers; row 5 stays one at a distance of 20.
    change(run, "model.zarr/centers", 1, 30.0)
    found = verify_run(run, losses=0)
    assert (found.wrong_labels, found.wrong_distances, found.first_wrong_row) == (2, 3, 3)


def test_features_that_cannot_be_compared(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    write_features(ROWS + np.float32(1), tmp_path / "x.zarr", overwrite=True)
    with pytest.raises(StoreError, match=expecting(tmp_path / "x.zarr")):
        verify_run(run)
    scrlm_dask.fit(ROWS, CONFIG, out=tmp_path / "other")
    with pytest.raises(StoreError, match="array"):  # the features were never stored
        verify_run(tmp_path / "other")


@pytest.mark.parametrize("name", ["x.zarr/features", "run/labels.zarr/labels"])
def test_input_that_changes_during_the_verification(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path)

    def change_back(event: object) -> None:
        """Write the same value again: the rows that were read may have been other rows."""
        if isinstance(event, PhaseFinished):
            array = zarr.open_array(tmp_path / name, mode="r+")
            array[0] = array[0]

    with pytest.raises(UnusableRowsError, match=f"{tmp_path}/{name.split('/')[0]}"):
        verify_run(run, listener=change_back)
