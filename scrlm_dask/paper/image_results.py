"""What the cells of `images` say: the paper's tables and figures of real data."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.paper.charts import Chart, Line, chart_figure, pictures_figure
from scrlm_dask.paper.framework import NOT_RUN, ExperimentResult, Result, Size, Table

SHOWN = {
    "scrlm": "SCRLM",
    "scrlm+kmeans": "SCRLM + k-means",
    "k-means++": "k-means++",
    "minibatch": "mini-batch k-means",
    "td": "TD",
    "em": "EM",
    "spectral": "SC",
    "complete-linkage": "CL",
    "t-sne+k-means++": "t-SNE + k-means++",
}
_PIXELS = (
    "{names}: raw pixels at deviation 1, not the features of SimCLR or CLIP that the paper has, so "
    "compare methods with each other and not with the paper's numbers"
)

Cells = Mapping[Any, Result]


def image_findings(classes: Mapping[str, int], size: Size, results: Cells) -> ExperimentResult:
    """`classes` has the number of classes of each set."""
    rows = [
        {"data": c.data, "rows": c.rows, "method": SHOWN[c.method], "T": c.n_clusters, **run}
        for c, found in results.items()
        for run in found["runs"]
    ]
    at_classes = {
        (c.data, c.method): found for c, found in results.items() if c.n_clusters == classes[c.data]
    }
    summary = {
        "sets": {name: _of_set(name, results) for name in classes},
        "features": "each at mean 0 and deviation 1; CPU seconds of the fit alone",
    }
    tables = (
        _table("Accuracy (%)", classes, at_classes, "accuracy", 100.0),
        _table("Purity (%)", classes, at_classes, "purity", 100.0),
        _table("CPU seconds", classes, at_classes, "cpu_seconds", 1.0),
        _sweep_table(classes, results),
    )
    return ExperimentResult(
        rows,
        summary,
        tables,
        lambda: _figures(classes, results, at_classes, size),
        (*_pixel_notes(results), *_reasons(results)),
    )


def _methods(cells: Iterable[str]) -> list[str]:
    found = set(cells)
    return [name for name in SHOWN if name in found]


def _values(found: Result | None, name: str, factor: float = 1.0) -> list[float]:
    return [] if found is None else [factor * run[name] for run in found["runs"]]


def _text(found: Result | None, name: str, factor: float) -> str:
    """Mean and spread; nothing is said of a method that did not finish all of its seeds."""
    values = _values(found, name, factor)
    if found is None or found["reason"] is not None or not values:
        return NOT_RUN
    digits = 1 if factor == 100.0 else 2
    return f"{fmean(values):.{digits}f} ± {pstdev(values):.{digits}f}"


def _table(
    title: str,
    classes: Mapping[str, int],
    cells: Mapping[tuple[str, str], Result],
    name: str,
    factor: float,
) -> Table:
    lines = tuple(
        (SHOWN[method], *(_text(cells.get((data, method)), name, factor) for data in classes))
        for method in _methods(method for _, method in cells)
    )
    header = ("method", *(f"{data} (T = {n})" for data, n in classes.items()))
    return Table(f"{title}, mean and deviation over seeds", header, lines)


def _sweep_table(classes: Mapping[str, int], results: Cells) -> Table:
    swept = {data: _swept(data, results) for data in classes}
    lines = tuple(
        (
            c.data,
            str(c.n_clusters),
            SHOWN[c.method],
            _text(found, "purity", 100.0),
            _text(found, "cpu_seconds", 1.0),
        )
        for c, found in sorted(results.items(), key=lambda item: item[0].n_clusters)
        if c.method in swept[c.data]
    )
    ordered = sorted(lines, key=lambda line: list(classes).index(line[0]))
    header = ("set", "T", "method", "purity (%)", "CPU seconds")
    return Table("Purity and time against T", header, tuple(ordered))


def _swept(data: str, results: Cells) -> list[str]:
    """Methods that were run for more than one T."""
    counts: dict[str, set[int]] = {}
    for c in results:
        if c.data == data:
            counts.setdefault(c.method, set()).add(c.n_clusters)
    return _methods(method for method, found in counts.items() if len(found) > 1)


def _of_set(name: str, results: Cells) -> list[dict[str, Any]]:
    return [
        {
            "method": SHOWN[c.method],
            "T": c.n_clusters,
            "rows": c.rows,
            "seeds": len(found["runs"]),
            "reason": found["reason"],
            **{
                f"{what}_{word}": function(_values(found, what)) if found["runs"] else None
                for what in ("accuracy", "purity", "cpu_seconds")
                for word, function in (("mean", fmean), ("deviation", pstdev))
            },
        }
        for c, found in results.items()
        if c.data == name
    ]


def _pixel_notes(results: Cells) -> Iterable[str]:
    names = list(dict.fromkeys(c.data for c, found in results.items() if found["pixels"]))
    if names:
        yield _PIXELS.format(names=" and ".join(names))


def _reasons(results: Cells) -> Iterable[str]:
    """Why there is no number where there is none."""
    for c, found in results.items():
        if found["reason"] is not None:
            yield f"{c.data}, {SHOWN[c.method]}, T {c.n_clusters}: {found['reason']}"


def _figures(
    classes: Mapping[str, int],
    results: Cells,
    at_classes: Mapping[tuple[str, str], Result],
    size: Size,
) -> dict[str, bytes]:
    purity = [_against_T(data, results, "purity", "purity (%)", 100.0) for data in classes]
    seconds = [_against_T(data, results, "cpu_seconds", "CPU seconds", 1.0) for data in classes]
    accuracy = [_against_time(data, T, at_classes) for data, T in classes.items()]
    figures = {
        "purity.png": chart_figure(purity, f"Purity against T ({size})", 2),
        "time.png": chart_figure(seconds, f"Time against T ({size})", 2),
        "accuracy-time.png": chart_figure(accuracy, f"Accuracy against time ({size})", 2),
    }
    pictures = {c.data: found["pictures"] for c, found in results.items() if found["pictures"]}
    if pictures:
        shown = {data: _unpacked(packed) for data, packed in pictures.items()}
        title = f"Centers of SCRLM's clusters, largest first ({size})"
        figures["centers.png"] = pictures_figure(shown, title)
    return figures


def _against_T(data: str, results: Cells, name: str, label: str, factor: float) -> Chart:  # noqa: N802
    lines = [
        _line(SHOWN[method], _points(data, method, results), lambda T, _: float(T), name, factor)
        for method in _swept(data, results)
    ]
    return Chart(data, "clusters T", label, tuple(lines), log_y=name == "cpu_seconds")


def _against_time(data: str, T: int, cells: Mapping[tuple[str, str], Result]) -> Chart:
    lines = [
        _line(
            SHOWN[method],
            {T: found},
            lambda _, one: fmean(_values(one, "cpu_seconds")),
            "accuracy",
            100.0,
        )
        for (name, method), found in cells.items()
        if name == data and found["runs"] and found["reason"] is None
    ]
    title = f"{data} (T = {T})"
    return Chart(title, "CPU seconds", "accuracy (%)", tuple(lines), joined=False)


def _points(data: str, method: str, results: Cells) -> dict[int, Result]:
    return {
        c.n_clusters: found
        for c, found in sorted(results.items(), key=lambda item: item[0].n_clusters)
        if (c.data, c.method) == (data, method) and found["runs"] and found["reason"] is None
    }


def _line(
    label: str,
    points: Mapping[int, Result],
    x: Callable[[int, Result], float],
    name: str,
    factor: float,
) -> Line:
    values = [_values(found, name, factor) for found in points.values()]
    return Line(
        label,
        tuple(x(T, found) for T, found in points.items()),
        tuple(fmean(some) for some in values),
        tuple(pstdev(some) for some in values),
    )


def _unpacked(packed: dict[str, Any]) -> NDArray[np.uint8]:
    flat = np.frombuffer(base64.b64decode(packed["bytes"]), np.uint8)
    return flat.reshape(packed["shape"])
