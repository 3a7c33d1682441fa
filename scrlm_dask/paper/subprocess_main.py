"""The process that `run_with_limits` starts: one fit, measured.

    python -m scrlm_dask.paper.subprocess_main METHOD ROWS.npy CLUSTERS SEED FOLDER

It says "ready" when it has the rows and the fit begins and, at its end, what it took as a line of
JSON. Labels are left in the folder.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.engine.threads import cpu_seconds, peak_memory
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec, synth_block, true_mixture
from scrlm_dask.paper.baselines import Method, find_method
from scrlm_dask.paper.run_with_limits import LABELS_FILE, READY
from scrlm_dask.text import one_line

_WARM_UP_ROWS, _WARM_UP_CLUSTERS = 256, 3
# clusters with a clear scale, and none: SCRLM goes different ways
_WARM_UP = [MixtureSpec(8, _WARM_UP_CLUSTERS, outliers) for outliers in (0.2, 1.0)]


def main(method: str, rows: str, n_clusters: str, seed: str, folder: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    say = _own_stdout()
    warnings.simplefilter("ignore")  # nobody reads them here
    chosen = find_method(method)
    _warm_up(chosen)
    given = np.load(rows, allow_pickle=False)
    say(READY)
    told = _measured(chosen, given, int(n_clusters), int(seed), Path(folder))
    say(json.dumps(told).encode())


def _end_with_parent() -> None:
    """Nothing is ever written to stdin: it ends when whoever started this process does."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def _own_stdout() -> Callable[[bytes], Any]:
    """A way to speak that is not disturbed by libraries that print."""
    own = os.dup(1)
    os.dup2(2, 1)
    return lambda text: os.write(own, text)


def _warm_up(method: Method) -> None:
    """Import and compile what the method needs."""
    for spec in _WARM_UP:
        drawn = synth_block(spec, true_mixture(spec), 0, _WARM_UP_ROWS)
        with suppress(Exception):  # whatever is wrong shows in the fit, too
            method.fit(drawn.features, _WARM_UP_CLUSTERS, 0)


def _measured(
    method: Method, rows: NDArray[np.float32], n_clusters: int, seed: int, folder: Path
) -> dict[str, Any]:
    try:
        cpu, begin = cpu_seconds(), time.perf_counter()
        labels = method.fit(rows, n_clusters, seed)
        cpu, wall = cpu_seconds() - cpu, time.perf_counter() - begin
    except MemoryError:
        return {"error": "more memory than there is", "peak_bytes": peak_memory()}
    except Exception as error:
        return {"error": one_line(error), "peak_bytes": peak_memory()}
    np.save(folder / LABELS_FILE, labels)
    return {"cpu_seconds": cpu, "wall_seconds": wall, "peak_bytes": peak_memory()}


if __name__ == "__main__":
    main(*sys.argv[1:])
