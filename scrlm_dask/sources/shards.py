"""Files of a folder or a pattern, in the order that their numbers say, with none missing."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from scrlm_dask.errors import InputError, StoreError

_NUMBER = re.compile(r"(\d+)")
_OF_TOTAL = re.compile(r"(\d+)-of-(\d+)")


def numeric_order(paths: Sequence[str]) -> list[str]:
    """2 before 10."""
    return sorted(paths, key=_key)


def unshelled(paths: Sequence[str]) -> list[str]:
    """Paths as they were given, but files that a shell put in its order, 10 before 2, by number."""
    given = list(paths)
    expanded = len(given) > 1 and given == sorted(given) and all(Path(p).is_file() for p in given)
    return numeric_order(given) if expanded else given


def matching(pattern: str) -> list[str]:
    """Files that a pattern names, in order; a gap between their numbers is an error."""
    found = numeric_order(
        [path for path in glob.glob(pattern) if Path(path).is_file()]  # noqa: PTH207
    )
    if not found:
        raise StoreError(f"no file matches {pattern}; check the path")
    check_no_gap(found, from_first=False)
    return found


def files_in(folder: str, suffixes: Sequence[str]) -> list[str]:
    """The files of a folder that have one of the suffixes: all the same one, none missing."""
    found = [
        str(path)
        for path in Path(folder).iterdir()
        if path.suffix.lower() in suffixes and path.is_file() and not path.name.startswith(".")
    ]
    kinds = sorted({Path(path).suffix.lower() for path in found})
    if not found:
        raise InputError(
            f"the folder {folder} holds no file that ends with one of {', '.join(suffixes)}; "
            "check the path, or name the files"
        )
    if len(kinds) > 1:
        raise InputError(
            f"the folder {folder} holds files of several kinds ({', '.join(kinds)}); say which "
            f"with a pattern, such as '{folder}/*{kinds[0]}'"
        )
    ordered = numeric_order(found)
    check_no_gap(ordered, from_first=True)
    return ordered


def check_no_gap(paths: Sequence[str], from_first: bool) -> None:
    """Refuse numbered files of which one is missing; with `from_first` they begin at 0 or 1.

    Files whose names differ in more than one number, or are not numbered, say nothing.
    """
    totals = [_OF_TOTAL.search(Path(path).name) for path in paths]
    if totals and all(totals):
        _check_totals(paths, [(int(m[1]), int(m[2])) for m in totals if m])
        return
    numbers = _numbers_of(paths)
    if numbers is None:
        return
    first = numbers[0]
    if from_first and first > 1:
        raise StoreError(f"{_name_like(paths[0], first, 0)} is missing: the first is {paths[0]}")
    for before, number, path in zip(numbers, numbers[1:], paths[1:], strict=False):
        if number != before + 1:
            raise StoreError(
                f"{_name_like(path, number, before + 1)} is missing: {path} comes after number "
                f"{before}; restore it, or name the files one by one"
            )


def _check_totals(paths: Sequence[str], shards: list[tuple[int, int]]) -> None:
    """Names like data-00003-of-00010 say themselves how many there are."""
    numbers, total = {number for number, _ in shards}, shards[0][1]
    missing = sorted(set(range(total)) - numbers)
    # some count from 1
    if missing and numbers != set(range(1, total + 1)):
        example = _name_like(paths[0], shards[0][0], missing[0])
        raise StoreError(
            f"{example} is missing: {len(numbers)} of {total} files are there; restore it, or "
            "name the files one by one"
        )


def _numbers_of(paths: Sequence[str]) -> list[int] | None:
    """The one number in which the names differ."""
    pieces = [_NUMBER.split(Path(path).name) for path in paths]
    if len(pieces) < 2 or len({len(piece) for piece in pieces}) != 1:
        return None
    different = [i for i, texts in enumerate(zip(*pieces, strict=True)) if len(set(texts)) > 1]
    if len(different) != 1 or different[0] % 2 == 0:
        return None
    return [int(piece[different[0]]) for piece in pieces]


def _name_like(path: str, number: int, wanted: int) -> str:
    """The path with another number, as many digits wide."""
    folder, name = Path(path).parent, Path(path).name

    def replaced(match: re.Match[str]) -> str:
        text = match[0]
        return f"{wanted:0{len(text)}d}" if int(text) == number else text

    return str(folder / _NUMBER.sub(replaced, name, count=0))


def _key(path: str) -> tuple[object, ...]:
    """Numbers count in names of folders, too; the path itself tells 1 from 01."""
    return (*(_counted(part) for part in Path(path).parts), (), path)


def _counted(name: str) -> tuple[object, ...]:
    return tuple(int(p) if i % 2 else p for i, p in enumerate(_NUMBER.split(name)))
