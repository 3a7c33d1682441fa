"""Settings that must stand before Numba, scikit-learn and SciPy are imported."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # else scikit-learn skips one of its checks

# Numba's cache looks at the file of a kernel, not at those of the kernels it calls: after a change
# to any of them all are compiled anew, or a test could pass with yesterday's code.
_kernels = sorted((Path(__file__).parents[1] / "scrlm_dask" / "kernels").rglob("*.py"))
_state = hashlib.sha256(b"".join(path.read_bytes() for path in _kernels)).hexdigest()[:16]
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"scrlm-numba-{_state}"))

# the tests run in two processes, and the clusters of both would find the usual port free at once
os.environ.setdefault("DASK_SCRLM__DASHBOARD_PORT", "0")

settings.register_profile("suite", deadline=None)  # a first example may compile a kernel
settings.load_profile("suite")


@pytest.fixture(scope="session")
def run_by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of `by_hand.py`, to be read only; its features are in `x.zarr` next to it."""
    from by_hand import write_run  # imports Numba

    return write_run(tmp_path_factory.mktemp("by-hand"))
