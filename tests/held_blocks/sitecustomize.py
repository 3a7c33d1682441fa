"""Make blocks of the loss pass wait; Python imports this file if its folder is on PYTHONPATH.

SCRLM_TEST_HOLD is `FILE:BLOCKS`: after BLOCKS blocks in a process, further blocks wait while FILE
exists. See tests/holding.py.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import os
import sys
import time
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

_MODULE, _FUNCTION = "scrlm_dask.kernels.scrlm.loss", "loss_part"
_MAX_SECONDS = 200  # a process must not run long after its test has ended


def _make_waiting(function: Any) -> Any:
    file, _, blocks = os.environ["SCRLM_TEST_HOLD"].rpartition(":")
    seen = itertools.count()

    @functools.wraps(function)
    def wait_first(*args: Any) -> Any:
        deadline = time.monotonic() + _MAX_SECONDS
        held = next(seen) >= int(blocks)
        while held and Path(file).exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return function(*args)

    return wait_first


class _Holding(MetaPathFinder):
    """Replaces the function when its module is imported; importing it here would be slow."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_change(module: Any) -> None:
            execute(module)
            setattr(module, _FUNCTION, _make_waiting(getattr(module, _FUNCTION)))

        loader.exec_module = execute_and_change
        return spec


if "SCRLM_TEST_HOLD" in os.environ:
    sys.meta_path.insert(0, _Holding())
