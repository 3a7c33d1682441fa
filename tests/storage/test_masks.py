"""Masked arrays are rejected at every entry point, unless no element is masked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from scrlm_dask import SCRLM, FitConfig, KMeans, KMeansConfig, fit, kmeans
from scrlm_dask.errors import InputError
from scrlm_dask.pipeline.evaluate import evaluate
from scrlm_dask.pipeline.stores import write_features
from scrlm_dask.storage.masks import remove_mask

ROWS = np.add(np.repeat([[0.0], [1.0], [10.0], [11.0]], 2, axis=0), [0.0, 0.1])
MASKED = np.ma.masked_array(ROWS, mask=np.arange(16).reshape(8, 2) == 7)  # in row 3
UNMASKED = np.ma.masked_array(ROWS, mask=False)
WEIGHTS = np.ma.masked_array(np.ones(8), mask=np.arange(8) == 3)
LABELS = np.ma.masked_array(np.zeros(8, np.int32), mask=np.arange(8) == 3)
CONFIG = FitConfig(rho=1.0, preprocess="none", n_candidates=4)
TWO = KMeansConfig(n_clusters=2, preprocess="none")


def hidden(values: Any) -> da.Array:
    """Return a Dask array whose blocks are masked arrays, although its type does not show it."""
    halves = [dask.delayed(values[:2]), dask.delayed(values[2:])]
    parts = [
        da.from_delayed(half, (n, *values.shape[1:]), values.dtype)
        for half, n in zip(halves, (2, len(values) - 2), strict=True)
    ]
    return da.concatenate(parts)


CALLS: dict[str, Callable[[Path], object]] = {
    "fit": lambda _: fit(MASKED, CONFIG),
    "fit dask": lambda _: fit(da.from_array(MASKED, chunks=(2, 2)), CONFIG),
    "fit hidden": lambda _: fit(hidden(MASKED), CONFIG),
    "estimator": lambda _: SCRLM(rho=1.0).fit(MASKED),
    "estimator list": lambda _: SCRLM(rho=1.0).fit(list(MASKED)),
    "predict list": lambda _: KMeans(2).fit(ROWS).predict(list(MASKED)),
    "predict": lambda _: SCRLM(rho=1.0).fit(ROWS).predict(MASKED),
    "predict dask": lambda _: KMeans(2).fit(ROWS).predict(hidden(MASKED)[2:]).compute(),
    "weights": lambda _: kmeans(ROWS, TWO, sample_weight=WEIGHTS),
    "weights dask": lambda _: kmeans(ROWS, TWO, sample_weight=da.from_array(WEIGHTS, chunks=2)),
    "weights hidden": lambda _: kmeans(ROWS, TWO, sample_weight=hidden(WEIGHTS)),
    "centers": lambda _: kmeans(
        ROWS, KMeansConfig(n_clusters=4, init="given"), centers=MASKED[3:7]
    ),
    "centers list": lambda _: kmeans(
        ROWS, KMeansConfig(n_clusters=4, init="given"), centers=list(MASKED[3:7])
    ),
    "estimator centers list": lambda _: KMeans(4, init=list(MASKED[3:7])).fit(ROWS),
    "estimator centers": lambda _: KMeans(4, init=MASKED[3:7]).fit(ROWS),
    "write": lambda path: write_features(MASKED, path / "a.zarr"),
    "write dask": lambda path: write_features(hidden(MASKED), path / "a.zarr"),
    "labels": lambda path: write_features(ROWS, path / "a.zarr", labels=LABELS),
    "labels dask": lambda path: write_features(ROWS, path / "a.zarr", labels=hidden(LABELS)),
}


@pytest.mark.parametrize("name", CALLS)
def test_masked_elements_are_rejected(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\bmasked\b.*\brow \d\b"):
        CALLS[name](tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_rows_are_numbered_in_the_whole_array(tmp_path: Path) -> None:
    for name in (
        "fit",
        "estimator list",
        "fit dask",
        "fit hidden",
        "weights hidden",
        "labels dask",
    ):
        with pytest.raises(InputError, match=r"\brow 3\b"):
            CALLS[name](tmp_path)


def test_masked_truth_is_rejected(run_by_hand: Path) -> None:
    truth = np.ma.masked_array(np.zeros(6, np.int64), mask=np.arange(6) == 5)
    with pytest.raises(InputError, match=r"\bmasked\b.*\brow 5\b"):
        evaluate(run_by_hand, truth)


@pytest.mark.parametrize("form", ["array", "dask"])
def test_a_mask_without_masked_elements_is_accepted(form: str) -> None:
    given = UNMASKED if form == "array" else da.from_array(UNMASKED, chunks=(2, 2))
    found, expected = kmeans(given, TWO), kmeans(ROWS, TWO)
    np.testing.assert_array_equal(found.model.centers, expected.model.centers)


def test_the_mask_of_an_array_without_masked_elements_is_removed() -> None:
    assert type(remove_mask(UNMASKED, "the array")) is np.ndarray
    assert remove_mask(ROWS, "the array") is ROWS
