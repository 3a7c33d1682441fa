"""Fits of features on an S3 server behind a proxy that delays, drops and truncates responses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from flaky_proxy import FlakyProxy, Kind
from s3server import BUCKET, KEY, SECRET, S3Server
from scrlm_cli.main import main

pytestmark = pytest.mark.slow

FEATURES = f"s3://{BUCKET}/x.zarr"
SYNTH = ("--rows", 2000, "--features", 16, "--clusters", 5, "--chunk-size", "16kB")
FIT = ("--rho", 0.5, "--candidates", 200, "--block-rows", 256, "--kmeans-iter", 2)
_ATTEMPTS = 8


def run(*words: Any) -> Any:
    return CliRunner().invoke(main, [str(word) for word in (*words, "--nworkers", 0)])


def bits(out: Path) -> dict[str, bytes]:
    files = [f for name in ("labels.zarr", "model.zarr") for f in (out / name).rglob("*")]
    return {str(file.relative_to(out)): file.read_bytes() for file in files if file.is_file()}


def through(endpoint: str) -> tuple[str, ...]:
    texts = (f"key={KEY}", f"secret={SECRET}", f"client_kwargs.endpoint_url={endpoint}")
    return tuple(part for text in texts for part in ("--storage-option", text))


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[S3Server]:
    before = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("AWS_")}
    server = S3Server(tmp_path_factory.mktemp("s3"))
    assert run("synth", FEATURES, *SYNTH, *server.arguments).exit_code == 0
    yield server
    server.kill()
    os.environ.update(before)


@pytest.fixture(scope="module")
def expected(server, tmp_path_factory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run("fit", FEATURES, "--out", out, *FIT, *server.arguments).exit_code == 0
    return bits(out)


@pytest.mark.parametrize(
    ("rate", "kinds"),
    [
        (0.3, ("delay",)),
        (0.05, ("503", "500")),
        (0.05, ("drop",)),
        (0.05, ("truncate",)),
        (0.5, ("503", "500", "drop", "truncate")),
    ],
)
def test_fit_of_a_flaky_store_has_the_same_bits(
    server, expected, tmp_path: Path, rate: float, kinds: tuple[Kind, ...]
) -> None:
    proxy = FlakyProxy(int(server.endpoint.rpartition(":")[2]), 7, rate, kinds)
    out, options = tmp_path / "run", through(proxy.endpoint)
    codes = []
    try:
        for attempt in range(_ATTEMPTS):
            proxy.healthy = attempt == _ATTEMPTS - 1
            again = ("--resume", out) if (out / "run.json").exists() else (FEATURES, "--out", out)
            done = run("fit", *again, *(() if "--resume" in again else FIT), *options)
            codes.append(done.exit_code)
            assert "Traceback" not in done.output
            if done.exit_code == 0:
                break
            assert done.exit_code in (3, 4), done.output[-500:]
    finally:
        proxy.close()
    assert sum(proxy.counts[kind] for kind in kinds) > 0
    assert codes[-1] == 0, codes
    assert bits(out) == expected
