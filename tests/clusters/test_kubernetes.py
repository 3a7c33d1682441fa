"""Manifests of clusters in Kubernetes: added settings, and rejected manifests.

`tests/deploy/test_manifests.py` validates the manifests of `deploy/` against published schemas.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from scrlm_dask.clusters.kubernetes import manifest
from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.errors import InputError

CLUSTER = Path(__file__).parents[2] / "deploy" / "kubernetes" / "cluster.yaml"


def read_worker(options: ClusterOptions, content: dict[str, Any]) -> dict[str, Any]:
    return manifest(options, content)["spec"]["worker"]


def test_number_of_workers_and_their_environment_are_added() -> None:
    content = yaml.safe_load(CLUSTER.read_text())
    worker = read_worker(ClusterOptions(cluster="kubernetes", nworkers=7), content)
    assert worker["replicas"] == 7
    (container,) = worker["spec"]["containers"]
    assert {"name": "OMP_NUM_THREADS", "value": "1"} in container["env"]
    assert content == yaml.safe_load(CLUSTER.read_text())  # the caller's manifest is unchanged


def test_settings_of_the_manifest_are_kept() -> None:
    content = yaml.safe_load(CLUSTER.read_text())
    own = {"name": "OMP_NUM_THREADS", "value": "3"}
    content["spec"]["worker"]["spec"]["containers"][0]["env"] = [own]
    worker = read_worker(ClusterOptions(cluster="kubernetes"), content)
    assert worker["replicas"] == content["spec"]["worker"]["replicas"]
    names = [variable["name"] for variable in worker["spec"]["containers"][0]["env"]]
    assert worker["spec"]["containers"][0]["env"][0] == own
    assert names.count("OMP_NUM_THREADS") == 1


@pytest.mark.parametrize(
    ("options", "content", "facts"),
    [
        ({}, {"kind": "Deployment"}, "(?=.*DaskCluster)(?=.*--cluster-config)(?!.*'spec')"),
        ({}, {"kind": "DaskCluster"}, "(?=.*DaskCluster)(?=.*'spec')"),
        ({"nthreads": 2}, {"kind": "DaskCluster"}, "(?=.*threads)(?=.*memory)(?=.*manifest)"),
        ({"require_tls": True}, {"kind": "DaskCluster"}, "(?=.*--tls)(?=.*NetworkPolicy)"),
    ],
)
def test_rejected_manifests(options, content, facts) -> None:
    with pytest.raises(InputError, match=facts):
        manifest(ClusterOptions(cluster="kubernetes", **options), content)
