"""Settings that must be made before Numba, scikit-learn and SciPy are imported."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # otherwise scikit-learn skips one of its checks

# Numba's cache checks the file of a kernel, but not the files of the kernels that it calls. A new
# cache directory after each change to any kernel keeps tests from running outdated code.
_kernels = sorted((Path(__file__).parents[1] / "scrlm_dask" / "kernels").rglob("*.py"))
_state = hashlib.sha256(b"".join(path.read_bytes() for path in _kernels)).hexdigest()[:16]
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(tempfile.gettempdir()) / f"scrlm-numba-{_state}"))

# Tests run in two processes, whose clusters would compete for the default port.
os.environ.setdefault("DASK_SCRLM__DASHBOARD_PORT", "0")

settings.register_profile("suite", deadline=None)  # the first example may compile a kernel
settings.load_profile("suite")


@pytest.fixture(scope="session")
def run_by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the run of `by_hand.py`, with its features next to it in `x.zarr`; read-only."""
    from by_hand import write_run  # imports Numba

    return write_run(tmp_path_factory.mktemp("by-hand"))
