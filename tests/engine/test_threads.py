"""Threads and memory of a process, as reported by the libraries and the kernel.

Each case runs in its own process: a limit that is not restored would affect all later tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from os import environ
from typing import Any

import numpy as np
import pytest

from scrlm_dask.clusters.local import available_cores
from scrlm_dask.engine.threads import peak_memory, process_report

# OpenBLAS uses at most one thread per core, and with one thread pinning would not be visible
two_cores = pytest.mark.skipif(available_cores() < 2, reason="needs two cores")

_ENVIRONMENT = {
    "NUMBA_THREADING_LAYER": "omp",
    **dict.fromkeys(
        ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "2"
    ),
}

_PRELUDE = """
import json
import threading
from contextlib import ExitStack
import numba
numba.get_num_threads()  # loads OpenMP
from threadpoolctl import threadpool_info
from scrlm_dask.engine.threads import effective_threads, peak_memory, pinned_threads, process_report

seen = {}

def look(name):
    pools = {}
    for pool in threadpool_info():
        pools.setdefault(pool["user_api"], []).append(pool["num_threads"])
    seen[name] = {**pools, "numba": [numba.get_num_threads()]}

class Actor(threading.Thread):
    \"\"\"A thread that enters and leaves `pinned_threads` on request.\"\"\"

    def __init__(self, name):
        super().__init__(daemon=True)
        self.label, self.steps, self.done = name, [], threading.Semaphore(0)
        self.requested = threading.Semaphore(0)
        self.start()

    def run(self):
        stack = ExitStack()
        while True:
            self.requested.acquire()
            step = self.steps.pop(0)
            if step == "enter":
                stack.enter_context(pinned_threads())
            elif step == "leave":
                stack.close()
            else:
                look(step)
            self.done.release()

    def do(self, step):
        self.steps.append(step)
        self.requested.release()
        assert self.done.acquire(timeout=60), step
"""


def observe(script: str) -> dict[str, Any]:
    """Run `script` in an interpreter whose libraries use two threads; return its `seen`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{_PRELUDE}\n{script}\nprint(json.dumps(seen))"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**environ, **_ENVIRONMENT},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def numbers(seen: dict[str, list[int]]) -> set[int]:
    return {number for pools in seen.values() for number in pools}


@two_cores
def test_threads_are_pinned_inside_and_restored_outside() -> None:
    seen = observe("""
look("before")
with pinned_threads():
    look("inside")
    with pinned_threads():
        look("nested")
    look("after the inner one")
look("after")
try:
    with pinned_threads():
        raise KeyError
except KeyError:
    look("after an error")
seen["effective"] = effective_threads()
look("after a report")
""")
    assert {"blas", "openmp", "numba"} <= set(seen["before"])
    assert numbers(seen["before"]) == {2}
    assert numbers(seen["inside"]) == {1}
    assert numbers(seen["nested"]) == {1}
    assert numbers(seen["after the inner one"]) == {1}
    assert seen["after"] == seen["before"]
    assert seen["after an error"] == seen["before"]
    assert set(seen["effective"]) >= {"numba", "blas:openblas"}
    assert set(seen["effective"].values()) == {1}
    assert seen["after a report"] == seen["before"]


_TWO_THREADS = """
a, b = Actor("a"), Actor("b")
a.do("a before")
b.do("b before")
a.do("enter")
b.do("enter")
a.do("a with b")
b.do("b with a")
a.do("leave")
b.do("b alone")
b.do("leave")
a.do("a after")
b.do("b after")
look("the main thread after")
"""


@pytest.fixture(scope="module")
def two_threads() -> dict[str, Any]:
    return observe(_TWO_THREADS)


@two_cores
def test_libraries_are_pinned_in_every_thread(two_threads: dict[str, Any]) -> None:
    seen = two_threads
    assert numbers(seen["a before"]) == numbers(seen["b before"]) == {2}
    assert numbers(seen["a with b"]) == {1}
    assert numbers(seen["b with a"]) == {1}  # the limits of OpenMP belong to each thread
    assert numbers(seen["b alone"]) == {1}  # the first thread to enter has left


@two_cores
def test_last_thread_to_leave_restores_the_limits(two_threads: dict[str, Any]) -> None:
    # otherwise a fit in threads would leave the caller's process with one thread
    seen = two_threads
    assert numbers(seen["a after"]) == {2}
    assert numbers(seen["b after"]) == {2}
    assert numbers(seen["the main thread after"]) == {2}


@two_cores
def test_many_threads_enter_and_leave_concurrently() -> None:
    seen = observe("""
from concurrent.futures import ThreadPoolExecutor
import numpy as np
matrix = np.ones((64, 64))
wrong = []

def work(number):
    for _ in range(20):
        with pinned_threads():
            matrix @ matrix
            pools = {(p["user_api"], p["num_threads"]) for p in threadpool_info()}
            pools.add(("numba", numba.get_num_threads()))
            wrong.extend(pool for pool in pools if pool[1] != 1)

with ThreadPoolExecutor(4) as pool:
    list(pool.map(work, range(8)))
seen["wrong"] = wrong
look("after")
""")
    assert seen["wrong"] == []
    assert numbers(seen["after"]) == {2}


@two_cores
def test_limit_set_by_the_caller_does_not_undo_the_pinning() -> None:
    # with threadpoolctl only one thread can set the limits of OpenBLAS, here the main thread
    seen = observe("""
from threadpoolctl import threadpool_limits
threadpool_limits(2, user_api="blas")
a = Actor("a")
a.do("enter")
a.do("inside")
a.do("leave")
look("after")
""")
    assert set(seen["inside"]["blas"]) == {1}
    assert set(seen["after"]["blas"]) == {2}


# --- memory -------------------------------------------------------------------------------------


def test_peak_memory_rises_and_does_not_fall() -> None:
    seen = observe("""
import numpy as np
seen["before"] = peak_memory()
block = np.ones(100 * 2**20, np.uint8)
seen["with"] = peak_memory()
del block
seen["after"] = peak_memory()
""")
    assert 10 * 2**20 < seen["before"] < 2**31
    assert 95 * 2**20 < seen["with"] - seen["before"] < 150 * 2**20
    assert seen["after"] >= seen["with"] - 2**20  # the kernel counts in batches


def test_peak_memory_of_a_spawned_process_is_its_own() -> None:
    # ru_maxrss is inherited, so that of a worker would be at least that of the client
    block = np.ones(400 * 2**20, np.uint8)
    assert peak_memory() > 400 * 2**20
    seen = observe('seen["peak"] = peak_memory()')
    assert seen["peak"] < 350 * 2**20
    del block


def test_report_of_a_process() -> None:
    report = process_report()
    assert set(report) == {"peak_memory_bytes", "threads"}
    assert 10 * 2**20 < report["peak_memory_bytes"] <= peak_memory() + 2**20
    assert set(report["threads"].values()) == {1}
    assert json.loads(json.dumps(report)) == report  # it is written to run.json
