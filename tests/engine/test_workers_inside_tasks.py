"""Runs inside Dask tasks: they work in threads of the worker and give the same bits."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import dask
import joblib
import numpy as np
import pytest
from distributed import Client, LocalCluster
from numpy.typing import NDArray
from sklearn.model_selection import GridSearchCV

import scrlm_dask
from scrlm_dask import FeatureStore, FitConfig, KMeansConfig, Run
from scrlm_dask.engine import workers
from scrlm_dask.engine.workers import WorkerMemory
from scrlm_dask.errors import InputError
from scrlm_dask.events import BlockDone

ROWS, FEATURES = 4000, 8
LIMIT, SECONDS = 10**9, 300  # a run that waits for its own worker never ends
MEMORY_LEVELS = ("target", "spill", "pause")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(True, marks=pytest.mark.slow, id="processes"),
        pytest.param(False, id="threads"),
    ],
)
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Connect to a worker with two threads, in a process of its own or in this process."""
    levels = () if request.param else MEMORY_LEVELS
    with (
        # Dask compares the limit with the memory of the process, here of all tests, and would
        # pause the worker: its tasks would not start
        dask.config.set({f"distributed.worker.memory.{level}": False for level in levels}),
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            processes=request.param,
            memory_limit=LIMIT,
            dashboard_address="127.0.0.1:0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def rows() -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    means = 4.0 * rng.normal(size=(5, FEATURES))
    return (means[rng.integers(5, size=ROWS)] + 0.3 * rng.normal(size=(ROWS, FEATURES))).astype("f")


@pytest.fixture(scope="module")
def store(rows: NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("features") / "x.zarr"
    np.save(path.with_name("x.npy"), rows)
    with workers.in_this_process():
        FeatureStore.write(rows, path, chunk_bytes=500 * FEATURES * 4)
    return path


def fit_bits(store: Path, seed: int) -> bytes:
    config = FitConfig(n_clusters=5, rho=0.3, seed=seed)
    return bits(scrlm_dask.fit(store, config))


def bits(result: Any) -> bytes:
    model = result.model
    return model.centers.tobytes() + model.counts.tobytes() + model.means.tobytes()


def use_all_verbs(store: Path, folder: Path) -> list[bytes]:
    """Return the bits of the results of the verbs, in a new folder."""
    x, out = folder / "x.zarr", folder / "run"
    scrlm_dask.ingest(store.with_name("x.npy"), x)
    FeatureStore(x).statistics()
    assert FeatureStore(x).verify() == ()
    scan = scrlm_dask.scan_rho(store, n_clusters=5, seed=3)
    chosen = scrlm_dask.fit(store, FitConfig(seed=3), out=folder / "auto")
    result = scrlm_dask.kmeans(store, KMeansConfig(5, seed=3), out=out)
    run = Run(out)
    run.predict(x, out=folder / "labels.zarr")
    scores = run.evaluate(folder / "auto" / "labels.zarr").scores
    assert run.verify().ok
    run.report()
    run.export(folder / "table")
    scrlm_dask.plan_fit(store)
    facts = repr((scan.rho, scores, run.cut(3).groups.tolist()))
    return [bits(chosen), bits(result), facts.encode()]


def fit_scrlm(rows: NDArray[np.float32]) -> bytes:
    model = scrlm_dask.SCRLM(5, rho=0.3, random_state=3, block_rows=500).fit(rows)
    labels = np.asarray(model.predict(rows))
    return model.cluster_centers_.tobytes() + labels.tobytes() + model.labels_.tobytes()


def fit_kmeans(rows: NDArray[np.float32]) -> bytes:
    weights = np.linspace(0.5, 2.0, len(rows))
    model = scrlm_dask.KMeans(5, random_state=3, block_rows=500).fit(rows, sample_weight=weights)
    return model.cluster_centers_.tobytes() + np.asarray(model.predict(rows)).tobytes()


def minus_inertia(model: Any, rows: NDArray[np.float32], y: None = None) -> float:
    labels = np.asarray(model.predict(rows))
    kept = labels >= 0
    return -float(np.square(rows[kept] - model.cluster_centers_[labels[kept]]).sum())


def outside(function: Any, *args: Any) -> Any:
    """Call a function without the client."""
    with workers.in_this_process():
        return function(*args)


def fit_outside(rows: NDArray[np.float32]) -> bytes:
    bits: bytes = outside(fit_kmeans, rows)
    return bits


def fit_synchronously(store: Path) -> bytes:
    with dask.config.set(scheduler="synchronous"):
        return fit_bits(store, 1)


def memories() -> list[WorkerMemory]:
    return workers.worker_memories()


def test_more_fits_at_once_than_threads(client: Client, store: Path) -> None:
    expected = [outside(fit_bits, store, seed) for seed in range(5)]
    futures = [client.submit(fit_bits, store, seed, pure=False) for seed in range(5)]
    assert client.gather(futures, direct=False) == expected


def test_delayed_and_array_blocks(client: Client, store: Path) -> None:
    import dask.array as da

    expected = outside(fit_bits, store, 1)
    assert dask.compute(*[dask.delayed(fit_bits)(store, 1) for _ in range(3)]) == (expected,) * 3
    numbers = da.arange(4, chunks=1)
    same = numbers.map_blocks(partial(_same, store, expected), dtype=bool).compute()
    assert same.all()


def _same(store: Path, expected: bytes, block: NDArray[np.int64]) -> NDArray[np.bool_]:
    return np.array([fit_bits(store, 1) == expected] * len(block))


@pytest.mark.parametrize("fit", [fit_scrlm, fit_kmeans])
def test_estimators(client: Client, rows: NDArray[np.float32], fit: Any) -> None:
    expected = outside(fit, rows)
    futures = [client.submit(fit, rows, pure=False) for _ in range(3)]
    assert client.gather(futures) == [expected] * 3


@pytest.mark.slow
def test_all_verbs(client: Client, store: Path, tmp_path: Path) -> None:
    expected = outside(use_all_verbs, store, tmp_path / "outside")
    future = client.submit(use_all_verbs, store, tmp_path / "inside")
    assert future.result(timeout=SECONDS) == expected


@pytest.mark.parametrize("kind", [scrlm_dask.SCRLM, scrlm_dask.KMeans])
def test_grid_search_on_dask(client: Client, rows: NDArray[np.float32], kind: Any) -> None:
    given = {"rho": 0.3, "n_candidates": 200} if kind is scrlm_dask.SCRLM else {}
    estimator = kind(random_state=3, block_rows=500, **given)
    search = GridSearchCV(estimator, {"n_clusters": [2, 5]}, cv=2, scoring=minus_inertia)
    search.set_params(error_score="raise")
    with joblib.parallel_config("dask"):
        inside = search.fit(rows).cv_results_["mean_test_score"]
    expected = outside(search.fit, rows).cv_results_["mean_test_score"]
    assert inside.tobytes() == expected.tobytes()


def nested(rows: NDArray[np.float32]) -> bytes:
    """Run k-means on an array whose blocks are computed with k-means."""
    import dask.array as da
    from distributed import get_client

    if workers.current_worker() is not None:
        get_client()  # from now on, the process of the worker has a client
    array = da.from_array(rows, chunks=(2000, FEATURES))
    centered = array.map_blocks(_center, dtype=rows.dtype, meta=np.empty((0, 0), rows.dtype))
    return bits(scrlm_dask.kmeans(centered, KMeansConfig(3, seed=0)))


def _center(block: NDArray[np.float32]) -> NDArray[np.float32]:
    assert workers.current_client() is None
    if workers.current_worker() is None:
        (memory,) = workers.worker_memories()
        assert memory == WorkerMemory(memory.limit, 1, own_process=False)
    centers = scrlm_dask.kmeans(block, KMeansConfig(1, seed=0)).model.centers
    return (block - centers).astype(np.float32)


def _center_rows(rows: NDArray[np.float32]) -> bytes:
    blocks = [rows[i : i + 2000] for i in range(0, len(rows), 2000)]
    centers = [scrlm_dask.kmeans(block, KMeansConfig(1, seed=0)).model.centers for block in blocks]
    pairs = zip(blocks, centers, strict=True)
    centered = np.concatenate([(block - center).astype(np.float32) for block, center in pairs])
    import dask.array as da

    array = da.from_array(centered, chunks=(2000, FEATURES))
    return bits(scrlm_dask.kmeans(array, KMeansConfig(3, seed=0)))


def test_blocks_that_use_the_package(client: Client, rows: NDArray[np.float32]) -> None:
    """A block that starts a run must not wait for the thread in which it is computed."""
    expected = outside(_center_rows, rows)
    futures = [client.submit(nested, rows, pure=False) for _ in range(2)]
    for future in futures:
        assert future.result(timeout=SECONDS) == expected
    assert nested(rows) == expected  # blocks in the tasks of the cluster


def test_threads_of_closed_workers_are_released(rows: NDArray[np.float32]) -> None:
    for _ in range(3):
        with (
            dask.config.set(
                {f"distributed.worker.memory.{level}": False for level in MEMORY_LEVELS}
            ),
            LocalCluster(
                n_workers=1,
                threads_per_worker=2,
                processes=False,
                memory_limit=LIMIT,
                dashboard_address="127.0.0.1:0",
            ) as cluster,
            Client(cluster) as own,
        ):
            own.submit(fit_kmeans, rows).result(timeout=SECONDS)
            pools = [
                pool for worker, pool in workers._pools.items() if worker.status.name == "closed"
            ]
            assert not pools


@pytest.mark.parametrize("place", ["features", "weights"])
def test_array_of_the_cluster_inside_a_task(
    client: Client, rows: NDArray[np.float32], place: str
) -> None:
    import dask.array as da

    given: Any = rows if place == "features" else np.ones(len(rows))
    array = da.from_array(given, chunks=500).persist()

    def fit() -> None:
        features, weights = (array, None) if place == "features" else (rows, array)
        scrlm_dask.kmeans(features, KMeansConfig(3, seed=0), sample_weight=weights)

    fit()  # outside, the blocks are used where they are
    with pytest.raises(InputError, match="Dask array" if place == "features" else "weight"):
        client.submit(fit, pure=False).result(timeout=SECONDS)


def count_events(rows: NDArray[np.float32], scheduler: str | None) -> int:
    seen: list[Any] = []
    with dask.config.set(scheduler=scheduler):
        scrlm_dask.kmeans(rows, KMeansConfig(3, seed=0), block_rows=500, listener=seen.append)
    return sum(isinstance(event, BlockDone) for event in seen)


@pytest.mark.parametrize("scheduler", [None, "synchronous"])
def test_progress(client: Client, rows: NDArray[np.float32], scheduler: str | None) -> None:
    expected = outside(count_events, rows, None)
    assert expected > 8
    assert client.submit(count_events, rows, scheduler, pure=False).result(SECONDS) == expected


def test_memory_and_threads_of_the_worker(client: Client) -> None:
    assert client.submit(memories, pure=False).result(timeout=SECONDS) == [
        WorkerMemory(LIMIT, 2, own_process=False)
    ]


def test_a_scheduler_in_the_configuration_takes_precedence(client: Client, store: Path) -> None:
    future = client.submit(fit_synchronously, store, pure=False)
    assert future.result(timeout=SECONDS) == outside(fit_bits, store, 1)


def fit_in_a_thread(rows: NDArray[np.float32]) -> bytes:
    from distributed import get_client

    get_client()  # from now on, the process of the worker has a client
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fit_kmeans, rows).result()


@pytest.mark.slow
@pytest.mark.parametrize("client", [True], ids=["processes"], indirect=True)
def test_thread_that_a_task_starts(client: Client, rows: NDArray[np.float32]) -> None:
    expected = outside(fit_kmeans, rows)
    futures = [client.submit(fit_in_a_thread, rows, pure=False) for _ in range(3)]
    assert [future.result(timeout=SECONDS) for future in futures] == [expected] * 3
    assert list(client.run(fit_kmeans, rows).values()) == [expected]  # in the event loop


def test_runs_with_and_without_the_client_at_once(
    client: Client, rows: NDArray[np.float32]
) -> None:
    """A run that uses the client does not change while tasks run without it."""
    expected = outside(fit_kmeans, rows)
    futures = [client.submit(fit_outside, rows, pure=False) for _ in range(5)]
    assert fit_kmeans(rows) == expected
    assert client.gather(futures) == [expected] * 5
    assert workers.current_client() is client


def test_passes_never_choose_the_scheduler_themselves() -> None:
    """Only `workers.compute` and `workers.persist` know whether they are called inside a task."""
    package = Path(scrlm_dask.__file__).parent
    for path in package.rglob("*.py"):
        if path.name == "workers.py" and path.parent.name == "engine":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = ast.unparse(node.func)
                assert called not in ("dask.compute", "dask.persist"), path
                if node.func.attr == "compute" and called != "workers.compute":
                    names = [keyword.arg for keyword in node.keywords]
                    assert "scheduler" in names or called == "client.compute", path
