"""Commands of a user who owns nothing: home, site-packages and other folders are not writable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of other users"),
]

NOBODY, NO_ACCOUNT = 65534, 54321
REPOSITORY = Path(__file__).parents[3]
SCRLM = str(Path(sys.executable).with_name("scrlm"))
SYNTH = ("--rows", 600, "--features", 8, "--clusters", 3, "--chunk-size", "8kB")
FIT = ("--rho", 0.5, "--clusters", 3)
# Variables that name folders of the test process, or that change where commands run.
REMOVED = ("DASK_", "NUMBA_", "MPL", "XDG_", "TMP", "TEMP", "PYTHON", "HOME", "USER", "LOGNAME")


class User:
    """Runs commands as a user who can write only to `own` and to the folders of all users."""

    def __init__(self, root: Path) -> None:
        self.own, self.locked, self._aside = root / "own", root / "locked", root / "aside"
        for path in (self.own, self.locked, self._aside):
            path.mkdir()
        self.own.chmod(0o777)
        self.locked.chmod(0o555)
        try:
            code = "import scrlm_dask, os; print(os.getuid())"
            done = self.start("-c", code, program=sys.executable)
        except FileNotFoundError as error:
            pytest.skip(f"{error.filename} is not installed")
        if done.stdout.strip() != str(NOBODY):
            pytest.skip(f"the package cannot be used by another user here: {done.stderr[-300:]}")

    def scrlm(self, *args: Any, uid: int = NOBODY, **environment: str) -> dict[str, Any]:
        """Run `scrlm ARGS --json`; return the result."""
        done = self.start(*args, "--json", uid=uid, **environment)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        assert list(self.locked.iterdir()) == []
        return dict(json.loads(done.stdout))

    def start(
        self,
        *args: Any,
        program: str = SCRLM,
        uid: int = NOBODY,
        mounts: Sequence[str] = (),
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in a folder that is not writable, after the commands `mounts`."""
        drop = f"setpriv --reuid={uid} --regid={uid} --clear-groups --no-new-privs"
        steps = [*self._open_paths(), *mounts, f"cd {self.locked}", f'exec {drop} "$@"']
        private = ["unshare", "--mount", "--propagation", "private", "sh", "-ec"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(REMOVED)}
        return subprocess.run(
            [*private, "\n".join(steps), "sh", program, *map(str, args)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            env={**kept, "DASK_SCRLM__DASHBOARD_PORT": "0", **environment},
        )

    def _open_paths(self) -> list[str]:
        """Return shell commands that make interpreter and package reachable in their namespace.

        They are often in the home directory of root, which other users cannot enter. In the
        namespace, an empty directory replaces it and contains only the mounted paths.
        """
        paths = [Path(sys.base_prefix), Path(sys.prefix), REPOSITORY]
        closed = {path: folder for path in paths if (folder := _first_closed(path)) is not None}
        names = {path: f"{self._aside}/{number}" for number, path in enumerate(closed)}
        return [
            f"mount -t tmpfs tmpfs {self._aside}",
            *(f"mkdir {at} && mount --bind {path} {at}" for path, at in names.items()),
            *(f"mount -t tmpfs -o mode=0755 tmpfs {at}" for at in sorted(set(closed.values()))),
            *(f"mkdir -p {path} && mount --bind {at} {path}" for path, at in names.items()),
        ]


def _first_closed(path: Path) -> Path | None:
    """Return the first folder on the path that other users cannot enter."""
    folders = [*reversed(path.resolve().parents), path.resolve()]
    return next((folder for folder in folders if not folder.stat().st_mode & 0o001), None)


@pytest.fixture(scope="module")
def user() -> Iterator[User]:
    root = Path(tempfile.mkdtemp(prefix="scrlm-user-"))
    root.chmod(0o755)  # other users cannot enter the temporary folders of pytest
    try:
        yield User(root)
    finally:
        (root / "aside").rmdir()  # fails if a mount is left, before anything in it is removed
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def run(user: User) -> Path:
    """Return a run that the user has written, next to its features in `x.zarr`."""
    home = {"HOME": str(user.locked)}
    user.scrlm("synth", user.own / "x.zarr", *SYNTH, "--nworkers", 0, **home)
    run = user.own / "run"
    user.scrlm("fit", user.own / "x.zarr", *FIT, "--out", run, "--nworkers", 0, **home)
    return run


def test_commands_with_a_home_that_is_not_writable(
    user: User,
    run: Path,
    invoke: Callable[..., Any],
    labels_of: Callable[[Path], np.ndarray],
    results_of: Callable[[Path], dict[str, bytes]],
    tmp_path: Path,
) -> None:
    """Also TMPDIR is not writable; Python then uses another temporary folder."""
    invoke("fit", run.parent / "x.zarr", *FIT, "--out", tmp_path / "root").ok()
    expected = results_of(tmp_path / "root")
    assert results_of(run) == expected
    assert run.stat().st_uid == NOBODY
    on_worker, locked = user.own / "on-worker", str(user.locked)
    fit = ("fit", user.own / "x.zarr", *FIT, "--out", on_worker, "--nworkers", 1)
    user.scrlm(*fit, HOME=locked, TMPDIR=locked)
    assert results_of(on_worker) == expected
    predicted = user.own / "predicted.zarr"
    predict = ("predict", run, user.own / "x.zarr", "--out", predicted, "--nworkers", 0)
    user.scrlm(*predict, HOME="/nonexistent")
    np.testing.assert_array_equal(labels_of(predicted), labels_of(run))
    report = user.scrlm("report", run, "--out", user.own / "report.html", HOME="/nonexistent")
    assert Path(report["report"]).stat().st_uid == NOBODY
    assert len(report["figures"]) > 3


def test_commands_of_a_user_without_account(
    user: User, run: Path, labels_of: Callable[[Path], np.ndarray]
) -> None:
    """Containers may run with any user id, and then set HOME to the root folder."""
    predicted, x = user.own / "by-number.zarr", user.own / "x.zarr"
    predict = ("predict", run, x, "--out", predicted, "--nworkers", 1)
    done = user.start(*predict, uid=NO_ACCOUNT)
    _check_rejected(done, "HOME", str(NO_ACCOUNT), "--nworkers 0")
    user.scrlm(*predict, uid=NO_ACCOUNT, HOME="/")
    np.testing.assert_array_equal(labels_of(predicted), labels_of(run))
    page = user.own / "by-number.html"
    user.scrlm("report", run, "--out", page, uid=NO_ACCOUNT)
    assert page.stat().st_uid == NO_ACCOUNT


def test_no_folder_of_temporary_files_is_writable(user: User, run: Path) -> None:
    out, x = user.own / "rejected", run.parent / "x.zarr"
    folders = [path for path in ("/tmp", "/var/tmp", "/usr/tmp") if Path(path).is_dir()]
    mounts = [
        f"mount --bind {path} {path} && mount -o remount,bind,{mode} {path}"
        for path, mode in [*((path, "ro") for path in folders), (user.own, "rw")]
    ]
    home = {"HOME": str(user.locked)}
    fit = ("fit", x, *FIT, "--out", out, "--nworkers", 1)
    _check_rejected(user.start(*fit, mounts=mounts, **home), "TMPDIR", "--nworkers 0", "/var/tmp")
    assert not out.exists()
    synth = ("synth", user.own / "in-threads.zarr", *SYNTH, "--nworkers", 0)
    done = user.start(*synth, mounts=mounts, **home)
    assert done.returncode == 0, done.stderr


def _check_rejected(done: subprocess.CompletedProcess[str], *facts: str) -> None:
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr
    for fact in facts:
        assert fact in done.stderr
