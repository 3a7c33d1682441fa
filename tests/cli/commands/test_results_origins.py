"""URLs that a run records: requests and storage options only go to origins that the user gave."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scrlm_dask
from scrlm_dask import FeatureStore, FitConfig, KMeansConfig
from scrlm_dask.errors import StoreError, UntrustedOriginError

TOKEN = "token-of-the-reader"
OPTIONS = {"client_kwargs": {"headers": {"Authorization": TOKEN}}}
GIVEN = ("--storage-option", f"client_kwargs.headers.Authorization={TOKEN}")


class Listening(ThreadingHTTPServer):
    """An HTTP server that records the path and the token of each request, and has no files."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.received: list[tuple[str, str | None]] = []

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answering(BaseHTTPRequestHandler):
    server: Listening

    def do_GET(self) -> None:
        self.server.received.append((self.path, self.headers.get("Authorization")))
        self.send_error(404)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Listening]:
    server = Listening()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with complete runs of `fit` and `kmeans`, and with a labels store of a cut."""
    folder = tmp_path_factory.mktemp("origins")
    rows = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    np.save(folder / "weights.npy", np.ones(40))
    FeatureStore.write(rows, folder / "x.zarr")
    quiet: Any = {"listener": lambda event: None}
    scrlm_dask.fit(folder / "x.zarr", FitConfig(rho=2.0), out=folder / "fit", **quiet)
    weights = folder / "weights.npy"
    scrlm_dask.kmeans(
        folder / "x.zarr", KMeansConfig(2), out=folder / "kmeans", sample_weight=weights, **quiet
    )
    scrlm_dask.Run(folder / "fit").cut(1, out=folder / "cut.zarr")
    return folder


def edit(file: Path, before: Path | str, after: str) -> None:
    text = file.read_text()
    assert json.dumps(str(before)) in text
    file.write_text(text.replace(json.dumps(str(before)), json.dumps(after)))


@pytest.fixture
def hostile(honest: Path, tmp_path: Path) -> Any:
    """Return a function that copies the runs and replaces the path of their features."""

    def copy(url: str) -> Path:
        folder = tmp_path / "copy"
        shutil.copytree(honest, folder)
        for name in ("fit/run.json", "kmeans/run.json", "cut.zarr/zarr.json"):
            edit(folder / name, honest / "x.zarr", url)
        return folder

    return copy


def read_commands(folder: Path) -> dict[str, tuple[Any, ...]]:
    run = folder / "fit"
    return {
        "verify": ("verify", run, "--nworkers", 0),
        "evaluate": ("evaluate", run, "--nworkers", 0),
        "evaluate labels": ("evaluate", folder / "cut.zarr", "--nworkers", 0),
        "export": ("export", run, "--out", folder / "table", "--format", "csv"),
        "report": ("report", run, "--out", folder / "page.html"),
    }


READ = tuple(read_commands(Path()))
OPTIONAL = ("export", "report")  # commands that need the features only for ids


@pytest.mark.parametrize("name", READ)
def test_a_local_run_sends_nothing_to_a_recorded_host(
    name: str, hostile: Any, server: Listening, invoke: Any
) -> None:
    url = f"{server.origin}/x.zarr"
    outcome = invoke(*read_commands(hostile(url))[name], *GIVEN, threads=False)
    assert server.received == []
    assert TOKEN not in outcome.stdout + outcome.stderr
    facts = (url, f"--allow-origin {server.origin}")
    if name in OPTIONAL:
        assert all(fact in outcome.ok().stderr for fact in facts)
    else:
        outcome.rejected(*facts)


@pytest.mark.parametrize("name", READ[:-1])
def test_an_allowed_origin_receives_the_options(
    name: str, hostile: Any, server: Listening, invoke: Any
) -> None:
    command = read_commands(hostile(f"{server.origin}/x.zarr"))[name]
    outcome = invoke(*command, *GIVEN, "--allow-origin", server.origin, threads=False)
    assert outcome.code == (0 if name in OPTIONAL else 3)  # the server has no files
    assert server.received
    assert {token for _, token in server.received} == {TOKEN}


@pytest.mark.parametrize("name", ["verify", "evaluate labels", "export"])
@pytest.mark.parametrize("chain", ["reference::", "simplecache::", "filecache::"])
def test_chained_urls_are_rejected_even_if_their_origin_is_allowed(
    name: str, chain: str, hostile: Any, server: Listening, invoke: Any
) -> None:
    command = read_commands(hostile(f"{chain}{server.origin}/x.json"))[name]
    outcome = invoke(*command, *GIVEN, "--allow-origin", server.origin, threads=False)
    assert outcome.code == (0 if name in OPTIONAL else 3)
    assert server.received == []
    assert chain in outcome.stderr


@pytest.mark.parametrize("command", ["fit", "kmeans"])
def test_resume_sends_nothing_to_a_recorded_host(
    command: str, hostile: Any, server: Listening, invoke: Any
) -> None:
    url = f"{server.origin}/x.zarr"
    run = hostile(url) / command
    edit(run / "run.json", "complete", "interrupted")
    facts = (url, f"--allow-origin {server.origin}")
    invoke(command, "--resume", run, *GIVEN).rejected(*facts)
    assert server.received == []
    invoke(command, "--resume", run, *GIVEN, "--allow-origin", server.origin).rejected(url)
    assert {token for _, token in server.received} == {TOKEN}


def test_resume_sends_nothing_to_the_host_of_recorded_weights(
    honest: Path, tmp_path: Path, server: Listening, invoke: Any
) -> None:
    run, url = tmp_path / "kmeans", f"{server.origin}/w.npy"
    shutil.copytree(honest / "kmeans", run)
    edit(run / "run.json", "complete", "interrupted")
    edit(run / "run.json", honest / "weights.npy", url)
    invoke("kmeans", "--resume", run, *GIVEN).rejected(url, "--allow-origin")
    assert server.received == []


def test_given_truth_needs_no_recorded_path(
    hostile: Any, server: Listening, invoke: Any, tmp_path: Path
) -> None:
    run = hostile(f"{server.origin}/x.zarr") / "fit"
    np.save(tmp_path / "truth.npy", np.zeros(40, np.int64))
    invoke("evaluate", run, "--truth", tmp_path / "truth.npy", *GIVEN).ok()
    assert server.received == []


def test_items_of_a_report_need_the_recorded_features(
    hostile: Any, server: Listening, invoke: Any, tmp_path: Path
) -> None:
    run = hostile(f"{server.origin}/x.zarr") / "fit"
    np.save(tmp_path / "items.npy", np.array(["a"] * 40))
    command = ("report", run, "--items", tmp_path / "items.npy", *GIVEN)
    outcome = invoke(*command, threads=False)
    assert (outcome.code, server.received) == (3, [])
    assert f"--allow-origin {server.origin}" in outcome.stderr


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::scrlm_dask.ScrlmWarning")
def test_methods_of_a_run_send_nothing_to_a_recorded_host(
    hostile: Any, server: Listening, tmp_path: Path
) -> None:
    folder = hostile(f"{server.origin}/x.zarr")
    run = scrlm_dask.Run(folder / "fit", storage_options=OPTIONS)
    assert run.model.n_clusters >= 1
    assert run.labels.compute().shape == (40,)
    assert "127.0.0.1" in run._repr_html_()
    assert run.predict(np.zeros((2, 3), np.float32)).n_rows == 2
    assert len(run.cut(1, out=tmp_path / "cut.zarr").counts) == 1
    run.export(tmp_path / "table")
    run.report(tmp_path / "page.html")
    for use in (run.verify, run.evaluate):
        with pytest.raises(UntrustedOriginError):
            use()
    assert server.received == []
    allowed = scrlm_dask.Run(folder / "fit", storage_options=OPTIONS, allow_origins=[server.origin])
    with pytest.raises(StoreError):
        allowed.verify()
    assert {token for _, token in server.received} == {TOKEN}


@pytest.mark.parametrize("text", ["bucket", "s3://", "s3://bucket/path", "a::s3://b", "s3://k:v@b"])
def test_allow_origin_requires_scheme_and_host(text: str, invoke: Any, honest: Path) -> None:
    invoke("verify", honest / "fit", "--allow-origin", text).rejected("--allow-origin", code=2)


def test_allow_origin_has_no_effect_without_resume(
    invoke: Any, honest: Path, tmp_path: Path
) -> None:
    fit = ("fit", honest / "x.zarr", "--out", tmp_path / "run", "--allow-origin", "s3://b")
    invoke(*fit).rejected("--allow-origin", "--resume", code=2)
