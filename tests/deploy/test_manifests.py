"""What stands in deploy/ and cannot run here, against the schemas and linters of its makers."""

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
    """The operator's own, by which the API server judges; but what it would drop is refused."""
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
def test_what_the_dask_operator_gets(name: str) -> None:
    content = read(f"kubernetes/{name}.yaml")
    assert problems(content) == []
    assert content["apiVersion"] == "kubernetes.dask.org/v1"


@pytest.mark.slow
def test_mistakes_would_be_found() -> None:
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
def test_what_kubernetes_itself_gets(name: str) -> None:
    import kubernetes_validate

    kubernetes_validate.validate(read(f"kubernetes/{name}.yaml"), "1.30", strict=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_pods(number: int) -> None:
    """By the schema of Kubernetes itself; and none is root, or has more rights than it needs."""
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


def test_arguments_are_those_of_the_commands(tmp_path: Path) -> None:
    """What Dask's own commands and ours would say to a misspelt option."""
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
    """Kubernetes leaves `$(X)` as it stands where X is not set: all workers had one name."""
    from_operator = {"DASK_WORKER_NAME", "DASK_SCHEDULER_ADDRESS"}
    seen = []
    for pod in pods():
        (container,) = pod["spec"]["containers"]
        asked = re.findall(r"\$\(([^)]*)\)", " ".join(container["args"]))
        assert set(asked) <= from_operator | {each["name"] for each in container.get("env", [])}
        seen += asked
    assert seen == ["DASK_WORKER_NAME"] * 2


def test_input_that_is_refused_is_not_tried_for_ever() -> None:
    """The operator makes one pod of a job: only the pod itself would begin again."""
    assert read("kubernetes/job.yaml")["spec"]["job"]["spec"]["restartPolicy"] == "Never"
    # and the line for it starts no second cluster
    (line,) = (x for x in (DEPLOY / "README.md").read_text().splitlines() if "a job](" in x)
    assert re.findall(r"-f (\S+?)[ `]", line) == ["storage.yaml", "network.yaml", "job.yaml"]


@pytest.mark.slow
def test_the_manifest_gets_what_was_asked_for() -> None:
    content = read("kubernetes/cluster.yaml")
    found = manifest(ClusterOptions(cluster="kubernetes", nworkers=7), content)
    assert found["spec"]["worker"]["replicas"] == 7
    environment = found["spec"]["worker"]["spec"]["containers"][0]["env"]
    assert {"name": "OMP_NUM_THREADS", "value": "1"} in environment
    assert {"name": "DASK_SCRLM__READ_AHEAD", "value": "0"} in environment
    assert problems(found) == []
    assert content == read("kubernetes/cluster.yaml")  # as it was


@pytest.mark.slow
def test_the_operators_cluster_is_started_as_it_wants_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All but Kubernetes itself is real: names and arguments are those of the package."""
    from dask_kubernetes.operator.kubecluster import kubecluster

    arguments = inspect.signature(kubecluster.KubeCluster)
    asked: dict[str, Any] = {}

    def started(**given: Any) -> Any:
        asked.update(arguments.bind(**given).arguments)
        return nullcontext("cluster")

    monkeypatch.setattr(kubecluster, "KubeCluster", started)
    options = ClusterOptions(cluster="kubernetes", nworkers=7)
    with ExitStack() as undo:
        assert start_kubernetes(options, read("kubernetes/cluster.yaml"), undo) == "cluster"
    assert asked["create_mode"] is kubecluster.CreateMode.CREATE_ONLY
    assert asked["custom_cluster_spec"]["spec"]["worker"]["replicas"] == 7


# --- Docker ------------------------------------------------------------------------------------


def composed(text: str) -> Any:
    from compose_spec import PyOptions

    options = PyOptions()
    options.apply_merge = True
    found = options.from_yaml(re.sub(r"\$\{DATA:[^}]*\}", "/data", text))
    found.validate()
    return found


@pytest.mark.slow
def test_the_compose_file() -> None:
    text = (DEPLOY / "docker" / "compose.yaml").read_text()
    assert set(composed(text).service_names()) == {"scheduler", "worker", "scrlm"}
    with pytest.raises(ValueError, match="comand"):
        composed(text.replace("command:", "comand:"))
    # only the dashboard is published, and to this machine
    services = read("docker/compose.yaml")["services"].values()
    ports = [port for service in services for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:8787:8787"]


def hadolint(text: str) -> str:
    program = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([program, "-"], input=text, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_dockerfile() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    assert hadolint(text) == ""
    assert "DL3006" in hadolint("FROM debian\n")
    # every stage is pinned, and the last user is nobody special
    assert len(re.findall(r"^FROM python:3\.11\.\d+-slim-bookworm", text, re.M)) == 2
    assert re.findall(r"^USER (.*)$", text, re.M) == ["10001"]
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M)
    for name in " ".join(copied).split():
        assert (DEPLOY.parent / name).exists()


# --- monitoring --------------------------------------------------------------------------------


def test_the_prometheus_config(tmp_path: Path) -> None:
    content = read("monitoring/prometheus.yaml")
    assert {job["metrics_path"] for job in content["scrape_configs"]} == {"/metrics"}
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not here: Debian's package prometheus has it")
    file = DEPLOY / "monitoring" / "prometheus.yaml"
    subprocess.run([program, "check", "config", "--syntax-only", file], check=True)


def test_the_grafana_dashboard_asks_for_metrics_that_there_are() -> None:
    content = json.loads((DEPLOY / "monitoring" / "grafana.json").read_text())
    asked = " ".join(t["expr"] for panel in content["panels"] for t in panel["targets"])
    assert set(re.findall(r"scrlm_\w+", asked)) == METRICS
    assert len({panel["id"] for panel in content["panels"]}) == len(content["panels"])


def test_the_table_names_every_folder() -> None:
    table = (DEPLOY / "README.md").read_text()
    folders = [path.name for path in DEPLOY.iterdir() if path.is_dir()]
    assert [name for name in folders if f"({name}/" not in table] == []
