"""Files of deploy/ that cannot run here, checked by published schemas and linters."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack, nullcontext
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from scrlm_dask.clusters.kubernetes import manifest, start_kubernetes
from scrlm_dask.clusters.options import ClusterOptions

DEPLOY = Path(__file__).parents[2] / "deploy"
METRICS = {
    "scrlm_rows_total",
    "scrlm_blocks_total",
    "scrlm_phase_progress",
    "scrlm_centers",
    "scrlm_inertia",
    "scrlm_outlier_share",
    "scrlm_worker_memory_bytes",
    "scrlm_planned_memory_bytes",
}


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


# --- Kubernetes --------------------------------------------------------------------------------


def schema_of(kind: str) -> dict[str, Any]:
    """Return the schema of the Dask operator; fields that it would drop are errors here."""
    charts = files("dask_kubernetes") / "operator/deployment/helm/dask-kubernetes-operator/crds"
    crd = yaml.safe_load((charts / f"{kind.lower()}.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    schema["properties"] |= {name: {} for name in ("apiVersion", "kind", "metadata")}
    return strict(schema)


def strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    open_ended = found.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(found.get("properties"), dict) and found.get("type") and not open_ended:
        found.setdefault("additionalProperties", False)
    if found.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
    return found


def problems(content: dict[str, Any]) -> list[str]:
    from jsonschema import Draft7Validator

    found = Draft7Validator(schema_of(content["kind"])).iter_errors(content)
    return [f"{error.json_path}: {error.message}" for error in found]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cluster", "job"])
def test_manifests_of_the_dask_operator(name: str) -> None:
    content = read(f"kubernetes/{name}.yaml")
    assert problems(content) == []
    assert content["apiVersion"] == "kubernetes.dask.org/v1"


@pytest.mark.slow
def test_schema_detects_mistakes() -> None:
    content = read("kubernetes/cluster.yaml")
    content["spec"]["worker"]["spec"]["containers"][0]["imagee"] = "x"
    content["spec"]["worker"]["replicas"] = "four"
    del content["spec"]["scheduler"]["service"]
    assert len(problems(content)) == 3


def pods() -> list[dict[str, Any]]:
    job = read("kubernetes/job.yaml")["spec"]
    clusters = (read("kubernetes/cluster.yaml")["spec"], job["cluster"]["spec"])
    return [job["job"], *(part for c in clusters for part in (c["worker"], c["scheduler"]))]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["storage", "network"])
def test_manifests_of_kubernetes(name: str) -> None:
    import kubernetes_validate

    kubernetes_validate.validate(read(f"kubernetes/{name}.yaml"), "1.30", strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_pods(number: int) -> None:
    """Pods match the schema of Kubernetes, do not run as root and have no extra privileges."""
    import kubernetes_validate

    pod = pods()[number]
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", **pod["metadata"]}}
    kubernetes_validate.validate({**whole, "spec": pod["spec"]}, "1.30", strict=True)
    assert (
        pod["metadata"]["labels"]
        == read("kubernetes/network.yaml")["spec"]["podSelector"]["matchLabels"]
    )
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["args"][0] in ("dask", "scrlm")


def test_arguments_are_options_of_the_commands(tmp_path: Path) -> None:
    """Dask's commands and ours would reject a misspelt option."""
    from click.testing import CliRunner
    from distributed.cli.dask_scheduler import main as scheduler
    from distributed.cli.dask_worker import main as worker
    from scrlm_cli.main import main as scrlm

    commands = {"scheduler": scheduler, "worker": worker, "fit": scrlm.commands["fit"]}
    services = read("docker/compose.yaml")["services"]
    calls = [pod["spec"]["containers"][0]["args"] for pod in pods()]
    calls += [service["command"] for service in services.values() if "command" in service]
    assert len(calls) == 7
    for call in calls:
        done = CliRunner().invoke(commands[call[1]], [*call[2:], "--help"])
        assert done.exit_code == 0
        known = {name for p in commands[call[1]].params for name in (*p.opts, *p.secondary_opts)}
        assert {word for word in call if word.startswith("--")} <= known


def test_variables_in_arguments_are_set() -> None:
    """Kubernetes does not replace `$(X)` if X is not set: all workers would have the same name."""
    from_operator = {"DASK_WORKER_NAME", "DASK_SCHEDULER_ADDRESS"}
    seen = []
    for pod in pods():
        (container,) = pod["spec"]["containers"]
        used = re.findall(r"\$\(([^)]*)\)", " ".join(container["args"]))
        assert set(used) <= from_operator | {each["name"] for each in container.get("env", [])}
        seen += used
    assert seen == ["DASK_WORKER_NAME"] * 2


def test_failed_job_is_not_restarted() -> None:
    """The operator creates one pod per job, so only the policy of the pod could restart it."""
    assert read("kubernetes/job.yaml")["spec"]["job"]["spec"]["restartPolicy"] == "Never"
    # the documented command does not start a second cluster
    (line,) = (x for x in (DEPLOY / "README.md").read_text().splitlines() if "a job](" in x)
    assert re.findall(r"-f (\S+?)[ `]", line) == ["storage.yaml", "network.yaml", "job.yaml"]


@pytest.mark.slow
def test_options_are_added_to_the_manifest() -> None:
    content = read("kubernetes/cluster.yaml")
    found = manifest(ClusterOptions(cluster="kubernetes", nworkers=7), content)
    assert found["spec"]["worker"]["replicas"] == 7
    environment = found["spec"]["worker"]["spec"]["containers"][0]["env"]
    assert {"name": "OMP_NUM_THREADS", "value": "1"} in environment
    assert {"name": "DASK_SCRLM__READ_AHEAD", "value": "0"} in environment
    assert problems(found) == []
    assert content == read("kubernetes/cluster.yaml")  # not changed in place


@pytest.mark.slow
def test_arguments_of_kubecluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Names and arguments are those of dask-kubernetes; only Kubernetes is replaced."""
    from dask_kubernetes.operator.kubecluster import kubecluster

    arguments = inspect.signature(kubecluster.KubeCluster)
    passed: dict[str, Any] = {}

    def start(**given: Any) -> Any:
        passed.update(arguments.bind(**given).arguments)
        return nullcontext("cluster")

    monkeypatch.setattr(kubecluster, "KubeCluster", start)
    options = ClusterOptions(cluster="kubernetes", nworkers=7)
    with ExitStack() as undo:
        assert start_kubernetes(options, read("kubernetes/cluster.yaml"), undo) == "cluster"
    assert passed["create_mode"] is kubecluster.CreateMode.CREATE_ONLY
    assert passed["custom_cluster_spec"]["spec"]["worker"]["replicas"] == 7


# --- Docker ------------------------------------------------------------------------------------


def parse_compose(text: str) -> Any:
    from compose_spec import PyOptions

    options = PyOptions()
    options.apply_merge = True
    found = options.from_yaml(re.sub(r"\$\{DATA:[^}]*\}", "/data", text))
    found.validate()
    return found


@pytest.mark.slow
def test_compose_file() -> None:
    text = (DEPLOY / "docker" / "compose.yaml").read_text()
    assert set(parse_compose(text).service_names()) == {"scheduler", "worker", "scrlm"}
    with pytest.raises(ValueError, match="comand"):
        parse_compose(text.replace("command:", "comand:"))
    # only the port of the dashboard is published, on the loopback interface
    services = read("docker/compose.yaml")["services"].values()
    ports = [port for service in services for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:8787:8787"]


def hadolint(text: str) -> str:
    program = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([program, "-"], input=text, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_dockerfile() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    assert hadolint(text) == ""
    assert "DL3006" in hadolint("FROM debian\n")
    # the base image of each stage is pinned, and the user is not root
    assert len(re.findall(r"^FROM python:3\.11\.\d+-slim-bookworm", text, re.M)) == 2
    assert re.findall(r"^USER (.*)$", text, re.M) == ["10001"]
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M)
    for name in " ".join(copied).split():
        assert (DEPLOY.parent / name).exists()


# --- monitoring --------------------------------------------------------------------------------


def test_prometheus_config(tmp_path: Path) -> None:
    content = read("monitoring/prometheus.yaml")
    assert {job["metrics_path"] for job in content["scrape_configs"]} == {"/metrics"}
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("requires promtool, which is in Debian's package prometheus")
    file = DEPLOY / "monitoring" / "prometheus.yaml"
    subprocess.run([program, "check", "config", "--syntax-only", file], check=True)


def test_grafana_dashboard_uses_existing_metrics() -> None:
    content = json.loads((DEPLOY / "monitoring" / "grafana.json").read_text())
    queries = " ".join(t["expr"] for panel in content["panels"] for t in panel["targets"])
    assert set(re.findall(r"scrlm_\w+", queries)) == METRICS
    assert len({panel["id"] for panel in content["panels"]}) == len(content["panels"])


def test_readme_names_every_folder() -> None:
    table = (DEPLOY / "README.md").read_text()
    folders = [path.name for path in DEPLOY.iterdir() if path.is_dir()]
    assert [name for name in folders if f"({name}/" not in table] == []
