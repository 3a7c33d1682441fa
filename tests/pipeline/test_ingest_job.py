"""Rejected settings and sources of an ingest."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest
import zarr
from messages import expecting

from scrlm_dask.errors import InputError, StoreError, UnreachableError, UnusableRowsError
from scrlm_dask.events import Note, PhaseFinished
from scrlm_dask.pipeline import ingest_job
from scrlm_dask.pipeline.ingest import ingest, prepare_ingest
from scrlm_dask.pipeline.ingest_job import IngestConfig
from scrlm_dask.sources.zarr_store import ZarrSource
from scrlm_dask.storage.locations import locate


@pytest.mark.parametrize(
    ("config", "pattern"),
    [
        ({"dtype": "float64"}, expecting("float64", "float16", "float32")),
        ({"limit": 0}, expecting("limit", 0, 1)),
        ({"nan": "zero"}, expecting("nan", "'zero'", "error", "drop", "keep")),
        ({"chunk_bytes": 0}, r"(?=.*chunk)(?=.*\b0\b)"),
    ],
)
def test_config(config: Any, pattern: str) -> None:
    with pytest.raises(InputError, match=pattern):
        IngestConfig(**config)


def test_source_that_changes_during_the_ingest(tmp_path: Path) -> None:
    source, out = tmp_path / "x.npy", tmp_path / "out"
    np.save(source, np.ones((20, 3), np.float32))

    def write(event: Any) -> None:
        if isinstance(event, PhaseFinished):
            np.save(source, np.full((20, 3), 2, np.float32))

    with pytest.raises(UnusableRowsError, match=expecting(source)):
        ingest(source, out, listener=write)
    assert not out.exists()


def write_remote(url: str, value: float) -> None:
    rows = np.full((20, 3), value, np.float32)
    zarr.create_array(
        locate(url).store(), name="features", data=rows, chunks=(5, 3), overwrite=True
    )


def test_remote_source_that_changes(tmp_path: Path) -> None:
    url, out = f"memory://{tmp_path.name}/x", tmp_path / "out"
    zarr.create_group(locate(url).store())
    write_remote(url, 1)

    def write(event: Any) -> None:
        if isinstance(event, PhaseFinished):
            write_remote(url, 2)

    with pytest.raises(UnusableRowsError, match=expecting(f"{url}/features")):
        ingest(url, out, listener=write)
    assert not out.exists()
    job = prepare_ingest(url, out)
    write_remote(url, 3)
    with pytest.raises(StoreError, match=expecting(f"{url}/features")):
        job.run()
    assert not out.exists()


def test_remote_ids_that_change(tmp_path: Path) -> None:
    source, url, out = tmp_path / "x.npy", f"memory://{tmp_path.name}/ids", tmp_path / "out"
    np.save(source, np.ones((20, 3), np.float32))
    zarr.create_array(locate(url).store(), data=np.arange(20))

    def write(event: Any) -> None:
        if isinstance(event, PhaseFinished):
            zarr.create_array(locate(url).store(), data=np.arange(20) + 1, overwrite=True)

    with pytest.raises(UnusableRowsError, match=expecting(url)):
        ingest(source, out, IngestConfig(ids=url), listener=write)


def test_blocks_are_kept_if_the_source_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, out, config = f"memory://{tmp_path.name}/x", tmp_path / "out", IngestConfig(chunk_bytes=60)
    zarr.create_group(locate(url).store())
    write_remote(url, 1)
    read, starts = ZarrSource.read, list[int]()

    def fail(source: ZarrSource, start: int, stop: int) -> Any:
        starts.append(start)
        if len(starts) > 2:
            raise UnreachableError(f"{source.what} cannot be reached")
        return read(source, start, stop)

    with monkeypatch.context() as patched, dask.config.set(scheduler="sync"):
        patched.setattr(ZarrSource, "read", fail)
        with pytest.raises(UnreachableError):
            ingest(url, out, config)
    assert ingest(url, out, config).kept_blocks == 2


def test_workers_must_see_all_source_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(tmp_path / name) for name in ("a.npy", "b.npy", "ids.npy")]
    for path in paths[:2]:
        np.save(path, np.ones((5, 3), np.float32))
    np.save(paths[2], np.arange(10))
    checked: list[list[str]] = []
    monkeypatch.setattr(
        ingest_job, "check_paths_visible", lambda *at: checked.append([each.url for each in at])
    )
    ingest(paths[:2], tmp_path / "out", IngestConfig(ids=paths[2]))
    assert checked[0] == paths


@pytest.mark.parametrize("mounted", ["smaller", "larger"])
def test_space_of_a_mount_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounted: str
) -> None:
    """The output is an empty mount point: the space of its parent does not matter."""
    source, out = tmp_path / "x.npy", tmp_path / "out"
    np.save(source, np.ones((100, 10), np.float32))
    out.mkdir()
    sizes = {out: 3000, tmp_path: 10**9} if mounted == "smaller" else {out: 10**9, tmp_path: 3000}
    usage = SimpleNamespace(disk_usage=lambda at: SimpleNamespace(free=sizes[Path(at)]))
    monkeypatch.setattr(ingest_job, "shutil", usage)
    if mounted == "larger":
        prepare_ingest(source, out)
        return
    with pytest.raises(OSError, match=expecting(4000, 3000)) as caught:
        prepare_ingest(source, out)
    assert "stays" not in str(caught.value)


def test_space_next_to_a_complete_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = tmp_path / "x.npy", tmp_path / "out"
    np.save(source, np.ones((100, 10), np.float32))
    ingest(source, out)
    usage = SimpleNamespace(disk_usage=lambda at: SimpleNamespace(free=3000))
    monkeypatch.setattr(ingest_job, "shutil", usage)
    with pytest.raises(OSError, match=r"4000.*3000.*stays"):
        prepare_ingest(source, out, overwrite=True)


@pytest.mark.parametrize(("chunk_bytes", "warns"), [(16, True), (32, False), (2**26, False)])
def test_many_small_chunks_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, warns: bool
) -> None:
    monkeypatch.setattr("scrlm_dask.pipeline.ingest_job.MANY_BLOCKS", 10)
    np.save(tmp_path / "x.npy", np.ones((20, 4), np.float32))
    notes: list[Any] = []
    config = IngestConfig(chunk_bytes=chunk_bytes)
    ingest([tmp_path / "x.npy"], tmp_path / "x.zarr", config, listener=notes.append)
    texts = [note.text for note in notes if isinstance(note, Note) and "--chunk-size" in note.text]
    assert len(texts) == warns
    assert all(fact in text for text in texts for fact in ("20 chunks", "0.016 kB"))
