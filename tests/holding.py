"""Pause a pass in the middle for as long as a test needs, without using a core."""

from __future__ import annotations

from pathlib import Path


class Hold:
    """A lock file: while it exists, all blocks of the loss wait, except the first `after`.

    The count is per process. The lock applies to processes started with `environment`: the command
    and workers that other processes start.
    """

    def __init__(self, file: Path, after: int = 0) -> None:
        self._file = file
        folder = Path(__file__).parent / "held_blocks"
        self.environment = {"PYTHONPATH": str(folder), "SCRLM_TEST_HOLD": f"{file}:{after}"}

    def take(self) -> None:
        self._file.touch()

    def release(self) -> None:
        self._file.unlink(missing_ok=True)
