"""Plans: counts by hand, shortage of memory and its remedies, and comparisons with runs."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from messages import expecting

from scrlm_dask.choices import INIT_KINDS, Init
from scrlm_dask.clusters.connect import connect
from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
from scrlm_dask.engine.block_layout import Layout
from scrlm_dask.engine.features import as_features
from scrlm_dask.engine.workers import WorkerMemory
from scrlm_dask.errors import InputError
from scrlm_dask.events import Planned
from scrlm_dask.kernels.distances.preprocessing import fit_map
from scrlm_dask.kernels.distances.pruning import MOST_AXES, prepare_with_axes
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.kmeans import kmeans, prepare_kmeans
from scrlm_dask.pipeline.plan import WorkerPool, make_plan, phase_seconds, plan_fit, worker_pool
from scrlm_dask.pipeline.stores import write_features
from scrlm_dask.pipeline.synth import synth
from scrlm_dask.planning.calibration import Calibration, Rate, ReadRate
from scrlm_dask.planning.memory import (
    PROCESS_BYTES,
    check_fit_memory,
    check_kmeans_memory,
    fit_memory,
    fits,
    kmeans_memory,
)
from scrlm_dask.planning.work import PhaseCost

TINY = Layout(n_rows=10, n_features=3, itemsize=4, block_rows=4, chunk_rows=4, read_copies=1)
GB = 10**9


def resolved(n_rows: int = 10, **options: object):
    settings = {"rho": 0.5, "n_clusters": 2, "n_candidates": 5, **options}
    return FitConfig(**settings).resolve(n_rows)  # type: ignore[arg-type]


class TestMemory:
    def test_small_fit_by_hand(self) -> None:
        plan = fit_memory(TINY, resolved(refine=LloydConfig(max_iter=1)), 2, n_workers=1)
        block = 48 + 48  # the block and its chunk
        survey = plan.of("survey")
        assert survey.worker_bytes(2, 1) == PROCESS_BYTES + 3 * 5 * (3 * 4 + 8) + 3 * block
        # Tiles of 1024 rows: two products and three copies of rows; rows of the trial and
        # projections on one axis; ten sums of two numbers.
        tile = 2 * 4 * 1024 * 5 + 3 * 1024 * 3 * 8 + 64 * 5 * 24 + 4 * 5 * 3 + 4 * 3 * 2 + 64 * 5
        candidates = 5 * (3 * 8 + 4 + 24) + 4 * 3
        loss = plan.of("loss")
        assert loss.shared_bytes == 2 * candidates
        assert loss.thread_bytes == tile + 10 * 16 * 5
        assert loss.block_bytes == block
        tile = 2 * 4 * 1024 * 2 + 3 * 1024 * 3 * 8 + 64 * 2 * 24 + 4 * 2 * 3 + 4 * 3 * 2 + 64 * 2
        assign = plan.of("assign")
        assert assign.shared_bytes == 8 * 2 * 3 + 2 * (3 * 12 + 4 + 24) + 4 * 3
        assert assign.thread_bytes == tile + 10 * 8 * 2 * 3 + 64 * 4
        labels = int(8 * 10 / 0.85)
        assert plan.of("kmeans-step").shared_bytes == assign.shared_bytes + labels
        assert plan.worker_bytes(2, 1) == max(p.worker_bytes(2, 1) for p in plan.phases)

    def test_row_numbers_of_a_subset_need_memory(self) -> None:
        layout = Layout(1000, 3, 4, 10, 10)
        on_all = fit_memory(layout, resolved(1000), 2, 1)
        on_some = fit_memory(layout, resolved(1000, loss_rows=400), 2, 1)
        assert on_some.of("loss").shared_bytes - on_all.of("loss").shared_bytes == 8 * 400
        assert on_some.client_bytes - on_all.client_bytes == 8 * 400

    def test_plan_ends_before_the_clusters_if_their_number_is_unknown(self) -> None:
        names = [phase.name for phase in fit_memory(TINY, resolved(), None, 1).phases]
        assert names == ["survey", "loss", "extract"]

    @pytest.mark.parametrize("rho", ["auto", 0.5])
    def test_plan_is_reported_again_when_the_clusters_are_known(self, rho: float) -> None:
        plans: list[Planned] = []
        fit(
            np.random.default_rng(0).normal(size=(300, 4)),
            FitConfig(rho=rho),
            listener=lambda event: plans.append(event) if isinstance(event, Planned) else None,
        )
        before = ["survey", "scan"] if rho == "auto" else ["survey", "loss", "extract"]
        after = ["kmeans-step", "assign"] if rho == "auto" else ["assign"]
        assert [[*plan.flops] for plan in plans] == [before, [*before, *after]]

    def test_number_of_axes_is_at_most_the_planned_one(self) -> None:
        raw = np.random.default_rng(0).normal(size=(500, 600)).astype(np.float32)
        axes = prepare_with_axes(raw, fit_map("none", 600, None)).axes
        assert axes is not None
        assert axes.directions.shape[1] == MOST_AXES == 255


class TestShortage:
    LAYOUT = Layout(10**6, 640, 4, 32768, 8192, read_copies=1)

    def message(self, worker: WorkerMemory) -> str:
        """Return the error for a worker with too little memory."""
        config = resolved(10**6, n_clusters=100, n_candidates="auto")
        with pytest.raises(InputError, match=expecting(1325, 100)) as caught:
            check_fit_memory(self.LAYOUT, config, 100, [worker])
        return str(caught.value)

    def test_each_suggested_setting_fits_and_is_the_best_one(self) -> None:
        worker = WorkerMemory(GB, 4, 1)
        text = self.message(worker)
        config = resolved(10**6, n_clusters=100, n_candidates="auto")
        check = partial(check_fit_memory, config=config, n_clusters=100)
        limit, threads, rows = (
            int(re.search(rf"--{name} (\d+)", text).group(1))  # type: ignore[union-attr]
            for name in ("memory-limit", "nthreads", "block-rows")
        )
        check(self.LAYOUT, workers=[WorkerMemory(limit * 10**6, 4, 1)])
        check(self.LAYOUT, workers=[WorkerMemory(GB, threads, 1)])
        check(self.LAYOUT.cut_into(rows), workers=[worker])
        assert rows % self.LAYOUT.chunk_rows == 0
        with pytest.raises(InputError):
            check(self.LAYOUT, workers=[WorkerMemory(limit * 10**6 - 2 * 10**7, 4, 1)])
        with pytest.raises(InputError):
            check(self.LAYOUT, workers=[WorkerMemory(GB, threads + 1, 1)])
        with pytest.raises(InputError):
            check(self.LAYOUT.cut_into(rows + 8192), workers=[worker])

    def test_settings_that_do_not_help_are_not_suggested(self) -> None:
        text = self.message(WorkerMemory(380 * 10**6, 1, 1))
        assert "--memory-limit" in text
        assert "--nthreads" not in text
        assert "--block-rows" not in text

    def test_threads_of_this_process_have_no_memory_limit(self) -> None:
        text = self.message(WorkerMemory(GB, 4, 0, own_process=False))
        assert "--memory-limit" not in text
        assert "--nthreads" in text

    def test_no_setting_helps(self) -> None:
        text = self.message(WorkerMemory(380 * 10**6, 1, own_process=False))
        assert not re.search(r"--\w", text)  # no option would help

    def test_worker_without_a_limit_always_fits(self) -> None:
        plan = kmeans_memory(self.LAYOUT, 10**5, 1)
        assert fits(plan, WorkerMemory(None, 64))
        check_kmeans_memory(self.LAYOUT, KMeansConfig(10**5), [WorkerMemory(None, 64)])


class TestInitOfKMeans:
    """The plan includes rows that the initialization gathers."""

    LAYOUT = Layout(10**7, 256, 4, 32768, 8192, read_copies=1)

    def phases(self, init: str) -> dict[str, int]:
        plan = kmeans_memory(self.LAYOUT, 10**5, 4, init)  # type: ignore[arg-type]
        return {phase.name: phase.worker_bytes(1) for phase in plan.phases}

    def test_phases_of_each_init(self) -> None:
        names = {init: [*self.phases(init)] for init in INIT_KINDS}
        after = ["kmeans-step", "assign"]
        assert names == {
            "scrlm": ["survey", "init", *after],
            "k-means++": ["survey", "init", *after],
            "k-means||": ["survey", "init-serve", "init-draw", *after],
            "random": ["survey", *after],
            "given": ["survey", *after],
        }

    def test_samples_by_hand(self) -> None:
        read = self.LAYOUT.reading_bytes + PROCESS_BYTES
        # Ten rows per cluster with their numbers, in three copies while they are merged.
        assert self.phases("k-means++")["survey"] == read + 3 * 10**6 * (1024 + 8)
        assert self.phases("random")["survey"] == read + 3 * 10**5 * (1024 + 8)
        assert self.phases("given")["survey"] == read
        # Two copies of 16 bytes per row, on four workers.
        assert self.phases("k-means||")["init-draw"] > read + 2 * 16 * 10**7 // 4

    def test_client_keeps_the_rows_of_oversampling_in_memory(self) -> None:
        few, many = (kmeans_memory(self.LAYOUT, 10**5, 4, init) for init in ("given", "k-means||"))
        assert many.client_bytes - few.client_bytes > 6 * 10**5 * (2 * 1024 + 1024)

    def test_shortage_is_reported_before_reading(self, tmp_path: Path) -> None:
        x = da.zeros((10**7, 256), chunks=(8192, 256), dtype=np.float32)
        config = KMeansConfig(10**5, "k-means++")
        need = kmeans_memory(as_features(x).layout, 10**5, 1, "k-means++").worker_bytes(1)
        worker = WorkerMemory(need, 1)
        with pytest.raises(InputError, match=expecting(100000, f"{need / 1e9:.2f} GB")):
            prepare_kmeans(x, config, out=tmp_path / "run", workers=[worker])
        prepare_kmeans(x, config, out=tmp_path / "run", workers=[WorkerMemory(2 * need, 1)])
        prepare_kmeans(x, config, out=tmp_path / "run")  # unknown workers

    @pytest.mark.slow
    @pytest.mark.cluster
    @pytest.mark.parametrize("init", ["scrlm", "k-means++", "k-means||"])
    def test_peak_memory_is_below_the_plan(self, init: Init, tmp_path: Path) -> None:
        x = np.random.default_rng(0).normal(size=(20_000, 128)).astype(np.float32)
        write_features(x, tmp_path / "x.zarr")
        config = KMeansConfig(500, init, LloydConfig(max_iter=1, persist="no"))
        with connect(ClusterOptions(nworkers=1, nthreads=1, memory_limit="2GB")):
            record = kmeans(tmp_path / "x.zarr", config, block_rows=2048).record
        peaks = {phase["name"]: phase["peak_worker_bytes"] for phase in record["phases"]}
        names = [name for name in peaks if name.startswith("init")]
        assert names
        for name in names:
            assert peaks[name] <= record["plan"]["phases"][name]


class TestSeconds:
    WORK = PhaseCost("loss", 8, 80, 80, 800, 0)
    LAYOUT = Layout(80, 10, 1, 10, 10)

    def seconds(self, crew: WorkerPool, read: float, row: float, **rate: float) -> float:
        rates = Rate(row=row, **rate)
        return phase_seconds(self.WORK, self.LAYOUT, rates, ReadRate(read, read), crew)

    def test_reading_overlaps_with_computing(self) -> None:
        # 8 s of computing on two threads, and 0.1 s for the first block.
        crew = WorkerPool(2, 2, 2, n_cores=8)
        assert self.seconds(crew, 0.001, 0.1) == pytest.approx(4.0 + 0.1)

    def test_reads_need_cores(self) -> None:
        assert self.seconds(WorkerPool(2, 2, 2, 2), 0.01, 0.1) == pytest.approx((8 + 8) / 2)

    def test_reading_and_computing_alternate_without_prefetch(self) -> None:
        assert self.seconds(WorkerPool(2, 2, 0, 2), 0.005, 0.1) == pytest.approx((8 + 4) / 2)

    def test_blocks_are_not_split_between_threads(self) -> None:
        # Eight blocks on three threads: two of them get three blocks.
        assert self.seconds(WorkerPool(3, 3, 0, 3), 0.0, 0.1) == pytest.approx(3.0)

    def test_fixed_costs_and_costs_per_block(self) -> None:
        crew = WorkerPool(1, 1, 0, 1)
        assert self.seconds(crew, 0.0, 0.1, block=0.5, once=2.0) == pytest.approx(2 + 8 + 4)

    def test_plan_is_the_sum_of_its_phases(self) -> None:
        rates = dict.fromkeys(("survey", "loss", "extract", "kmeans-step", "assign"), Rate(1.0))
        calibration = Calibration(ReadRate(0.0, 0.0), rates, 3.0, 1.0, 0.7, 10)
        workers = [WorkerMemory(GB, 1, 1)] * 2
        lloyd = LloydConfig(max_iter=4, persist="no")
        plan = make_plan(TINY, resolved(refine=lloyd), 2, workers, None, calibration)
        assert worker_pool(workers) == WorkerPool(2, 2, 2, 2)
        assert [phase.name for phase in plan.phases] == list(rates)
        assert plan.start_seconds == 0.7
        assert plan.seconds == pytest.approx(
            plan.start_seconds + sum(phase.times * phase.seconds for phase in plan.phases)
        )
        assert plan.bytes == 120 * (1 + 1 + 4 + 1)
        assert plan.calibration_seconds == 2.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "x.zarr"
    synth(path, 5000, MixtureSpec(16, 4, outliers=0.2), chunk_bytes=1024 * 64)
    return path


class TestAgainstARun:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"preprocess": "none", "n_candidates": 2, "loss_rows": 3},
            {"polish": True, "refine": LloydConfig(2, tol=0, inertia_tol=0, persist="no")},
            {"refine": LloydConfig(1, persist="yes"), "robust": False, "margins": False},
            {"n_candidates": 5000, "prune": 0},
        ],
        ids=["default", "subset", "kmeans", "persisted", "all-candidates"],
    )
    def test_phases_rows_and_bytes_agree(self, store: Path, options: dict[str, object]) -> None:
        config = FitConfig(**{"n_clusters": 4, "rho": 0.3, **options})  # type: ignore[arg-type]
        plan = plan_fit(store, config, block_rows=1024)
        record = fit(store, config, block_rows=1024, listener=lambda event: None).record
        measured = {p["name"]: (p["rows"], p["bytes"]) for p in record["phases"]}
        assert {phase.name: (phase.rows, phase.bytes) for phase in plan.phases} == measured
        assert [phase.name for phase in plan.phases] == list(measured)
        assert all(phase.seconds > 0 for phase in plan.phases)
        assert set(record["plan"]["phases"]) | {"hold"} >= set(measured)

    def test_rates_for_fewer_candidates_are_scaled_and_noted(
        self, store: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("scrlm_dask.planning.calibration._READ_BYTES", 1)
        config = FitConfig(rho=0.5, n_clusters=2000, n_candidates=4096, prune=0)
        plan = plan_fit(store, config, block_rows=1024)
        # Two blocks are always read: the first, and one that is timed.
        loss, centers = plan.notes
        assert re.search(expecting(1928, 4096), loss)
        assert re.search(expecting(1928, 2000), centers)

    def test_error_names_the_row_with_nan(self) -> None:
        x = np.ones((3000, 4), np.float32)
        x[1500, 2] = np.nan
        with pytest.raises(InputError, match=expecting("row 1500", "NaN")):
            plan_fit(x, FitConfig(rho=0.5, n_clusters=2, n_candidates=5), block_rows=2000)

    @pytest.mark.parametrize("shape", [(1, 1), (2, 3), (70, 50)])
    def test_small_features(self, shape: tuple[int, int]) -> None:
        x = np.random.default_rng(0).normal(size=shape).astype(np.float16)
        plan = plan_fit(x, FitConfig(rho=0.5, polish=True, refine=LloydConfig(2)))
        assert plan.rows == shape[0]
        assert math.isfinite(plan.seconds)
