"""Nothing imports upward: read from the source, so that imports inside functions count too."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE, CLI = ROOT / "scrlm_dask", ROOT / "cli"
BACKENDS = ("dask", "zarr", "distributed")


def sources(*folders: Path) -> list[Path]:
    found = sorted(path for folder in folders for path in folder.rglob("*.py"))
    assert found, f"no source in {folders}"
    return found


def imports_in(code: str) -> Iterator[tuple[int, str]]:
    """(line, what is imported) as a dotted name; relative imports start with dots."""
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
        for line, name in imports_in(path.read_text())
        if any(within(name, module) for module in forbidden)
    ]


def test_the_reader_of_imports() -> None:
    code = """
import dask.array as da, zarr
from scrlm_dask import pipeline
from .console import Console
from .. import tables
if TYPE_CHECKING:
    from scrlm_dask.storage.runs import RunDirectory
def f():
    from distributed import Client
"""
    assert {name for _, name in imports_in(code)} == {
        "dask.array",
        "zarr",
        "scrlm_dask.pipeline",
        ".console.Console",
        "..tables",
        "scrlm_dask.storage.runs.RunDirectory",
        "distributed.Client",
    }
    assert within("dask.array", "dask")
    assert not within("dask_ml.cluster", "dask")


def test_offences_are_found() -> None:
    # the pipeline does import passes: the tests below would see it
    assert offences(sources(PACKAGE / "pipeline"), "scrlm_dask.passes")


UPPER = ("pipeline", "estimators", "rivals", "experiments")
FORBIDDEN = {
    "kernels": (
        *BACKENDS,
        *("click", "rich", "logging", "fsspec", "sklearn"),
        *(f"scrlm_dask.{name}" for name in ("storage", "sources", "passes", "cluster", "events")),
        *(f"scrlm_dask.{name}" for name in UPPER),
    ),
    "storage": (
        *("dask", "distributed", "click"),
        *(f"scrlm_dask.{name}" for name in ("sources", "passes", "cluster", *UPPER)),
    ),
    "sources": (
        *("dask", "distributed", "click"),
        *(f"scrlm_dask.{name}" for name in ("passes", "cluster", "events", *UPPER)),
    ),
    # a model and nothing around it: what is encoded, and where it goes, others know
    "encoders": (
        *("dask", "distributed", "zarr", "click"),
        *(f"scrlm_dask.{name}" for name in ("storage", "sources", "passes", "cluster", "events")),
        *(f"scrlm_dask.{name}" for name in UPPER),
    ),
    # events in, pictures and lines out; storage, passes and the pipeline tell it, not the reverse
    "watching": (
        *("zarr", "click", "numba"),
        *(f"scrlm_dask.{name}" for name in ("storage", "sources", "passes", "cluster", *UPPER)),
    ),
    # a run that is over: it needs its files and no cluster
    "reporting": (
        *("dask", "distributed", "click"),
        *(f"scrlm_dask.{name}" for name in ("passes", "cluster", "watching", *UPPER)),
    ),
    "passes": ("click", *(f"scrlm_dask.{name}" for name in ("cluster", *UPPER))),
    "estimators": (
        "click",
        *(f"scrlm_dask.{name}" for name in ("rivals", "experiments", "cluster")),
    ),
    # beside the estimators, one of which it compares; workers are no business of its own
    "rivals": ("click", "distributed", "zarr", "scrlm_dask.cluster", "scrlm_dask.experiments"),
    # on top of everything but the command line
    "experiments": ("click", "zarr", "scrlm_dask.cluster"),
}


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_a_layer_imports_nothing_from_above(layer: str) -> None:
    assert offences(sources(PACKAGE / layer), *FORBIDDEN[layer]) == []


def test_kernels_import_numbers_only() -> None:
    allowed = {"numpy", "scipy", "numba"} | sys.stdlib_module_names
    ours = ("scrlm_dask.kernels", "scrlm_dask.errors")
    others = [
        f"{path.name}:{line} imports {name}"
        for path in sources(PACKAGE / "kernels")
        for line, name in imports_in(path.read_text())
        if name.split(".")[0] not in allowed and not any(within(name, module) for module in ours)
    ]
    assert others == []


def test_of_the_sources_only_the_zarr_source_knows_zarr() -> None:
    others = [path for path in sources(PACKAGE / "sources") if path.name != "zarr_store.py"]
    assert offences(others, "zarr", "fsspec") == []


def test_libraries_of_formats_are_imported_when_they_are_needed() -> None:
    """They are an extra: `require` names it where they are missing."""
    assert offences(sources(PACKAGE, CLI), "pyarrow", "h5py", "datasets") == []
    assert offences(sources(PACKAGE, CLI), "PIL", "torch", "torchvision", "open_clip") == []
    assert offences(sources(PACKAGE, CLI), "sentence_transformers", "transformers") == []
    assert offences(sources(PACKAGE, CLI), "dask_jobqueue", "dask_kubernetes", "asyncssh") == []


def test_rivals_of_other_packages_are_imported_in_one_file() -> None:
    others = [path for path in sources(PACKAGE, CLI) if path.name != "peers.py"]
    assert offences(others, "faiss", "dask_ml", "superkmeans") == []


def test_the_pipeline_does_not_import_the_estimator_or_a_cluster() -> None:
    assert (
        offences(
            sources(PACKAGE / "pipeline"),
            *(f"scrlm_dask.{name}" for name in ("estimators", "rivals", "experiments", "cluster")),
            "click",
        )
        == []
    )


@pytest.mark.parametrize(
    "name", ["errors", "events", "config", "model", "resources", "ahead", "extras", "cluster"]
)
def test_what_everybody_uses_uses_nobody(name: str) -> None:
    upper = tuple(f"scrlm_dask.{module}" for module in ("storage", "sources", "passes", *UPPER))
    found = sources(PACKAGE / name) if (PACKAGE / name).is_dir() else [PACKAGE / f"{name}.py"]
    assert offences(found, *upper) == []


def test_pictures_are_made_of_what_kernels_found() -> None:
    upper = tuple(f"scrlm_dask.{module}" for module in ("storage", "passes", *UPPER))
    assert offences([PACKAGE / "plots.py"], *BACKENDS, *upper) == []
    # Matplotlib is an extra: nobody else may need it
    others = [path for path in sources(PACKAGE, CLI) if path.name != "plots.py"]
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
        name
        for path in sources(CLI)
        for _, name in imports_in(path.read_text())
        if name.startswith(".")
    ]
    assert relative


def test_only_public_modules_of_dask_and_zarr_are_imported() -> None:
    private = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(PACKAGE, CLI)
        for line, name in imports_in(path.read_text())
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
    """Dask runs one task a thread; `parallel=True` inside would take all cores for every task."""
    kernels = sources(PACKAGE)
    assert [path.name for path in kernels for _ in keywords(path, "parallel")] == []
    assert offences(kernels, "numba.prange", "threading.Thread", "concurrent", "joblib") == []
    # one place compiles all kernels: nothing else can bring threads in
    users = [path.name for path in kernels if "numba" in path.read_text().split()]
    assert sorted(set(users) - {"resources.py"}) == ["compiled.py"]
    compiled = PACKAGE / "kernels" / "compiled.py"
    assert '"nogil": True' in compiled.read_text()
    assert "parallel" not in compiled.read_text()
