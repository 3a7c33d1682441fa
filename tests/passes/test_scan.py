"""The scan of rho on a sample of rows in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from backends import backend

from scrlm_dask.config import FitConfig
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import as_features
from scrlm_dask.events import BlockDone
from scrlm_dask.kernels.bandwidth.search import ScanSizes
from scrlm_dask.passes.scan import Scanned, scan_pass

RNG = np.random.default_rng(0)
X = RNG.permutation(np.repeat([[0.0] * 4, [100.0] * 4, [200.0] * 4], 30, axis=0))
X = X + RNG.normal(size=X.shape)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with backend("one thread"):
        yield


def scanned(
    block_rows: int, sizes: ScanSizes, blocks: list[int] | None = None, **options: Any
) -> tuple[Scanned, int]:
    config = FitConfig(**{"preprocess": "none", **options}).resolve(len(X))
    events: list[Any] = []
    with Execution(events.append) as execution:
        found = scan_pass(execution, as_features(X, block_rows), config, sizes, blocks)
    return found, sum(event.rows for event in events if isinstance(event, BlockDone))


def test_sample_does_not_depend_on_the_blocks() -> None:
    sizes = ScanSizes(candidates=40, judged=60, held_out=0)
    (one, _), (many, _) = scanned(90, sizes), scanned(7, sizes)
    assert one.scan is not None
    assert many.scan is not None
    assert one.scan.choice == many.scan.choice
    np.testing.assert_array_equal(one.rows, many.rows)
    np.testing.assert_array_equal(one.scan.found.centers, many.scan.found.centers)
    assert (one.n_blocks, many.n_blocks) == (1, 13)
    assert len(set(one.rows.tolist())) == 60


def test_positions_refer_to_the_returned_rows() -> None:
    found, _ = scanned(20, ScanSizes(60, 60, 0))
    assert found.scan is not None
    centers = found.scan.found.centers
    assert sorted(np.round(centers[:, 0] / 100)) == [0, 1, 2]
    initial = X[found.rows[found.scan.found.positions]]
    assert np.abs(initial - centers).max() < 10.0  # each center moved within its group


def test_only_the_given_blocks_are_used() -> None:
    found, read = scanned(20, ScanSizes(10, 25, 0), blocks=[1, 4], preprocess="center")
    assert read == 20 + 10  # the last block is smaller
    assert found.n_blocks == 2
    inside = np.concatenate([np.arange(20, 40), np.arange(80, 90)])
    assert set(found.rows.tolist()) <= set(inside.tolist())
    np.testing.assert_allclose(found.affine.shift, X[inside].mean(axis=0))
