"""Threads and memory of a process, as the libraries and the kernel themselves see them.

Each case has a process of its own: limits belong to the process, and one that is not given back
would be felt by every test after it.
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

# OpenBLAS takes no more threads than there are cores, and one cannot be told from a pinned one
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
    \"\"\"A thread that goes in and out of `pinned_threads` when it is told.\"\"\"

    def __init__(self, name):
        super().__init__(daemon=True)
        self.label, self.steps, self.done = name, [], threading.Semaphore(0)
        self.told = threading.Semaphore(0)
        self.start()

    def run(self):
        stack = ExitStack()
        while True:
            self.told.acquire()
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
        self.told.release()
        assert self.done.acquire(timeout=20), step
"""


def observe(script: str) -> dict[str, Any]:
    """What `script` saw, in an interpreter whose libraries have two threads each."""
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
def test_one_thread_inside_and_as_before_outside() -> None:
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
def test_every_thread_inside_has_one_thread(two_threads: dict[str, Any]) -> None:
    seen = two_threads
    assert numbers(seen["a before"]) == numbers(seen["b before"]) == {2}
    assert numbers(seen["a with b"]) == {1}
    assert numbers(seen["b with a"]) == {1}  # the limits of OpenMP belong to each thread
    assert numbers(seen["b alone"]) == {1}  # the first one in is gone


@two_cores
def test_the_last_one_out_gives_everything_back(two_threads: dict[str, Any]) -> None:
    # else a fit in threads leaves the caller's process with one thread for good
    seen = two_threads
    assert numbers(seen["a after"]) == {2}
    assert numbers(seen["b after"]) == {2}
    assert numbers(seen["the main thread after"]) == {2}


@two_cores
def test_many_threads_in_and_out_at_once() -> None:
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
def test_a_limit_that_the_caller_set_does_not_undo_the_pin() -> None:
    # threadpoolctl lets one thread only set the limits of OpenBLAS: here the main one
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


def test_peak_memory_rises_with_what_is_used_and_does_not_fall() -> None:
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


def test_a_spawned_process_does_not_start_at_its_parents_memory() -> None:
    # ru_maxrss would: that of a worker is then at least that of the client
    block = np.ones(400 * 2**20, np.uint8)
    assert peak_memory() > 400 * 2**20
    seen = observe('seen["peak"] = peak_memory()')
    assert seen["peak"] < 350 * 2**20
    del block


def test_what_a_run_keeps_of_a_process() -> None:
    report = process_report()
    assert set(report) == {"peak_memory_bytes", "threads"}
    assert 10 * 2**20 < report["peak_memory_bytes"] <= peak_memory() + 2**20
    assert set(report["threads"].values()) == {1}
    assert json.loads(json.dumps(report)) == report  # it goes into run.json
