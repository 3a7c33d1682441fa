"""No layer imports a higher one. Imports are read from the source, also inside functions."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE, CLI = ROOT / "scrlm_dask", ROOT / "cli"
BACKENDS = ("dask", "zarr", "distributed")


def sources(*folders: Path) -> list[Path]:
    found = sorted(path for folder in folders for path in folder.rglob("*.py"))
    assert found, f"no source in {folders}"
    return found


@cache
def read_imports(path: Path) -> tuple[tuple[int, str], ...]:
    """Return the imports of a file; each file is parsed once."""
    return tuple(imports_in(path.read_text()))


def imports_in(code: str) -> Iterator[tuple[int, str]]:
    """Yield (line, imported name) with dotted names; relative imports start with dots."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module = "." * node.level + (node.module or "")
                yield node.lineno, f"{module}{'' if module.endswith('.') else '.'}{alias.name}"


def within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def offences(paths: list[Path], *forbidden: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in paths
        for line, name in read_imports(path)
        if any(within(name, module) for module in forbidden)
    ]


def test_the_reader_of_imports() -> None:
    code = """
import dask.array as da, zarr
from scrlm_dask import pipeline
from .console import Console
from .. import tables
if TYPE_CHECKING:
    from scrlm_dask.storage.run_directory import RunDirectory
def f():
    from distributed import Client
"""
    assert {name for _, name in imports_in(code)} == {
        "dask.array",
        "zarr",
        "scrlm_dask.pipeline",
        ".console.Console",
        "..tables",
        "scrlm_dask.storage.run_directory.RunDirectory",
        "distributed.Client",
    }
    assert within("dask.array", "dask")
    assert not within("dask_ml.cluster", "dask")


def test_offences_are_found() -> None:
    # the pipeline does import passes: the tests below would see it
    assert offences(sources(PACKAGE / "pipeline"), "scrlm_dask.passes")


FOLDERS = (
    *("kernels", "storage", "sources", "encoders", "engine", "passes", "planning", "runs"),
    *("pipeline", "estimators", "clusters", "monitoring", "reporting", "paper"),
)


def others_than(*allowed: str) -> tuple[str, ...]:
    """Return all folders of the package except the given ones: a layer must not import these."""
    folders = [f"scrlm_dask.{folder}" for folder in FOLDERS if folder not in allowed]
    return (*folders, "scrlm_dask.results")


FORBIDDEN = {
    # numbers in, numbers out
    "kernels": (
        *BACKENDS,
        *("click", "rich", "logging", "fsspec", "sklearn", "scrlm_dask.events"),
        *others_than("kernels"),
    ),
    # files, and no cluster
    "storage": ("dask", "distributed", "click", *others_than("storage", "kernels")),
    "sources": (
        "dask",
        "distributed",
        "click",
        *others_than("sources", "storage", "encoders", "kernels"),
    ),
    # one model, without knowledge of where its input and output are stored
    "encoders": ("dask", "distributed", "zarr", "click", *others_than("encoders")),
    # events in, pages and log lines out
    "monitoring": ("zarr", "click", "numba", *others_than("monitoring")),
    # a finished run: its files are enough
    "reporting": (
        *("dask", "distributed", "click"),
        *others_than("reporting", "kernels", "storage", "sources", "runs"),
    ),
    "engine": ("click", *others_than("engine", "kernels", "storage", "sources", "monitoring")),
    "passes": ("click", *others_than("passes", "engine", "kernels", "storage", "sources")),
    "planning": ("click", *others_than("planning", "passes", "engine", "kernels", "storage")),
    "runs": (
        "click",
        *others_than("runs", "planning", "passes", "engine", "kernels", "storage", "monitoring"),
    ),
    "pipeline": ("click", *others_than(*(set(FOLDERS) - {"estimators", "clusters", "paper"}))),
    "estimators": ("click", "scrlm_dask.paper", "scrlm_dask.clusters"),
    "clusters": ("click", *others_than("clusters")),
    "paper": ("click", "zarr", "scrlm_dask.clusters"),
}


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_a_layer_imports_nothing_from_above(layer: str) -> None:
    assert offences(sources(PACKAGE / layer), *FORBIDDEN[layer]) == []


def test_kernels_import_numbers_only() -> None:
    allowed = {"numpy", "scipy", "numba"} | sys.stdlib_module_names
    ours = ("scrlm_dask.kernels", "scrlm_dask.errors", "scrlm_dask.choices")
    others = [
        f"{path.name}:{line} imports {name}"
        for path in sources(PACKAGE / "kernels")
        for line, name in read_imports(path)
        if name.split(".")[0] not in allowed and not any(within(name, module) for module in ours)
    ]
    assert others == []


def test_of_the_sources_only_the_zarr_source_knows_zarr() -> None:
    others = [path for path in sources(PACKAGE / "sources") if path.name != "zarr_store.py"]
    assert offences(others, "zarr", "fsspec") == []


def test_libraries_of_formats_are_imported_when_they_are_needed() -> None:
    """They belong to extras: `import_optional` names the extra if one is missing."""
    assert offences(sources(PACKAGE, CLI), "pyarrow", "h5py", "datasets") == []
    assert offences(sources(PACKAGE, CLI), "PIL", "torch", "torchvision", "open_clip") == []
    assert offences(sources(PACKAGE, CLI), "sentence_transformers", "transformers") == []
    assert offences(sources(PACKAGE, CLI), "dask_jobqueue", "dask_kubernetes", "asyncssh") == []


def test_baselines_of_other_packages_are_imported_in_one_file() -> None:
    others = [path for path in sources(PACKAGE, CLI) if path.name != "baselines.py"]
    assert offences(others, "faiss", "dask_ml", "superkmeans") == []


@pytest.mark.parametrize(
    "name", ["choices", "errors", "events", "config", "settings", "text", "optional"]
)
def test_modules_for_all_layers_import_no_upper_layer(name: str) -> None:
    assert offences([PACKAGE / f"{name}.py"], *others_than("kernels")) == []


def test_only_methods_for_users_of_a_model_import_upper_layers() -> None:
    """`Model` belongs to all layers; `model.predict(...)` delegates to the pipeline when called."""
    tree = ast.parse((PACKAGE / "model.py").read_text())
    (model,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    delegating = {
        node.name
        for node in model.body
        if isinstance(node, ast.FunctionDef) and list(imports_in(ast.unparse(node)))
    }
    assert delegating == {"load", "predict", "_repr_html_"}
    on_import = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [name for node in on_import for _, name in imports_in(ast.unparse(node))]
    assert [n for n in names if any(within(n, folder) for folder in others_than("kernels"))] == []


def test_every_folder_of_the_package_is_covered() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    deprecated = {"watching", "experiments"}  # aliases
    assert folders - deprecated == set(FOLDERS)


def test_pictures_are_made_of_what_kernels_found() -> None:
    assert offences([PACKAGE / "reporting" / "plots.py"], *BACKENDS, *others_than("kernels")) == []
    # Matplotlib is an extra: no other module may need it
    drawing = ("plots.py", "figures.py", "charts.py")
    others = [path for path in sources(PACKAGE, CLI) if path.name not in drawing]
    assert offences(others, "matplotlib") == []


def test_the_package_knows_nothing_of_its_command_line() -> None:
    assert offences(sources(PACKAGE), "scrlm_cli", "cli", "click", "rich") == []


def test_only_storage_knows_file_systems() -> None:
    others = [path for path in sources(PACKAGE, CLI) if path.parent != PACKAGE / "storage"]
    assert offences(others, "fsspec", "s3fs", "botocore") == []
    assert offences(sources(PACKAGE / "storage"), "fsspec")


def test_inside_the_command_line_imports_are_relative() -> None:
    # the folder cli/ is installed as scrlm_cli: neither name holds in both places
    assert offences(sources(CLI), "cli", "scrlm_cli") == []
    relative = [
        name for path in sources(CLI) for _, name in read_imports(path) if name.startswith(".")
    ]
    assert relative


def test_only_public_modules_of_dask_and_zarr_are_imported() -> None:
    private = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(PACKAGE, CLI)
        for line, name in read_imports(path)
        if name.split(".")[0] in BACKENDS
        and (any(part.startswith("_") for part in name.split(".")) or within(name, "zarr.core"))
    ]
    assert private == []


def test_no_private_name_of_dask_and_zarr_is_reached_through_the_public_module() -> None:
    """`dask._x`, `da.core._x`, `zarr.core.x`: the same without an import."""
    reached = []
    for path in sources(PACKAGE, CLI):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute):
                continue
            name = ast.unparse(node)
            root = name.split(".")[0]
            if root in (*BACKENDS, "da") and (
                node.attr.startswith("_") or within(name, "zarr.core")
            ):
                reached.append(f"{path.relative_to(ROOT)}:{node.lineno} reaches {name}")
    assert reached == []


def keywords(path: Path, name: str) -> Iterator[ast.keyword]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == name:
            yield node


def test_no_kernel_starts_threads_of_its_own() -> None:
    """Dask runs one task per thread; with `parallel=True` every task would use all cores."""
    kernels = sources(PACKAGE)
    assert [path.name for path in kernels for _ in keywords(path, "parallel")] == []
    # The exceptions: runs inside tasks of a worker share a pool with as many threads as the worker,
    # and a thread starts a local cluster.
    exceptions = {PACKAGE / "engine" / "workers.py", PACKAGE / "clusters" / "local.py"}
    others = [path for path in kernels if path not in exceptions]
    assert offences(others, "concurrent") == []
    assert offences(kernels, "numba.prange", "threading.Thread", "joblib") == []
    # one place compiles all kernels: nothing else can bring threads in
    users = [path.name for path in kernels if "numba" in path.read_text().split()]
    assert sorted(set(users) - {"threads.py"}) == ["jit.py"]
    compiled = PACKAGE / "kernels" / "jit.py"
    assert '"nogil": True' in compiled.read_text()
    assert "parallel" not in compiled.read_text()
