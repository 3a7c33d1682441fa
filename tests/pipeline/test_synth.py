"""Samples of the mixture of the paper: features, true labels and invalid sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from backends import backend
from messages import expecting

from scrlm_dask import MixtureSpec, synth
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.kernels.randomness.synthesis import synth_block, true_mixture

SPEC = MixtureSpec(n_features=4, n_clusters=3, outliers=0.25, seed=7)
ROWS = 2500


def test_store_contains_the_rows_and_the_truth(tmp_path: Path) -> None:
    with backend("one thread"):
        url = synth(tmp_path / "x.zarr", ROWS, SPEC)
    assert url == str(tmp_path / "x.zarr")
    group, truth = zarr.open_group(url, mode="r"), true_mixture(SPEC)
    drawn = synth_block(SPEC, truth, 0, ROWS)
    np.testing.assert_array_equal(group["features"][:], drawn.features)
    np.testing.assert_array_equal(group["labels"][:], drawn.labels)
    assert 0.2 < np.mean(group["labels"][:] == -1) < 0.3
    for name in ("weights", "means", "sigmas"):
        np.testing.assert_array_equal(group[f"true_{name}"][:], getattr(truth, name))
    assert group.attrs["complete"] is True
    assert group.attrs["mixture"]["seed"] == 7


def test_chunks_contain_complete_strata_and_do_not_change_rows(tmp_path: Path) -> None:
    # With 16 bytes per row 1100 rows fit; a stratum has 1024 rows.
    small, large = tmp_path / "small.zarr", tmp_path / "large.zarr"
    synth(small, ROWS, SPEC, chunk_bytes=16 * 1100)
    synth(large, ROWS, SPEC)
    arrays = [zarr.open_array(path / "features", mode="r") for path in (small, large)]
    assert [array.chunks for array in arrays] == [(2048, 4), (ROWS, 4)]
    np.testing.assert_array_equal(arrays[0][:], arrays[1][:])


def test_rejected_sizes_and_outputs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=expecting(0, 1)):
        synth(tmp_path / "x.zarr", 0, SPEC)
    assert not (tmp_path / "x.zarr").exists()
    synth(tmp_path / "x.zarr", 10, SPEC)
    with pytest.raises(StoreError, match=expecting(tmp_path / "x.zarr")):
        synth(tmp_path / "x.zarr", 20, SPEC)
    synth(tmp_path / "x.zarr", 20, SPEC, overwrite=True)
    assert zarr.open_array(tmp_path / "x.zarr/features", mode="r").shape == (20, 4)
