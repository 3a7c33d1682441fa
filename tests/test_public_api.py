"""The public API: every name is documented in numpydoc's form, and its examples run."""

from __future__ import annotations

import doctest
import inspect
import re
import warnings
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

import scrlm_dask
from scrlm_dask import errors, results

MODULES = {"errors", "events", "results"}
NAMES = sorted(set(scrlm_dask.__all__) - MODULES)
ERRORS = [
    name
    for name, value in vars(errors).items()
    if inspect.isclass(value) and value.__module__ == errors.__name__
]
SECTION = re.compile(
    r"^(Parameters|Returns|Yields|Raises|Examples|Attributes|See Also|Notes)\n-+$", re.M
)
# their methods are public; those of config classes are for the package itself
OBJECTS = ("FeatureStore", "KMeans", "Model", "Run", "SCRLM")
# inherited from scikit-learn, which documents them
INHERITED = {"get_params", "set_params", "get_metadata_routing"}


def is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception | Warning)


def documented() -> Iterator[tuple[str, Any]]:
    """Yield every public function, class and method by its full name."""
    for name in NAMES:
        value = getattr(scrlm_dask, name)
        yield name, value
        if name in OBJECTS:
            for method, member in inspect.getmembers(value, inspect.isroutine):
                ours = (getattr(member, "__module__", None) or "").startswith("scrlm_dask")
                if ours and not method.startswith("_") and method not in INHERITED:
                    yield f"{name}.{method}", member


DOCUMENTED = dict(documented())


def sections(value: Any) -> dict[str, str]:
    """Return the numpydoc sections of a docstring by title."""
    text = inspect.getdoc(value) or ""
    parts = SECTION.split(text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def listed(section: str) -> set[str]:
    """Return the names that a section of parameters lists; `a, b : int` lists two."""
    heads = re.findall(r"^([\w, ]+?) :|^(\*\*\w+)$", section, re.M)
    names = [name for head in heads for name in "".join(head).split(",")]
    return {name.strip().lstrip("*") for name in names}


def test_about_twenty_names_and_three_modules() -> None:
    assert len(NAMES) <= 24
    assert set(scrlm_dask.__all__) >= MODULES


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_parameter_is_documented(name: str) -> None:
    value = DOCUMENTED[name]
    if is_error(value):
        return
    parameters = set(inspect.signature(value).parameters) - {"self"}
    assert listed(sections(value).get("Parameters", "")) == parameters


@pytest.mark.parametrize("name", DOCUMENTED)
def test_results_are_documented(name: str) -> None:
    value = DOCUMENTED[name]
    if not inspect.isroutine(value):
        return
    returned = inspect.signature(value).return_annotation
    assert returned in ("None", None) or {"Returns", "Yields"} & sections(value).keys()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_named_results_exist(name: str) -> None:
    named = re.findall(r"scrlm_dask\.results\.(\w+)", inspect.getdoc(DOCUMENTED[name]) or "")
    assert set(named) <= set(results.__all__)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_name_has_an_example(name: str) -> None:
    assert ">>>" in sections(DOCUMENTED[name]).get("Examples", "")


@pytest.mark.parametrize("name", [*ERRORS])
def test_errors_are_explained(name: str) -> None:
    assert inspect.getdoc(getattr(errors, name))


@pytest.mark.parametrize("name", results.__all__)
def test_result_classes_explain_their_fields(name: str) -> None:
    value = getattr(results, name)
    assert is_dataclass(value)
    fields = set(value.__dataclass_fields__)
    assert listed(sections(value).get("Attributes", "")) >= fields


def test_annotated_results_can_be_imported() -> None:
    """Every class of the package that a public function returns is public itself."""
    public = {*NAMES, *results.__all__}
    for name, value in DOCUMENTED.items():
        if not inspect.isroutine(value):
            continue
        words = re.findall(r"\b[A-Z]\w+", str(inspect.signature(value).return_annotation))
        ours = set(words) - {"None", "Self", "NDArray", "Any", "Array", "Iterator"}
        assert ours <= public, name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write what the examples use: two stores, a run, files to ingest and to embed."""
    return prepare_examples(tmp_path_factory.mktemp("examples"))


def prepare_examples(folder: Path) -> Path:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    spec = scrlm_dask.MixtureSpec(n_features=32, n_clusters=6, outliers=0.2)
    for name, rows in (("features", 2000), ("new", 500)):
        scrlm_dask.synth(folder / f"{name}.zarr", rows, spec, chunk_bytes=2**16)
    config = scrlm_dask.FitConfig(rho=0.5, n_clusters=6)
    scrlm_dask.fit(folder / "features.zarr", config, out=folder / "run")
    (folder / "embeddings").mkdir()
    for shard in range(2):
        np.save(folder / "embeddings" / f"{shard}.npy", rng.normal(size=(300, 8)).astype("float32"))
    (folder / "photos").mkdir()
    for number in range(3):
        pixels = rng.integers(0, 255, (9, 9, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
    (folder / "table.csv").write_text("x,y,kind,comment\n1.5,2,cat,a\n2.5,1,dog,b\n0,0,cat,c\n")
    return folder


@pytest.mark.parametrize("name", [*DOCUMENTED, *(f"errors.{name}" for name in ERRORS)])
def test_examples_run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    value = getattr(errors, name.split(".")[1]) if name.startswith("errors.") else DOCUMENTED[name]
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=flags)
    parsed = doctest.DocTestParser().get_doctest(inspect.getdoc(value) or "", {}, name, None, None)
    report: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scrlm_dask.ScrlmWarning)
        runner.run(parsed, out=report.append)
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("name", scrlm_dask._DEPRECATED)
def test_deprecated_names_still_work(name: str) -> None:
    with pytest.warns(FutureWarning, match=re.escape(scrlm_dask._DEPRECATED[name][2])):
        value = getattr(scrlm_dask, name)
    assert value.__module__.startswith("scrlm_dask.")
