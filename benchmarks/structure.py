"""Measure the structure of the code base: `python -m benchmarks.structure`.

Count files, lines, imports and functions of the package and the command line, and trace one
`scrlm fit` to count the files and functions it executes.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDERS = ("scrlm_dask", "cli")
FIT = ("--rho", "0.5", "--clusters", "100", "--kmeans-iter", "5", "--nworkers", "0")


def find_modules(root: Path = ROOT) -> dict[str, Path]:
    """Return the modules of the package and the command line as a mapping of name to file."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_modules(name: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """Return the modules among `modules` that a file imports, including inside functions."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                found.add(inner if inner in modules else module)
    return {other for other in found if other in modules and other != name}


def _function_lengths(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            if body:
                yield (body[-1].end_lineno or 0) - body[0].lineno + 1


def _import_lines(tree: ast.Module) -> int:
    """Count the lines of imports at the top level of a module."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
    )


def count_tree(root: Path = ROOT) -> dict[str, Any]:
    """Return counts that do not require running any code."""
    modules = find_modules(root)
    importers: dict[str, set[str]] = defaultdict(set)
    stems: dict[str, list[str]] = defaultdict(list)
    lines = import_lines = 0
    lengths: list[int] = []
    for name, path in modules.items():
        text = path.read_text()
        tree = ast.parse(text)
        lines += len(text.splitlines())
        import_lines += _import_lines(tree)
        lengths += _function_lengths(tree)
        if path.name != "__init__.py":
            stems[path.stem].append(name)
        for other in imported_modules(name, path, modules):
            importers[other].add(name)
    single = sorted(
        name
        for name, path in modules.items()
        if path.name != "__init__.py" and len(importers[name]) == 1
    )
    repeated = sorted(stem for stem, names in stems.items() if len(names) > 1)
    ordered = sorted(lengths)
    return {
        "files": len(modules),
        "lines": lines,
        "import_lines_percent": round(100 * import_lines / lines, 2),
        "modules_with_one_importer": len(single),
        "stems_in_several_folders": len(repeated),
        "function_body_median": int(statistics.median(ordered)),
        "function_body_p90": ordered[int(0.9 * len(ordered))],
        "function_body_max": ordered[-1],
        "one_importer": single,
        "repeated_stems": repeated,
    }


def count_loaded_modules() -> int:
    """Count the modules of the package that `from scrlm_dask import SCRLM` loads."""
    code = (
        "from scrlm_dask import SCRLM; import sys;"
        "print(sum(name.split('.')[0] == 'scrlm_dask' for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


_TRACE = """
import json, sys, threading
from pathlib import Path
root, store, out, *options = sys.argv[1:]
from click.testing import CliRunner
from scrlm_cli.main import main
folders = tuple(str(Path(root, name)) for name in ("scrlm_dask", "cli"))
seen, first_row = {}, []
def trace(frame, event, arg):
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(folders) or code.co_name.startswith("<"):
        return
    key = (code.co_filename, code.co_qualname)
    if key not in seen:
        seen[key] = len(seen) + 1
    if code.co_name == "_read_stored" and not first_row:
        first_row.append(seen[key])
def run(target):
    done = CliRunner().invoke(main, ["fit", store, "--out", target, *options])
    assert done.exit_code == 0, done.output
threading.setprofile(trace); sys.setprofile(trace)  # before Dask starts its threads
run(out + "-warm")
seen.clear(); first_row.clear()
run(out)
sys.setprofile(None); threading.setprofile(None)
files = {file for file, _ in seen}
counts = {
    "fit_files": len(files),
    "fit_functions": len(seen),
    "fit_functions_before_first_row": first_row[0] - 1 if first_row else None,
    "listing": [f"{file[len(root) + 1:]}:{name}" for file, name in seen],
}
print(json.dumps(counts))
"""


def trace_fit(root: Path = ROOT) -> dict[str, Any]:
    """Run `scrlm fit` on a small store in threads; count the files and functions it executes."""
    with tempfile.TemporaryDirectory() as folder:
        store, out = f"{folder}/features.zarr", f"{folder}/run"
        synth = ["--rows", "4000", "--features", "16", "--clusters", "5", "--nworkers", "0"]
        scrlm = Path(sys.executable).parent / "scrlm"
        subprocess.run([scrlm, "synth", store, *synth], check=True, capture_output=True)
        command = [sys.executable, "-c", _TRACE, str(root), store, out, *FIT]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        content: dict[str, Any] = json.loads(done.stdout)
        return content


def main() -> None:
    """Print all counts."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--names", action="store_true", help="also list the counted items")
    parser.add_argument("--no-trace", action="store_true", help="do not run `scrlm fit`")
    options = parser.parse_args()
    counts = count_tree()
    if not options.no_trace:
        counts |= {"modules_loaded_by_SCRLM": count_loaded_modules()} | trace_fit()
    for name, value in counts.items():
        if not isinstance(value, list):
            print(f"{name:32} {value}")
        elif options.names:
            print(f"{name}:")
            print(*(f"    {item}" for item in value), sep="\n")


if __name__ == "__main__":
    main()
