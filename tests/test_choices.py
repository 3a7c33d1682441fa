"""Each list of choices contains exactly the values that its setting accepts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from messages import expecting

from scrlm_dask import choices
from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
from scrlm_dask.errors import InputError
from scrlm_dask.kernels.distances.preprocessing import block_moments, fit_map, needs_moments
from scrlm_dask.sources.registry import FORMATS


@pytest.mark.parametrize("kind", choices.PREPROCESS_KINDS)
def test_preprocessing(kind: Any) -> None:
    assert FitConfig(preprocess=kind).preprocess == KMeansConfig(preprocess=kind).preprocess == kind
    moments = block_moments(np.ones((3, 2))) if needs_moments(kind) else None
    assert fit_map(kind, 2, moments).kind == kind


@pytest.mark.parametrize(
    ("config", "name", "words"),
    [
        (KMeansConfig, "init", choices.INIT_KINDS),
        (FitConfig, "extraction", choices.EXTRACTIONS),
        (LloydConfig, "persist", choices.PERSIST_KINDS),
    ],
)
def test_configs_accept_only_the_listed_values(
    config: Any, name: str, words: tuple[str, ...]
) -> None:
    given = {} if config is LloydConfig else {"n_clusters": 3}
    assert [getattr(config(**given, **{name: word}), name) for word in words] == [*words]
    with pytest.raises(InputError, match=expecting(name, "'other'", words[0])):
        config(**given, **{name: "other"})


def test_every_file_format_is_a_choice() -> None:
    files = [name for name in choices.INGEST_FORMATS if name in FORMATS]
    assert files == list(FORMATS)  # in the order in which they are detected


def test_every_cluster_kind_is_an_option() -> None:
    assert set(choices.JOB_QUEUES) < set(choices.CLUSTER_KINDS)
    assert len(set(choices.CLUSTER_KINDS)) == len(choices.CLUSTER_KINDS)
    for kind in choices.CLUSTER_KINDS:
        assert ClusterOptions(cluster=kind).cluster == kind
