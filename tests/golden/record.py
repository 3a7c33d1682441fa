"""Record the results of all cases, or print a digest of each.

`python tests/golden/record.py` rewrites expected.json. `python tests/golden/record.py --bits`
prints a line for each case with a SHA-256 that includes all bits of its floats. On one machine,
these lines are the same before and after a change that does not change results.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
EXPECTED = HERE / "expected.json"
_WIDTH = 160


def main() -> None:
    """Run the selected cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bits", action="store_true", help="print digests, write nothing")
    parser.add_argument("--case", action="append", help="run only this case; may be repeated")
    parser.add_argument("--times", action="store_true", help="print seconds on stderr")
    arguments = parser.parse_args()
    _prepare()
    results = _results(arguments.case, arguments.times)
    if arguments.bits:
        _print_bits(results)
    else:
        _write(results, whole=arguments.case is None)


def _prepare() -> None:
    """Import the checkout that this file belongs to, with the settings of tests/conftest.py."""
    root = HERE.parents[1]
    sys.path[:0] = [str(HERE.parent), str(root)]
    os.environ.setdefault("SCIPY_ARRAY_API", "1")
    os.environ.setdefault("DASK_SCRLM__DASHBOARD_PORT", "0")
    # Numba's cache does not detect changes in functions that a kernel calls
    code = b"".join(path.read_bytes() for path in sorted((root / "scrlm_dask").rglob("*.py")))
    cache = f"scrlm-golden-numba-{hashlib.sha256(code).hexdigest()[:16]}"
    os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(tempfile.gettempdir()) / cache))
    # an editable install may import the commands of another checkout
    for package in ("scrlm_dask", "scrlm_cli"):
        spec = importlib.util.find_spec(package)
        print(f"{package}: {spec.origin if spec else 'not found'}", file=sys.stderr)


def _results(names: list[str] | None, times: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    from golden.cases import CASES, run_case

    for name in names or CASES:
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            yield name, run_case(name, Path(folder))
        if times:
            print(f"{name}: {time.perf_counter() - begin:.2f} s", file=sys.stderr)


def _print_bits(results: Iterator[tuple[str, dict[str, Any]]]) -> None:
    from golden.comparing import full_digest

    for name, result in results:
        print(f"{full_digest(result)}  {name}", flush=True)


def _write(results: Iterator[tuple[str, dict[str, Any]]], *, whole: bool) -> None:
    """Rewrite expected.json, or only the cases that were run."""
    from golden.comparing import masked, rounded

    expected = {} if whole else json.loads(EXPECTED.read_text())
    expected |= {name: rounded(masked(result)) for name, result in results}
    EXPECTED.write_text(_laid_out(expected) + "\n")
    print(f"{len(expected)} cases, {EXPECTED.stat().st_size} bytes", file=sys.stderr)


def _laid_out(value: Any, indent: int = 0) -> str:
    """Return JSON in which values that fit into one line are not split, for short diffs."""
    line = json.dumps(value, separators=(",", ":"), allow_nan=False)
    if not isinstance(value, dict | list) or len(line) + indent <= _WIDTH:
        return line
    if isinstance(value, dict):
        parts = [f"{json.dumps(k)}:{_laid_out(v, indent + 1)}" for k, v in value.items()]
    else:
        parts = [_laid_out(item, indent + 1) for item in value]
    pad = "\n" + " " * (indent + 1)
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}{pad}{(',' + pad).join(parts)}\n{' ' * indent}{end}"


if __name__ == "__main__":
    main()
