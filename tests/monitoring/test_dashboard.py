"""The page /scrlm, metrics, and names on Dask's pages, with a real cluster and a real browser."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from browser import browsing, needs_browser
from distributed import Client, LocalCluster

import scrlm_dask
from scrlm_dask.events import Event, IterationDone, Note
from scrlm_dask.monitoring.listeners import make_publisher

pytestmark = pytest.mark.cluster
NASTY = "<b onclick=alert(1)>&\"><img src=x onerror='window.hacked=1'><script>hacked=1"
PREFIX = "/user/me/proxy/8787"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit="2GB",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 1,600 rows around 4 points, in 32 blocks, at a path that contains HTML."""
    path = tmp_path_factory.mktemp("page") / NASTY / "x.zarr"
    rng = np.random.default_rng(0)
    x = rng.normal(0, 8, (4, 16))[rng.integers(0, 4, 1600)] + rng.normal(size=(1600, 16))
    path.parent.mkdir()
    np.save(path.parent / "x.npy", x.astype(np.float32))
    config = scrlm_dask.IngestConfig(chunk_bytes=50 * 16 * 4)
    with dask.config.set(scheduler="threads"):
        scrlm_dask.ingest([path.parent / "x.npy"], path, config)
    return path


class PausedRun:
    """A k-means run that pauses after its first iteration until `resumed` is set."""

    def __init__(self, features: Path, out: Path | None = None) -> None:
        self.reached, self.resumed = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self._features, self._out = features, out
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        lloyd = scrlm_dask.LloydConfig(max_iter=3, tol=0, inertia_tol=0, persist="no")
        config = scrlm_dask.KMeansConfig(n_clusters=4, init="random", lloyd=lloyd)
        try:
            scrlm_dask.kmeans(
                self._features, config, out=self._out, listener=self._listen, block_rows=50
            )
        except BaseException as error:
            self.error = error

    def _listen(self, event: Event) -> None:
        if isinstance(event, IterationDone) and event.number == 1:
            self.reached.set()
            assert self.resumed.wait(120)

    def finish(self) -> None:
        self.resumed.set()
        self._thread.join(120)
        assert self.error is None, self.error


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def page_of(client: Client) -> str:
    link = str(client.dashboard_link)
    assert link.endswith("/status")
    return link.removesuffix("status") + "scrlm"


class _Proxy(http.server.BaseHTTPRequestHandler):
    """Forwards requests without the prefix of their path, like the proxies of Jupyter."""

    target = ""

    def do_GET(self) -> None:
        if not self.path.startswith(f"{PREFIX}/"):
            self.send_error(404)
            return
        with urllib.request.urlopen(self.target + self.path.removeprefix(PREFIX)) as answer:
            body = answer.read()
            self.send_response(200)
            for name in ("Content-Type", "Content-Security-Policy"):
                if answer.headers[name]:
                    self.send_header(name, answer.headers[name])
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def proxied(client: Client) -> Iterator[str]:
    handler = type("Proxy", (_Proxy,), {"target": page_of(client).removesuffix("/scrlm")})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}{PREFIX}/scrlm"
        server.shutdown()


@pytest.mark.slow
@needs_browser
def test_browser_shows_a_run_behind_a_proxy(
    client: Client, features: Path, proxied: str, tmp_path: Path
) -> None:
    run = PausedRun(features)
    try:
        assert run.reached.wait(120)
        with browsing(tmp_path) as page:
            page.open(proxied)
            page.wait_for("document.querySelector('[data-phase=\"kmeans-step\"]') !== null")
            before = page.text()
            assert "preparing" in before
            assert f"{NASTY}/x.zarr" in before  # shown as text
            assert page.ask("document.querySelectorAll('b[onclick], [onerror]').length") == 0
            assert page.ask("window.hacked") is None
            assert page.ask("document.querySelector('#status').className") == "live"
            assert page.ask("document.querySelectorAll('#inertia circle').length") == 1
            shot = page.screenshot(tmp_path / "during.png")
            run.finish()
            page.wait_for("document.querySelectorAll('#inertia circle').length === 3")
            page.wait_for("document.querySelector('#numbers').innerText.includes('done')")
            after = page.text()
            assert "kmeans-step × 3" in after  # noqa: RUF001
            assert "assign" in after
            assert page.ask("document.querySelectorAll('#sizes rect').length") >= 1
            assert page.screenshot(tmp_path / "after.png") != shot
            wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
            assert page.ask(wide)
            assert page.complaints == []
            assert all(url.startswith((proxied, "data:")) for url in page.requested)
    finally:
        run.resumed.set()


def hold_steps(client: Client, file: Path) -> None:
    """Make the workers' blocks of k-means steps wait while the file exists."""

    def hold(file: str) -> None:
        from scrlm_dask.kernels.kmeans import lloyd

        compute = lloyd.lloyd_part

        def wait_first(*args: Any) -> Any:
            while Path(file).exists():
                time.sleep(0.02)
            return compute(*args)

        lloyd.lloyd_part = wait_first

    client.run(hold, str(file))


def wait_for_step(client: Client, worker: str) -> None:
    """Wait until the worker processes a block of a step."""

    def has_one(dask_scheduler: Any) -> bool:
        return any("kmeans-step" in str(t.key) for t in dask_scheduler.workers[worker].processing)

    deadline = time.monotonic() + 60
    while not client.run_on_scheduler(has_one):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_blocks_of_a_lost_worker_are_counted_as_retried(
    client: Client, features: Path, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold_steps(client, hold)
    worker, pid = next(iter(client.run(os.getpid).items()))
    run = PausedRun(features)
    try:
        assert run.reached.wait(120)
        hold.touch()
        run.resumed.set()
        wait_for_step(client, worker)
        os.kill(pid, signal.SIGKILL)
    finally:
        hold.unlink(missing_ok=True)
    run.finish()
    state = json.loads(get(page_of(client) + "/state.json"))["run"]
    phases = {phase["name"]: phase for phase in state["phases"]}
    assert phases["kmeans-step"]["retried"] >= 1
    assert state["error"] is None
    assert phases["kmeans-step"]["share"] == 1.0
    client.wait_for_workers(2, timeout=60)


@pytest.mark.slow
def test_state_and_metrics_equal_the_run(client: Client, features: Path, tmp_path: Path) -> None:
    before = _metrics(client)
    config = scrlm_dask.FitConfig(n_clusters=6, rho=0.5)
    found = scrlm_dask.fit(features, config, out=tmp_path / "run", block_rows=50)
    state = json.loads(get(page_of(client) + "/state.json"))
    run = state["run"]
    assert [phase["name"] for phase in run["phases"]] == ["survey", "loss", "extract", "assign"]
    assert all(phase["share"] == 1.0 for phase in run["phases"])
    assert run["centers"] == found.model.n_clusters
    assert run["labelled"]["outlier_share"] == found.record["outlier_share"]
    assert sum(run["labelled"]["sizes"]) == np.count_nonzero(found.model.counts)
    assert run["labelled"]["inertia"] == pytest.approx(found.model.inertia)
    assert run["planned_worker_bytes"] == found.record["plan"]["worker_bytes"]
    assert run["losses"]["losses"] == sorted(run["losses"]["losses"])
    assert run["losses"]["losses"][0] == pytest.approx(found.model.losses[0])
    assert len(state["workers"]) == 2
    after = _metrics(client)
    assert after['scrlm_rows_total{phase="loss"}'] == 1600 + before.get(
        'scrlm_rows_total{phase="loss"}', 0
    )
    assert after['scrlm_blocks_total{phase="loss",state="done"}'] == 32 + before.get(
        'scrlm_blocks_total{phase="loss",state="done"}', 0
    )
    assert after["scrlm_centers"] == found.model.n_clusters
    assert after["scrlm_inertia"] == pytest.approx(found.model.inertia)
    assert after["scrlm_outlier_share"] == found.record["outlier_share"]
    assert after["scrlm_planned_memory_bytes"] == found.record["plan"]["worker_bytes"]
    assert after['scrlm_phase_progress{phase="assign"}'] == 1.0
    assert after['scrlm_worker_memory_bytes{worker="0"}'] > 1e6
    # the run directory has the same events
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in lines]
    assert events[0] == "RunStarted"
    assert events[-1] == "RunEnded"
    assert events.count("PhaseFinished") == 4


def _metrics(client: Client) -> dict[str, float]:
    lines = get(page_of(client).replace("/scrlm", "/metrics")).splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("scrlm_")]
    return {name: float(value) for name, value in pairs}


def test_names_of_tasks_and_spans_are_phases(client: Client, features: Path) -> None:
    refine = scrlm_dask.LloydConfig(max_iter=1)
    config = scrlm_dask.FitConfig(n_clusters=6, rho=0.5, refine=refine)
    scrlm_dask.fit(features, config, block_rows=200)
    phases = {"survey", "loss", "extract", "kmeans-step", "assign"}

    def names(dask_scheduler: Any) -> tuple[set[str], set[str]]:
        spans = dask_scheduler.extensions["spans"].spans.values()
        return set(dask_scheduler.task_prefixes), {span.name[-1] for span in spans}

    prefixes, spans = client.run_on_scheduler(names)
    assert phases <= prefixes
    assert phases <= spans


def test_page_is_read_only(client: Client, features: Path) -> None:
    scrlm_dask.fit(features, scrlm_dask.FitConfig(n_clusters=6), block_rows=400)
    for url in (page_of(client), page_of(client) + "/state.json"):
        for method in ("POST", "PUT", "DELETE"):
            request = urllib.request.Request(url, data=b"x", method=method)
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=60)
            assert caught.value.code in (403, 405)
            caught.value.close()
    assert json.loads(get(page_of(client) + "/state.json?run=no-such-run"))["run"] is not None
    assert 'href="scrlm"' in get(str(client.dashboard_link))


def test_only_the_last_runs_are_kept(client: Client) -> None:
    for number in range(30):
        client.log_event("scrlm", {"run": f"old-{number}", "event": "CentersFound", "centers": 1})
    deadline = time.monotonic() + 60
    while True:
        runs = json.loads(get(page_of(client) + "/state.json"))["runs"]
        if runs[0][0] == "old-29":
            break
        assert time.monotonic() < deadline
    assert len(runs) == 20


def test_watching_can_be_disabled(client: Client, features: Path) -> None:
    events: list[Event] = []
    with dask.config.set({"scrlm.watch": "0"}):
        assert make_publisher(client, "scrlm-x", events.append) is None
    assert events == []


@pytest.mark.slow
def test_scheduler_without_the_package_is_reported(tmp_path: Path) -> None:
    """A scheduler that was started with the preload has the page before the first run."""
    blocked = tmp_path / "blocked.py"
    blocked.write_text(
        "import sys\n"
        "def dask_setup(scheduler):\n"
        "    for name in [n for n in sys.modules if n.startswith('scrlm_dask')]:\n"
        "        del sys.modules[name]\n"
        "    sys.modules['scrlm_dask.monitoring.dashboard'] = None\n"
    )
    with (
        _scheduler(tmp_path / "without.json", str(blocked)) as without,
        _scheduler(tmp_path / "with.json", "scrlm_dask.preload") as ours,
    ):
        events: list[Event] = []
        with Client(without, set_as_default=False) as client:
            assert make_publisher(client, "scrlm-x", events.append) is None
        assert len(events) == 1
        assert isinstance(events[0], Note)
        assert "/scrlm" in events[0].text
        with Client(ours, set_as_default=False) as client:
            page = page_of(client)
            assert json.loads(get(f"{page}/state.json"))["run"] is None
            assert make_publisher(client, "scrlm-x", events.append) is not None
            assert 'href="scrlm"' in get(str(client.dashboard_link))


class _scheduler:  # noqa: N801 - a context manager
    """Run `dask scheduler` with a preload in a subprocess."""

    def __init__(self, file: Path, preload: str) -> None:
        dask_command = Path(sys.executable).parent / "dask"
        addresses = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")
        self._file = file
        self._process = subprocess.Popen(
            [dask_command, "scheduler", *addresses, "--scheduler-file", file, "--preload", preload],
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> str:
        deadline = time.monotonic() + 60
        while True:
            try:
                return str(json.loads(self._file.read_text())["address"])
            except (OSError, ValueError):
                assert time.monotonic() < deadline
                assert self._process.poll() is None
                time.sleep(0.05)

    def __exit__(self, *exc_info: object) -> None:
        self._process.terminate()
        self._process.wait(30)
