"""Set the system clock back for commands and their workers, and only for them.

A preloaded library changes what the C library returns for the system clock. libfaketime is not
used: with it, `time.sleep` of Python 3.11 raises an error.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HOUR, DAY = 3600, 86400

needs_compiler = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("gcc") is None,
    reason="needs gcc on Linux, to compile a library that shifts the clock",
)


class ShiftedClock:
    """The system clock of all processes that are started with `environment`."""

    def __init__(self, folder: Path) -> None:
        self._shift, self._file = 0, folder / "shift"
        self.set_back(0)
        library, source = folder / "shifted_clock.so", Path(__file__).with_suffix(".c")
        compile_library = ["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", str(source)]
        subprocess.run([*compile_library, "-o", str(library), "-ldl"], check=True)
        self.environment = {"LD_PRELOAD": str(library), "SCRLM_TEST_CLOCK": str(self._file)}

    def set_back(self, seconds: int) -> None:
        """Set the clock back, also for running processes."""
        self._shift -= seconds
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("q", self._shift))

    @contextmanager
    def set_back_repeatedly(self, seconds: int = HOUR, every: float = 0.1) -> Iterator[None]:
        """Set the clock back by the given seconds again and again, in a `with` block."""
        over = threading.Event()

        def repeat() -> None:
            while not over.wait(every):
                self.set_back(seconds)

        thread = threading.Thread(target=repeat)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
