"""Runs that another process replaces while a command reads them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

import scrlm_dask
from scrlm_dask.errors import UnusableRowsError
from scrlm_dask.pipeline.cut import cut_run
from scrlm_dask.pipeline.evaluate import evaluate
from scrlm_dask.pipeline.export import export
from scrlm_dask.pipeline.verify import verify_run
from scrlm_dask.reporting.report import write_report
from scrlm_dask.storage.run_directory import RunDirectory

SIZES = (60, 120, 30)  # rows of the clusters


def ignore(event: Any) -> None:
    """Ignore an event."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the runs "old" and "new", whose features have the same rows in different orders."""
    folder = tmp_path_factory.mktemp("replaced")
    kinds = np.repeat([0, 1, 2], SIZES)
    rows = np.random.default_rng(0).normal(size=(sum(SIZES), 4)) + 50 * kinds[:, None]
    np.save(folder / "rows.npy", rows)
    np.save(folder / "kinds.npy", kinds)
    for seed, name in enumerate(("old", "new")):
        np.save(folder / "ids.npy", np.array([f"{name} {kind}" for kind in kinds]))
        config = scrlm_dask.IngestConfig(
            labels=str(folder / "kinds.npy"), ids=str(folder / "ids.npy"), shuffle=True, seed=seed
        )
        scrlm_dask.ingest(folder / "rows.npy", folder / f"{name}.zarr", config)
        kmeans = scrlm_dask.KMeansConfig(3)
        scrlm_dask.kmeans(folder / f"{name}.zarr", kmeans, out=folder / name, listener=ignore)
    return folder


def evaluated(run: Path, folder: Path) -> bool:
    """Return whether the truth belongs to the labels."""
    return evaluate(run, listener=ignore).scores.accuracy == 1.0


def verified(run: Path, folder: Path) -> bool:
    """Return whether the labels belong to the features."""
    return verify_run(run, listener=ignore).ok


def exported(run: Path, folder: Path) -> bool:
    """Return whether the ids belong to the labels."""
    export(run, folder / "table", listener=ignore)
    table = pyarrow.parquet.read_table(folder / "table/labels.parquet")
    pairs = set(zip(table["id"].to_pylist(), table["label"].to_pylist(), strict=True))
    return len(pairs) == 3


def reported(run: Path, folder: Path) -> bool:
    """Return whether the page has ids and the path of one run only."""
    page = Path(write_report([run], folder / "page.html", listener=ignore).page).read_text()
    names = [name for name in ("old", "new") if f"{name}.zarr" in page]
    return len(names) == 1 and f"{names[0]} 0" in page


def cut(run: Path, folder: Path) -> bool:
    """Return whether the labels belong to the recorded features."""
    cut_run(run, 3, out=folder / "cut", listener=ignore)
    return evaluate(folder / "cut", listener=ignore).scores.accuracy == 1.0


@pytest.mark.parametrize("use", [evaluated, verified, exported, reported, cut])
@pytest.mark.parametrize("reads", [1, 2, 3, 4])
def test_run_replaced_after_its_record_was_read(
    runs: Path,
    tmp_path: Path,
    use: Callable[[Path, Path], bool],
    reads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, counts = shutil.copytree(runs / "old", tmp_path / "run"), [0]
    read_record = RunDirectory.read_record

    def replace(self: RunDirectory) -> dict[str, Any]:
        record = read_record(self)
        counts[0] += 1
        if counts[0] == reads:
            run.rename(tmp_path / "before")
            shutil.copytree(runs / "new", run)
        return record

    monkeypatch.setattr(RunDirectory, "read_record", replace)
    try:
        assert use(run, tmp_path)
    except UnusableRowsError as error:
        assert str(run) in str(error)  # noqa: PT017 - either outcome is correct
