"""Arguments of ssh clusters."""

from __future__ import annotations

import dask
import pytest

from scrlm_dask.clusters import ssh
from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.errors import InputError


def test_required_tls_needs_certificates() -> None:
    with pytest.raises(InputError, match=r"(?=.*--require-tls)(?=.*--tls-ca-file)(?=.*--tls-cert)"):
        ssh.arguments(ClusterOptions(cluster="ssh", require_tls=True), {"hosts": ["a", "b"]})
    given = ssh.arguments(
        ClusterOptions(cluster="ssh", tls_ca_file="ca.pem", tls_cert="cert.pem"),
        {"hosts": ["a", "b"]},
    )
    assert given["scheduler_options"]["protocol"] == given["worker_options"]["protocol"] == "tls"
    assert given["connect_options"]["connect_timeout"] < 30


def test_options_override_the_file() -> None:
    options = ClusterOptions(cluster="ssh", nthreads=2, memory_limit="1GB")
    config = {
        "hosts": ["a", "b"],
        "connect_options": {"username": "ann", "connect_timeout": 5},
        "worker_options": {"nthreads": 8, "memory_limit": "9GB", "preload": ["mine"]},
        "scheduler_options": {"port": 8786},
    }
    with dask.config.set({"scrlm.read-ahead": 1}):
        given = ssh.arguments(options, config)
    assert given == {
        "hosts": ["a", "b"],
        "connect_options": {"username": "ann", "connect_timeout": 5},
        # one more thread, which prefetches
        "worker_options": {
            "nthreads": 3,
            "memory_limit": 10**9,
            "preload": ["mine", "scrlm_dask.preload"],
        },
        "scheduler_options": {"port": 8786},
    }


def test_connect_options_per_host() -> None:
    config = {"hosts": ["a", "b"], "connect_options": [{"username": "ann"}, {"username": "bob"}]}
    given = ssh.arguments(ClusterOptions(cluster="ssh"), config)["connect_options"]
    assert [each["username"] for each in given] == ["ann", "bob"]
    assert all(each["connect_timeout"] > 0 for each in given)


@pytest.mark.parametrize("hosts", [None, "a", ["a"]])
def test_scheduler_and_worker_need_hosts(hosts: object) -> None:
    with pytest.raises(InputError, match=r"(?=.*\bhosts\b)(?=.*--cluster-config)"):
        ssh.arguments(ClusterOptions(cluster="ssh"), {"hosts": hosts})
