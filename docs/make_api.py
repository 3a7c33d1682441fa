"""Write `docs/api.md` from the docstrings of the public API: `python docs/make_api.py`."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import scrlm_dask
from scrlm_dask import errors, results

PAGE = Path(__file__).parent / "api.md"
INTRODUCTION = """\
# Python API

<!-- written by docs/make_api.py from the docstrings; do not edit -->

`import scrlm_dask` gives the names on this page; `scrlm_dask.__version__` is the version. The
package is typed. Functions that read features take the source first; settings are config objects or
keyword arguments:

- `source` is a path or URL of a features store, a `FeatureStore`, a Zarr array, a Dask array or a
  NumPy array.
- `out` is the directory or store to write; `overwrite=True` replaces an earlier one.
- `storage_options` are the fsspec options used to open URLs. They are neither printed nor saved.
- `listener` is a function that receives [events](../scrlm_dask/events.py): progress, notes and
  warnings.

The examples use a store `features.zarr` of 2 000 rows, a run `run` on it, and a few small files.
"""
GROUPS = {
    "Estimators": ("SCRLM", "KMeans"),
    "Fitting": ("fit", "FitConfig", "kmeans", "KMeansConfig", "LloydConfig"),
    "Before a fit": ("scan_rho", "plan_fit"),
    "Runs and models": ("Run", "Model", "evaluate"),
    "Features": (
        *("FeatureStore", "ingest", "IngestConfig", "SourceOptions"),
        *("embed", "EmbedConfig", "synth", "MixtureSpec"),
    ),
    "Clusters": ("connect",),
    "Errors and warnings": ("ScrlmError", "ScrlmWarning"),
}
_TITLES = "Parameters|Attributes|Returns|Yields|Raises|Examples|See Also|Notes"
_SECTIONS = re.compile(rf"^({_TITLES})\n-+\n", re.M)
_WIDTH = 100


def render() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for title, names in GROUPS.items():
        parts.append(f"## {title}\n")
        for name in names:
            parts += _entry(name, getattr(scrlm_dask, name), "###")
    parts += _errors()
    parts.append("## Results\n\nClasses of results, in `scrlm_dask.results`.\n")
    for name in results.__all__:
        value = getattr(results, name)
        parts += [f"### `{name}`\n", *_body(value), *_properties(value)]
    return "\n".join(parts)


def _errors() -> Iterator[str]:
    """Yield the errors of `scrlm_dask.errors` that have no entry of their own."""
    yield "### `scrlm_dask.errors`\n"
    yield "Every error of the package is also the builtin in parentheses.\n"
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    for value in classes:
        name = value.__name__
        if value.__module__ == errors.__name__ and name not in GROUPS["Errors and warnings"]:
            summary = (inspect.getdoc(value) or "").splitlines()[0]
            yield f"- `{name}` ({_builtin(value)}): {summary}"
    yield ""


def _builtin(error: type) -> str:
    return next(f"`{each.__name__}`" for each in error.__mro__ if each.__module__ == "builtins")


def _entry(name: str, value: Any, heading: str) -> Iterator[str]:
    yield f"{heading} `{name}`\n"
    if not (inspect.isclass(value) and issubclass(value, Exception)):
        yield f"```text\n{_signature(name, value)}\n```\n"
    yield from _body(value)
    if inspect.isclass(value) and not issubclass(value, Exception):
        yield from _properties(value)
        for method in _methods(value):
            yield from _entry(f"{name}.{method}", getattr(value, method), "####")


def _methods(value: type) -> list[str]:
    """Return the names of the methods that have an example: those for users."""
    return [
        name
        for name, member in inspect.getmembers(value, inspect.isroutine)
        if not name.startswith("_")
        and (getattr(member, "__module__", None) or "").startswith("scrlm_dask")
        and "\nExamples\n" in (inspect.getdoc(member) or "")
    ]


def _properties(value: type) -> Iterator[str]:
    found = [
        (name, inspect.getdoc(member) or "")
        for name, member in vars(value).items()
        if not name.startswith("_")
        and (isinstance(member, property) or type(member).__name__ == "cached_property")
    ]
    if found:
        yield "Properties:\n"
        yield from (f"- `{name}`: {_one_line(text)}" for name, text in found)
        yield ""


def _signature(name: str, value: Any) -> str:
    """Return names and defaults without types, wrapped."""
    signature = inspect.signature(value)
    parameters = [
        parameter.replace(annotation=parameter.empty, default=_default(parameter.default))
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    text = str(signature.replace(parameters=parameters, return_annotation=signature.empty))
    lines = textwrap.wrap(name + text, _WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines)


class _Shown:
    """A default value whose repr is its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


def _default(default: Any) -> Any:
    if inspect.isfunction(default):
        return _Shown(default.__name__)
    return _Shown("...") if repr(default) == "<factory>" else default


def _body(value: Any) -> Iterator[str]:
    """Yield description and sections of a docstring as Markdown."""
    parts = _SECTIONS.split(inspect.getdoc(value) or "")
    yield parts[0].strip() + "\n"
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        if title == "Examples":
            yield from _examples(text)
        else:
            yield f"{title}:\n"
            yield from _items(text)
            yield ""


def _items(text: str) -> Iterator[str]:
    """Yield the entries of a section: `name : type` and an indented description."""
    for match in re.finditer(r"^(\S.*)((?:\n+[ ]+.*)*)", text, re.M):
        head, (description, *points) = match[1], re.split(r"\n\s*- ", match[2])
        description = _one_line(description)
        name, _, kind = head.partition(" : ")
        shown = ", ".join(f"`{each}`" for each in name.split(", ")) + (f" ({kind})" if kind else "")
        yield f"- {shown}: {description}" if description else f"- {shown}"
        yield from (f"  - {_one_line(point)}" for point in points)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _examples(text: str) -> Iterator[str]:
    """Yield code as blocks, and the text between them."""
    for part in re.split(r"\n{2,}", text.strip()):
        yield f"```pycon\n{part}\n```\n" if part.startswith(">>>") else f"{part}\n"


if __name__ == "__main__":
    PAGE.write_text(render())
