"""Format numbers, sizes and errors for people."""

from __future__ import annotations


def format_bytes(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"


def plural(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def one_line(error: BaseException) -> str:
    """What an error of a library is called, and says."""
    return ": ".join(filter(None, (type(error).__name__, " ".join(str(error).split()))))
