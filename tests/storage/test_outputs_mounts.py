"""Outputs in mount points and in folders whose parent is not writable: the folder is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr
from trees import tree

from scrlm_dask.config import FitConfig
from scrlm_dask.errors import ScrlmError
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.export import export
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.ingest import ingest
from scrlm_dask.pipeline.synth import synth
from scrlm_dask.reporting.report import write_report
from scrlm_dask.runs.lifecycle import load_fit

pytestmark = pytest.mark.slow

SPEC = MixtureSpec(8, 2, 0.1)
CONFIG = FitConfig(rho=0.5, n_clusters=2, seed=1, refine=0)  # type: ignore[arg-type]
NOBODY = 65534


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """Return an empty mount point on its own file system."""
    folder = tmp_path / "volume"
    folder.mkdir()
    options = ["-o", "size=4m,mode=0750,uid=1234"]
    command = ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[Path]:
    """Return an empty bind mount of a folder of the same file system, as containers have them."""
    source, folder = tmp_path / "host", tmp_path / "bound"
    for path in (source, folder):
        path.mkdir()
    command = ["mount", "--bind", str(source), str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def locked() -> Iterator[Path]:
    """Return an empty folder in a folder that this process cannot write to."""
    root = Path(tempfile.mkdtemp(prefix="scrlm-locked-"))
    folder = root / "out"
    folder.mkdir()
    root.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:  # root could write to the parent
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    yield folder
    if is_root:
        os.seteuid(0)
    root.chmod(0o755)
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def features() -> Iterator[Path]:
    """Return a folder, readable by all users, with valid features and features with NaN."""
    root = Path(tempfile.mkdtemp(prefix="scrlm-features-"))
    root.chmod(0o755)
    for name in ("x.zarr", "nan.zarr"):
        synth(root / name, 40, SPEC)
    zarr.open_array(str(root / "nan.zarr/features"), mode="r+")[5] = np.nan
    rows = np.ones((20, 4), np.float32)
    np.save(root / "rows.npy", rows)
    rows[3] = np.nan
    np.save(root / "nan.npy", rows)
    yield root
    shutil.rmtree(root)


@pytest.mark.parametrize("name", ["volume", "bound", "locked"])
def test_run_in_a_folder_that_cannot_be_replaced(
    request: pytest.FixtureRequest, features: Path, name: str
) -> None:
    folder: Path = request.getfixturevalue(name)
    before = folder.stat()
    with pytest.raises(ScrlmError):  # rejected rows leave the empty folder
        fit(features / "nan.zarr", CONFIG, out=folder)
    assert list(folder.iterdir()) == []
    first = fit(features / "x.zarr", CONFIG, out=folder)
    old = tree(folder)
    with pytest.raises(ScrlmError):
        fit(features / "nan.zarr", CONFIG, out=folder, overwrite=True)
    assert tree(folder) == old
    fit(features / "x.zarr", CONFIG, out=folder, overwrite=True)
    np.testing.assert_array_equal(load_fit(folder).model.centers, first.model.centers)
    assert sorted(tree(folder)) == sorted(old)
    after = folder.stat()
    assert (after.st_mode, after.st_uid, after.st_gid, after.st_ino, after.st_dev) == (
        *(before.st_mode, before.st_uid, before.st_gid, before.st_ino, before.st_dev),
    )


@pytest.mark.parametrize("name", ["volume", "bound", "locked"])
def test_stores_in_a_folder_that_cannot_be_replaced(
    request: pytest.FixtureRequest, features: Path, name: str
) -> None:
    folder: Path = request.getfixturevalue(name)
    ingest(str(features / "rows.npy"), folder)
    old = tree(folder)
    with pytest.raises(ScrlmError):
        ingest(str(features / "nan.npy"), folder, overwrite=True)
    assert tree(folder) == old
    ingest(str(features / "rows.npy"), folder, overwrite=True)
    synth(folder, 30, SPEC, overwrite=True)
    assert not [path for path in folder.iterdir() if path.name.startswith(".scrlm")]


def test_export_into_an_empty_folder(volume: Path, features: Path, tmp_path: Path) -> None:
    fit(features / "x.zarr", CONFIG, out=tmp_path / "run")
    for overwrite in (False, True):
        files = export(tmp_path / "run", volume, overwrite=overwrite).files
        assert set(files) < {path.name for path in volume.iterdir()}


def test_report_on_a_full_disk_leaves_the_old_report(
    volume: Path, features: Path, tmp_path: Path
) -> None:
    for seed, name in ((1, "a"), (2, "b")):
        config = FitConfig(rho=0.3 + 0.2 * seed, n_clusters=2, seed=seed)
        fit(features / "x.zarr", config, out=tmp_path / name, listener=lambda _: None)
    page = volume / "report.html"
    write_report([tmp_path / "a"], page)
    old = tree(volume)
    # space for the page, but not for all figures
    free = shutil.disk_usage(volume).free - page.stat().st_size - 2**14
    (volume / "filler").write_bytes(bytes(free))
    with pytest.raises(OSError, match="No space left"):
        write_report([tmp_path / "b"], page)
    (volume / "filler").unlink()
    assert tree(volume) == old


def test_fit_on_a_full_disk_leaves_the_old_run(volume: Path, features: Path) -> None:
    fit(features / "x.zarr", CONFIG, out=volume / "run")
    old = tree(volume / "run")
    (volume / "filler").write_bytes(bytes(shutil.disk_usage(volume).free))
    with pytest.raises((OSError, ScrlmError)):
        fit(features / "x.zarr", CONFIG, out=volume / "run", overwrite=True)
    assert tree(volume / "run") == old
