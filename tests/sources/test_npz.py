"""Members of .npz archives: choice of the member, and reading of compressed members."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scrlm_dask.errors import InputError
from scrlm_dask.sources.npz import open_npz

X = np.arange(40, dtype=np.float32).reshape(10, 4)


def test_choice_of_the_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", train=X, test=X[:2], kinds=X[:, 0])
    path = str(tmp_path / "x.npz")
    with pytest.raises(InputError, match=r"2 tables \(test, train\).* --dataset"):
        open_npz(path)
    with pytest.raises(InputError, match=r"(?=.*'no')(?=.*test)"):
        open_npz(path, "no")
    assert open_npz(path, "test").n_features == 4


def test_compressed_member_is_read_from_any_row(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=X)
    source = open_npz(str(tmp_path / "x.npz"))
    assert (source.unit_rows, source.streams) == (10, True)
    np.testing.assert_array_equal(source.read(7, 9), X[7:9])
    assert source.read(4, 4).shape == (0, 4)
    np.testing.assert_array_equal(np.concatenate(list(source.batches(3, 10, 4))), X[3:])
