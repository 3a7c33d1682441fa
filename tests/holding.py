"""A pass that is held in its middle for as long as a test wants, without work for any core."""

from __future__ import annotations

from pathlib import Path


class Hold:
    """All blocks of the loss wait as long as it is taken, but for the first few of a process.

    In processes that have the `environment`: the command, and the workers that others start.
    """

    def __init__(self, file: Path, after: int = 0) -> None:
        self._file = file
        folder = Path(__file__).parent / "held_blocks"
        self.environment = {"PYTHONPATH": str(folder), "SCRLM_TEST_HOLD": f"{file}:{after}"}

    def take(self) -> None:
        self._file.touch()

    def release(self) -> None:
        self._file.unlink(missing_ok=True)
