"""The content of a folder, to compare it before and after."""

from __future__ import annotations

from pathlib import Path


def tree(path: Path) -> dict[str, bytes | None]:
    """Everything below `path`: contents of files, None for folders."""
    return {
        str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in path.rglob("*")
    }
