"""Contents of a folder, for comparisons before and after."""

from __future__ import annotations

from pathlib import Path


def tree(path: Path) -> dict[str, bytes | None]:
    """Return all files below `path` with their contents, and folders with None."""
    return {
        str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in path.rglob("*")
    }
