"""Commands on a real S3 server: the same bits as on a local disk, clear errors, no credentials
in any output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import backend
from s3server import BUCKET, KEY, SECRET, S3Server

from scrlm_dask import SCRLM, FitConfig, KMeans
from scrlm_dask.errors import StoreError, UnreachableError
from scrlm_dask.pipeline.fit import prepare_fit
from scrlm_dask.pipeline.inspect import verify_store
from scrlm_dask.pipeline.stores import open_features
from scrlm_dask.storage.feature_store import open_features_store, read_block
from scrlm_dask.storage.locations import locate
from scrlm_dask.storage.model_store import load_model
from scrlm_dask.storage.run_directory import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

DASK = (str(Path(sys.executable).parent / "dask"),)
ROOT = f"s3://{BUCKET}"
SYNTH = ("--rows", 4000, "--features", 64, "--clusters", 5, "--outliers", 0.3)
BLOCKS = ("--block-rows", 1024)
# More blocks than are prefetched: the loss pass is blocked until the server is killed.
LONG = ("--rows", 8_000, "--features", 32, "--clusters", 5, "--chunk-size", "32kB")
LONG_FIT = ("--rho", 0.5, "--candidates", 400, "--block-rows", 250)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[S3Server]:
    # Credentials of the developer must not give access to the test server.
    before = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("AWS_")}
    server = S3Server(tmp_path_factory.mktemp("s3"))
    yield server
    server.kill()
    os.environ.update(before)


@pytest.fixture(scope="module")
def scheduler_file(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("workers") / "scheduler.json"


@pytest.fixture(scope="module")
def workers(start, scheduler_file) -> Iterator[list[Any]]:
    """A scheduler and two workers that are started separately, without credentials."""
    folder = scheduler_file.parent
    common = ("--scheduler-file", scheduler_file, "--host", "127.0.0.1")
    common += ("--dashboard-address", "127.0.0.1:0")
    processes = [start("scheduler", "--port", 0, *common, program=DASK)]
    options = ("--nthreads", 1, "--no-nanny", "--local-directory", folder)
    processes += [start("worker", *options, *common, program=DASK) for _ in range(2)]
    yield processes
    for process in reversed(processes):
        process.stop()


@dataclass(frozen=True)
class OnS3:
    """Outcomes of four commands whose workers read and write s3:// URLs."""

    outcomes: dict[str, Any]
    address: str


@pytest.fixture(scope="module")
def on_s3(invoke, workers, scheduler_file, dask_scheduler, server) -> OnS3:
    address = dask_scheduler(workers[0], scheduler_file, workers=2)
    common = (*server.arguments, "--scheduler", address, "--json", "-v")
    features, run, predicted = f"{ROOT}/x.zarr", f"{ROOT}/run", f"{ROOT}/labels.zarr"
    # The same commands as in `round_trip`, which runs them in threads on a local disk.
    commands = {
        "synth": ("synth", features, *SYNTH, "--chunk-size", "64kB"),
        "fit": ("fit", features, "--rho", 0.5, "--out", run, "--clusters", 10, *BLOCKS),
        "evaluate": ("evaluate", run),
        "predict": ("predict", run, features, "--out", predicted, *BLOCKS),
    }
    outcomes = {name: invoke(*args, *common, threads=False).ok() for name, args in commands.items()}
    return OnS3(outcomes, address)


def without_secrets(text: str) -> str:
    for secret in (KEY, SECRET, "0815+x"):
        assert secret not in text
    return text


@pytest.fixture
def rejected(server, invoke) -> Callable[..., str]:
    """Run a command that must fail; its output must not contain credentials."""

    def run(*args: Any, facts: tuple[str, ...] = (), options: Any = None, **more: Any) -> str:
        given = server.arguments if options is None else options
        outcome = invoke(*args, *given, **more)
        without_secrets(outcome.stdout + outcome.stderr)
        return outcome.rejected(*facts)

    return run


# --- recorded URLs -----------------------------------------------------------------------------


def test_commands_open_the_features_in_the_bucket_of_the_run(on_s3, server, invoke, tmp_path):
    run, common = f"{ROOT}/run", server.arguments
    invoke("verify", run, "--blocks", 1, "--losses", 1, *common).ok()
    invoke("evaluate", run, *common).ok()
    for command in (
        ("export", run, "--out", tmp_path / "table", "--format", "csv"),
        ("report", run, "--out", tmp_path / "page.html"),
    ):
        assert "--allow-origin" not in invoke(*command, *common, threads=False).ok().stderr


def test_local_run_opens_a_bucket_only_if_it_is_allowed(on_s3, server, invoke, rejected, tmp_path):
    run = tmp_path / "run"
    server.filesystem().get(f"{BUCKET}/run", str(run), recursive=True)
    verify = ("verify", run, "--blocks", 1, "--losses", 0)
    rejected(*verify, facts=(f"{ROOT}/x.zarr", f"--allow-origin {ROOT}"))
    invoke(*verify, *server.arguments, "--allow-origin", ROOT).ok()


# --- the same bits -----------------------------------------------------------------------------


def test_s3_and_disk_contain_the_same_bytes(
    on_s3, server, round_trip, files_of, without_times
) -> None:
    for name, path in (
        ("x.zarr", round_trip.features),
        ("run/model.zarr", round_trip.run / "model.zarr"),
        ("run/labels.zarr", round_trip.run / "labels.zarr"),
        ("labels.zarr", round_trip.predicted),
    ):
        found, expected = without_times(server.objects(name)), without_times(files_of(path))
        assert len(found) > 3
        if path == round_trip.predicted:  # its attributes contain the path of the features
            expected["zarr.json"]["attributes"]["features"] = f"{ROOT}/x.zarr"
        assert found == expected, name


def test_record_is_complete_and_contains_urls_only(on_s3, server, round_trip, record_of) -> None:
    text = without_secrets(server.objects("run")["run.json"].decode())
    record = json.loads(text)
    assert record["status"] == "complete"
    assert record["features"]["path"] == f"{ROOT}/x.zarr"
    assert record["counts"] == record_of(round_trip.run)["counts"]
    assert server.endpoint not in text


def test_ingest_inspect_and_cluster_on_s3(on_s3, server, invoke, tmp_path) -> None:
    """Ingest to S3, from S3 to S3, verify and k-means, all by workers without credentials."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3000, 16), dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "w.npy", rng.random(3000))
    store, copy, run = (f"{ROOT}/{name}" for name in ("in.zarr", "copy.zarr", "km"))
    common = (*server.arguments, "--scheduler", on_s3.address, "--json")
    weights = ("--sample-weight", tmp_path / "w.npy")
    for args in (
        ("ingest", tmp_path / "x.npy", store, "--chunk-size", "32kB"),
        ("ingest", store, copy, "--chunk-size", "64kB", "--nan", "drop"),
        ("inspect", copy, "--verify", "--stats"),
        ("kmeans", copy, "--out", run, "--clusters", 5, *weights),
    ):
        outcome = invoke(*args, *common, threads=False).ok()
        without_secrets(outcome.stdout + outcome.stderr)
    found = open_features(copy, storage_options=server.options)
    np.testing.assert_array_equal(found.compute(scheduler="sync"), x)
    model = load_model(run, storage_options=server.options)
    expected = KMeans(5, block_rows=1024).fit(x, sample_weight=np.load(tmp_path / "w.npy"))
    np.testing.assert_allclose(model.centers, expected.cluster_centers_, rtol=1e-6)
    for content in server.objects("km").values():
        without_secrets(content.decode(errors="replace"))


def test_evaluate_gives_the_same_scores(on_s3, round_trip) -> None:
    assert on_s3.outcomes["evaluate"].json() == round_trip.outcomes["evaluate"].json()


def test_no_credentials_in_outputs_stores_and_logs(
    on_s3, server, workers, rejected, store, tmp_path
) -> None:
    for outcome in on_s3.outcomes.values():
        without_secrets(outcome.stdout + outcome.stderr)
    for name, content in server.objects("").items():
        without_secrets(name)
        for secret in (KEY, SECRET):
            assert secret.encode() not in content, name
    # Workers log the arguments of a task that fails.
    values = np.ones((300, 4), np.float32)
    values[210, 1] = np.nan
    bad = store(tmp_path / "bad.zarr", values)
    server.filesystem().put(str(bad), f"{BUCKET}/bad.zarr", recursive=True)
    on_workers = {"threads": False, "options": (*server.arguments, "--scheduler", on_s3.address)}
    args = ("fit", f"{ROOT}/bad.zarr", "--out", f"{ROOT}/failed", "--block-rows", 100)
    rejected(*args, facts=(f"{ROOT}/bad.zarr", "row 210"), **on_workers)
    assert server.objects("failed") == {}  # removed again, so the path is free
    RunDirectory(locate(f"{ROOT}/failed", server.options)).create({})
    logs = [without_secrets(process.stderr) for process in workers]
    assert any("Compute Failed" in log for log in logs)


def test_damaged_chunk_is_named(on_s3, server, rejected) -> None:
    path = f"{BUCKET}/x.zarr/features/c/2/0"
    filesystem = server.filesystem()
    whole = filesystem.cat_file(path)
    filesystem.pipe_file(path, whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    options = (*server.arguments, "--scheduler", on_s3.address)
    args = ("fit", f"{ROOT}/x.zarr", "--out", f"{ROOT}/damaged", *BLOCKS)
    facts = (f"{ROOT}/x.zarr/features", "checksum")
    rejected(*args, facts=facts, threads=False, options=options)
    filesystem.pipe_file(path, whole)
    assert server.objects("damaged") == {}


def test_credentials_from_the_environment(on_s3, server, invoke) -> None:
    variables = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": server.endpoint,
    }
    outcome = invoke("evaluate", f"{ROOT}/run", "--json", env=variables)
    assert outcome.json() == on_s3.outcomes["evaluate"].json()


# --- in Python ---------------------------------------------------------------------------------


def test_load_model_from_s3(on_s3, server, round_trip) -> None:
    ours, theirs = load_model(f"{ROOT}/run", server.options), load_model(round_trip.run)
    for name in ("centers", "center_rows", "losses", "means", "counts", "weights", "sigmas"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert ours.config == theirs.config


def test_estimator_on_s3(on_s3, server, round_trip, labels_of) -> None:
    model = SCRLM(rho=0.5, n_clusters=10, block_rows=1024)
    lazy = model.fit_predict(f"{ROOT}/x.zarr", storage_options=server.options)
    np.testing.assert_array_equal(lazy.compute(), labels_of(round_trip.run))
    without_secrets(repr(model) + repr(model.get_params()) + repr(vars(model)) + repr(lazy))


def test_truth_in_a_npy_object(on_s3, server, invoke, truth, tmp_path) -> None:
    np.save(tmp_path / "y.npy", truth)
    server.filesystem().put_file(str(tmp_path / "y.npy"), f"{BUCKET}/y.npy")
    args = ("evaluate", f"{ROOT}/run", "--truth", f"{ROOT}/y.npy", "--json")
    found = invoke(*args, *server.arguments).json()
    assert found.items() <= on_s3.outcomes["evaluate"].json().items()
    assert found["accuracy"] == 1.0


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "secret"), [(KEY, "not-the-secret"), ("not-the-key", SECRET)], ids=["secret", "key"]
)
def test_wrong_credentials(on_s3, server, rejected, key, secret) -> None:
    options = json.dumps({**server.options, "key": key, "secret": secret})
    args = ("fit", f"{ROOT}/x.zarr", "--out", f"{ROOT}/never")
    facts = (f"{ROOT}/x.zarr", "--storage-option")
    message = rejected(*args, facts=facts, options=("--storage-option", options))
    assert "not-the" not in message


def test_tracebacks_do_not_contain_credentials(on_s3, server, invoke) -> None:
    wrong = (*server.arguments, "--storage-option", "secret=not-the-secret", "-v")
    outcome = invoke("synth", f"{ROOT}/never", "--rows", 10, *wrong)
    assert outcome.code == 3
    assert "Traceback" in outcome.stderr
    assert "not-the-secret" not in without_secrets(outcome.stderr)


BAD, GOOD, NEVER = f"s3://{KEY}:{SECRET}@{BUCKET}/x.zarr", f"{ROOT}/x.zarr", f"{ROOT}/never"


@pytest.mark.parametrize(
    "args",
    [
        ("fit", BAD, "--out", NEVER),
        ("fit", GOOD, "--out", BAD),
        ("ingest", BAD, NEVER),
        ("ingest", BAD, NEVER, "--format", "npy"),
        ("ingest", BAD, NEVER, "--column", "x"),
        ("ingest", GOOD, NEVER, "--labels", BAD),
        ("ingest", GOOD, BAD),
        ("plan", BAD),
        ("rho", BAD),
        ("predict", BAD, GOOD, "--out", NEVER),
        ("evaluate", BAD),
        ("evaluate", f"{ROOT}/run", "--truth", BAD),
        ("verify", BAD),
        ("inspect", BAD),
    ],
    ids=lambda args: args[0],
)
def test_credentials_in_a_url_are_rejected(on_s3, rejected, args) -> None:
    message = rejected(*args, facts=("URL", "--storage-option"))
    assert f"{BUCKET}/x.zarr" not in message  # only the protocol of the URL is printed


@pytest.mark.parametrize(
    "args",
    [
        ("embed", BAD, NEVER, "--encoder", "pixels"),
        ("embed", BAD, NEVER, "--encoder", "hashing", "--column", "x"),
        ("report", f"{ROOT}/run", "--items", BAD, "--out", "never.html"),
        ("report", BAD, "--out", "never.html"),
    ],
    ids=lambda args: args[0],
)
def test_credentials_in_a_url_are_rejected_without_a_cluster(on_s3, rejected, args) -> None:
    message = rejected(*args, facts=("URL", "--storage-option"), threads=False)
    assert f"{BUCKET}/x.zarr" not in message


def test_no_such_bucket(on_s3, rejected) -> None:
    facts = ("s3://nowhere/x.zarr",)
    rejected("fit", "s3://nowhere/x.zarr", "--out", f"{ROOT}/never", facts=facts)
    rejected("fit", f"{ROOT}/x.zarr", "--out", "s3://nowhere/run", facts=("s3://nowhere/run",))
    rejected("synth", "s3://nowhere/x.zarr", *SYNTH, facts=facts)


def test_no_such_key(on_s3, rejected) -> None:
    facts = (f"{ROOT}/none.zarr",)
    rejected("fit", f"{ROOT}/none.zarr", "--out", f"{ROOT}/never", facts=facts)
    rejected("evaluate", f"{ROOT}/none", facts=(f"{ROOT}/none",))
    rejected("predict", f"{ROOT}/none", f"{ROOT}/x.zarr", "--out", f"{ROOT}/never")


def test_chunks_are_listed_again_for_every_open(on_s3, server) -> None:
    location = locate(f"{ROOT}/x.zarr", server.options)
    path = f"{BUCKET}/x.zarr/features/c/1/0"
    filesystem = server.filesystem()
    whole = filesystem.cat_file(path)
    for _ in range(2):
        assert open_features_store(location).shape == (4000, 64)
        filesystem.rm_file(path)
        with pytest.raises(StoreError, match=r"(?=.*\b1\b)(?=.*x\.zarr/features\b).*\bc/1/0\b"):
            open_features_store(location)
        filesystem.pipe_file(path, whole)


# --- existing outputs --------------------------------------------------------------------------


def test_overwrite_replaces_nothing_but_the_output(on_s3, server, invoke) -> None:
    small = ("--rows", 100, "--features", 4, "--clusters", 2)
    args = ("synth", f"{ROOT}/again", *small, *server.arguments)
    filesystem = server.filesystem()
    filesystem.pipe_file(f"{BUCKET}/again-not/zarr.json", b"mine")
    invoke(*args).ok()
    before = server.objects("again")
    invoke(*args, "--seed", 1).rejected(f"{ROOT}/again", "--overwrite")
    assert server.objects("again") == before
    invoke(*args, "--seed", 1, "--rows", 50, "--overwrite").ok()
    after = server.objects("again")
    assert after.keys() == before.keys()
    assert after["features/c/0/0"] != before["features/c/0/0"]
    assert server.objects("again-not") == {"zarr.json": b"mine"}


def test_failed_overwrite_leaves_the_old_run(on_s3, server, invoke) -> None:
    out = ("--out", f"{ROOT}/kept", *BLOCKS, *server.arguments)
    invoke("fit", f"{ROOT}/x.zarr", *out).ok()
    before = server.objects("kept")
    path = f"{BUCKET}/x.zarr/features/c/2/0"
    filesystem = server.filesystem()
    whole = filesystem.cat_file(path)
    filesystem.pipe_file(path, whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    invoke("fit", f"{ROOT}/x.zarr", *out, "--overwrite").rejected(f"{ROOT}/x.zarr/features")
    filesystem.pipe_file(path, whole)
    assert server.objects("kept") == before
    assert server.objects("kept.scrlm-new") == {}
    kmeans = ("kmeans", f"{ROOT}/x.zarr", *out, "--overwrite")
    invoke(*kmeans, "--init", f"{ROOT}/kept").rejected(f"{ROOT}/kept", "centers")
    assert server.objects("kept") == before
    invoke(*kmeans, "--clusters", 2).ok()
    assert server.objects("kept")["run.json"] != before["run.json"]
    assert server.objects("kept.scrlm-new") == {}


def test_files_of_other_programs_are_kept(on_s3, server, rejected) -> None:
    server.filesystem().pipe_file(f"{BUCKET}/thesis/chapter.tex", b"mine")
    fit = ("fit", f"{ROOT}/x.zarr", "--overwrite", "--out")
    rejected(*fit, f"{ROOT}/thesis", facts=(f"{ROOT}/thesis",))
    assert server.objects("thesis") == {"chapter.tex": b"mine"}
    rejected(*fit, f"{ROOT}/x.zarr", facts=(f"{ROOT}/x.zarr",))
    message = rejected(*fit, f"{ROOT}/run/inner", facts=(f"{ROOT}/run/inner",))
    assert message.count(f"{ROOT}/run") == 2  # the output and the run that contains it
    rejected(*fit, ROOT, facts=(ROOT, f"{ROOT}/x.zarr"))
    rejected("synth", ROOT, "--overwrite", facts=(ROOT, "bucket"))


# --- a server that is killed -------------------------------------------------------------------


def test_server_killed_during_verification_is_not_reported_as_damage(
    on_s3, server, monkeypatch
) -> None:
    seen = []

    def killing(arrays: Any, start: int, stop: int) -> Any:
        seen.append(start)
        if len(seen) == 4:  # the last block: the store is not opened after it
            server.kill()
        return read_block(arrays, start, stop)

    monkeypatch.setattr("scrlm_dask.passes.digests.read_block", killing)
    with backend("one thread"), pytest.raises(UnreachableError) as caught:
        verify_store(f"{ROOT}/x.zarr", storage_options=server.options)
    monkeypatch.undo()
    assert f"{ROOT}/x.zarr" in without_secrets(str(caught.value))
    server.start()
    with backend("three threads"):
        assert verify_store(f"{ROOT}/x.zarr", storage_options=server.options) == ()


def test_evaluate_output_of_predict(on_s3, server, invoke) -> None:
    found = invoke("evaluate", f"{ROOT}/labels.zarr", "--json", *server.arguments).json()
    assert found.items() <= on_s3.outcomes["evaluate"].json().items()


def test_server_killed_during_a_fit(on_s3, server, invoke, start, hold, rejected) -> None:
    invoke("synth", f"{ROOT}/long.zarr", *LONG, *server.arguments).ok()
    out = f"{ROOT}/killed"
    args = ("fit", f"{ROOT}/long.zarr", "--out", out, *LONG_FIT, *server.arguments)
    fit = start(*args, "--nworkers", 1, **hold.environment)
    fit.wait_for("survey: ")
    server.kill()
    hold.release()
    outcome = fit.outcome()
    message = outcome.rejected(ROOT)
    without_secrets(outcome.stderr)
    assert server.endpoint not in message
    server.start()
    assert json.loads(server.objects("killed")["run.json"])["status"] == "running"
    rejected("evaluate", out, facts=(out, "running", "--overwrite"))
    rejected("predict", out, f"{ROOT}/x.zarr", "--out", f"{ROOT}/never", facts=(out, "running"))
    # The fit can be started again.
    stores = {"overwrite": True, "storage_options": server.options}
    prepare_fit(f"{ROOT}/long.zarr", FitConfig(rho=0.5), out=out, **stores)
