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
from scrlm_dask.passes.scan import AUTO_MAPS, Scanned, scan_pass

RNG = np.random.default_rng(0)
X = RNG.permutation(np.repeat([[0.0] * 4, [100.0] * 4, [200.0] * 4], 30, axis=0))
X = X + RNG.normal(size=X.shape)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with backend("one thread"):
        yield


def scanned(
    block_rows: int,
    sizes: ScanSizes,
    blocks: list[int] | None = None,
    x: np.ndarray = X,
    **options: Any,
) -> tuple[Scanned, int]:
    config = FitConfig(**{"preprocess": "none", **options}).resolve(len(x))
    events: list[Any] = []
    with Execution(events.append) as execution:
        found = scan_pass(execution, as_features(x, block_rows), config, sizes, blocks)
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


def test_all_maps_are_tried_with_auto() -> None:
    rows = RNG.normal(size=(300, 20))
    found, _ = scanned(100, ScanSizes(300, 300, 0), x=rows, preprocess="auto")
    assert found.scan is not None
    assert tuple(trial.preprocess for trial in found.scan.maps) == AUTO_MAPS
    assert found.affine is found.scan.affine


@pytest.mark.parametrize("preprocess", ["standardize", "l2", "center", "none"])
def test_given_map_is_used(preprocess: str) -> None:
    rows = RNG.normal(size=(100, 4))
    found, _ = scanned(40, ScanSizes(100, 100, 0), x=rows, preprocess=preprocess)
    assert found.scan is not None
    assert found.affine.kind == preprocess
    assert found.scan.maps == ()


def test_unit_rows_use_directions() -> None:
    rows = RNG.normal(size=(200, 20))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    found, _ = scanned(90, ScanSizes(200, 200, 0), x=rows, preprocess="auto")
    assert found.affine.kind == "l2"
    assert found.affine.scale.tolist() == [1.0] * 20


def test_first_map_without_a_result() -> None:
    found, _ = scanned(40, ScanSizes(50, 50, 0), x=np.ones((50, 3)), preprocess="auto")
    assert found.scan is None
    assert found.affine.kind == AUTO_MAPS[0]


@pytest.mark.parametrize(
    ("extraction", "basis"), [("auto", "modularity"), ("residual", "persistent")]
)
def test_modularity_is_used_unless_extraction_is_given(extraction: str, basis: str) -> None:
    rows = RNG.normal(size=(300, 20))
    found, _ = scanned(90, ScanSizes(300, 300, 0), x=rows, extraction=extraction)
    assert found.scan is not None
    assert found.scan.choice.basis == basis
    assert (found.scan.levels is None) == (basis == "persistent")
