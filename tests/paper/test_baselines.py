"""All methods label an easy mixture correctly; missing packages are reported."""

from __future__ import annotations

import re
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pytest

from scrlm_dask.engine.threads import pinned_threads
from scrlm_dask.errors import InputError
from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.evaluation.metrics import contingency, scores
from scrlm_dask.kernels.randomness.synthesis import (
    MixtureSpec,
    SynthBlock,
    synth_block,
    true_mixture,
)
from scrlm_dask.paper.baselines import METHODS, find_missing_requirement

NAMES = (
    *("scrlm", "scrlm+kmeans", "k-means++", "complete-linkage", "spectral", "em"),
    *("t-sne+k-means++", "td", "hdbscan", "minibatch"),
    *("faiss", "faiss-superkmeans", "dask-ml", "superkmeans"),
)


def draw_mixture(n_clusters: int, outliers: float) -> SynthBlock:
    spec = MixtureSpec(40, n_clusters, outliers)
    return synth_block(spec, true_mixture(spec), 0, 300)


def test_names() -> None:
    assert tuple(METHODS) == NAMES
    assert all(name == method.name for name, method in METHODS.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore")  # warnings of other packages
def test_easy_mixture(name: str) -> None:
    reason = find_missing_requirement(name)
    if reason is not None:
        pytest.skip(reason)
    block = draw_mixture(2, 0.0)
    # Tasks of experiments also run with one thread. For 300 rows, more threads would be slower.
    with pinned_threads():
        labels = METHODS[name].fit(block.features, 2, 0)
        again = METHODS[name].fit(block.features, 2, 0)
    assert labels.dtype == np.int64
    assert labels.shape == (300,)
    assert scores(contingency(block.labels, labels)).accuracy == 1.0
    assert np.array_equal(again, labels)


@pytest.mark.parametrize("name", [name for name, m in METHODS.items() if m.finds_outliers])
def test_methods_with_outliers_find_them(name: str) -> None:
    block = draw_mixture(3, 0.3)
    found = scores(contingency(block.labels, METHODS[name].fit(block.features, 3, 0)))
    assert found.outlier_precision == 1.0
    assert found.outlier_recall > 0.9


@pytest.mark.parametrize("name", ["k-means++", "td", "em"])
def test_other_methods_have_no_outliers(name: str) -> None:
    labels = METHODS[name].fit(draw_mixture(3, 0.3).features, 4, 0)
    assert not METHODS[name].finds_outliers
    assert OUTLIER not in labels
    assert labels.max() == 3


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "superkmeans", None)
    assert "superkmeans" in str(find_missing_requirement("superkmeans"))
    assert find_missing_requirement("td") is None


def test_outdated_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ModuleType("faiss")
    old.__spec__ = ModuleSpec("faiss", None)
    monkeypatch.setitem(sys.modules, "faiss", old)
    assert find_missing_requirement("faiss") is None
    assert re.search(
        r"\bfaiss-cpu\b.*\b1\.15\b", str(find_missing_requirement("faiss-superkmeans"))
    )


def test_unknown_method_is_rejected() -> None:
    with pytest.raises(InputError, match=r"(?=.*'dbscan')(?=.*\bscrlm, .*, superkmeans\b)"):
        find_missing_requirement("dbscan")
