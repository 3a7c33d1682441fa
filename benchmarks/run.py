"""Run all benchmarks.

    python -m benchmarks.run --size small --out results

Print each table when it is ready, and write `results.md`, `results.json` and plots. Numbers
that are compared are measured in the same call. CPU seconds are those of all workers. If a part
fails or its requirements are missing, the reason is printed and the other parts continue. The exit
code is 1 if a part failed.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from distributed import Client

from scrlm_dask.clusters.local import available_cores
from scrlm_dask.config import FitConfig
from scrlm_dask.errors import InputError

from . import imagenet, kmeans_baselines, pruning
from .common import resize, scratch, workers
from .figures import PLOTS, draw
from .kmeans_cpu import kmeans_steps
from .loss_cpu import loss_pass
from .overhead import overhead, speed_ups
from .product import products
from .report import Outcome, Table, cell, write_results
from .scaling import curves, exponents, worker_numbers
from .shapes import SIZES, Size

_RHOS = (0.3, 0.5, 0.75)
_WORKERS = 2
_TIMEOUT = 1800
_MEMORY_LIMIT = "4GB"


class SkippedError(Exception):
    """A requirement of a part is missing; the message names it."""


@dataclass
class Lab:
    """Size, data folder and cluster, which all parts share."""

    size: Size
    place: Path
    _running: ExitStack = field(default_factory=ExitStack)
    _client: Client | None = None

    def client(self, number: int) -> Client:
        """Return a client of `number` workers; a running cluster is resized."""
        if self._client is None:
            self._client = self._running.enter_context(workers(number, _MEMORY_LIMIT))
        resize(self._client, number)
        return self._client

    def close(self) -> None:
        self._client = None
        self._running.close()


Part = Callable[[Lab], Iterator[Table]]


def _loss(lab: Lab) -> Iterator[Table]:
    client, shape, repeats = lab.client(_WORKERS), lab.size.ratios, lab.size.repeats
    store = shape.store(lab.place)
    given = shape.rows, shape.features, shape.candidates
    product = list(products(client, *given, repeats))
    rows = []
    for rho in _RHOS:
        config = FitConfig(rho=rho, n_candidates=shape.candidates)
        runs = [loss_pass(client, store, config) for _ in range(repeats)]
        rows.append(_ratio({"rho": rho}, [(r.phase.seconds, r.cpu) for r in runs], product))
    yield Table(f"Loss pass compared with the bare product, {_shape_text(*given)}", rows)


def _kmeans(lab: Lab) -> Iterator[Table]:
    client, shape, repeats = lab.client(_WORKERS), lab.size.ratios, lab.size.repeats
    given = shape.rows, shape.features, shape.clusters
    steps = kmeans_steps(client, shape.store(lab.place), shape.clusters, 1 + 2 * repeats)
    product = list(products(client, *given, repeats))
    row = _ratio({"k": shape.clusters}, [(s.phase.seconds, s.cpu) for s in steps], product)
    yield Table(f"k-means iteration compared with the bare product, {_shape_text(*given)}", [row])


def _pruning(lab: Lab) -> Iterator[Table]:
    missing = [tool for tool in pruning.tools(lab.size.pruning) if shutil.which(tool) is None]
    if missing:
        raise SkippedError(f"downloading images requires {', '.join(missing)}; not installed")
    found = pruning.measure(lab.client(_WORKERS), lab.place, lab.size.pruning)
    rows = [{**row, "ratio": row["cpu"] / row["product"]} for row in found]
    yield Table("Pruned passes compared with the bare product, CPU seconds", rows)


def _scaling(lab: Lab) -> Iterator[Table]:
    size = lab.size
    client = lab.client(_WORKERS)
    points = list(curves(client, lab.place, size.curves, size.halvings, size.repeats))
    yield Table("CPU seconds of a pass; one size is varied, all others are fixed", points)
    yield Table("Exponents (least squares of logarithms)", exponents(points))
    numbers = worker_numbers(available_cores())
    client = lab.client(numbers[0])
    walls = list(overhead(client, lab.place, size.curves, numbers, size.repeats))
    yield Table("Wall seconds by number of workers", speed_ups(walls))


def _overhead(lab: Lab) -> Iterator[Table]:
    size = lab.size
    client = lab.client(_WORKERS)
    found = list(overhead(client, lab.place, size.overhead, (_WORKERS, 1), size.repeats))
    note = "Share of wall time x workers in which a worker neither read nor computed a block."
    yield Table("Overhead of a pass", found, note)
    yield Table("Two workers compared with one", speed_ups(found))


def _baselines(lab: Lab) -> Iterator[Table]:
    lab.close()  # idle workers would use some CPU
    rows, features, clusters, iterations = lab.size.baselines
    task = kmeans_baselines.Task(rows, features, clusters, 0.2, iterations)
    methods = lab.size.methods or tuple(kmeans_baselines.METHODS)
    found = [
        _peer_row(method, report)
        for method, report in kmeans_baselines.compare(lab.place, task, methods, _TIMEOUT)
    ]
    title = f"k-means and other libraries, {_shape_text(rows, features, clusters)}"
    yield Table(title, found, f"{iterations} iterations; accuracy over rows without outliers.")


def _imagenet(lab: Lab) -> Iterator[Table]:
    lab.close()
    yield from imagenet.measure(lab.place, lab.size.whole)


PARTS: dict[str, Part] = {
    "loss": _loss,
    "kmeans": _kmeans,
    "pruning": _pruning,
    "scaling": _scaling,
    "overhead": _overhead,
    "baselines": _baselines,
    "imagenet": _imagenet,
}


@click.command()
@click.option("--size", type=click.Choice(list(SIZES)), default="small", show_default=True)
@click.option("--out", default="benchmark-results", show_default=True, help="Output folder.")
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(list(PARTS)),
    help="Run only this part; may be repeated.",
)
@click.option("--data", help="Folder for the data (default: temporary).")
def main(size: str, out: str, only: tuple[str, ...], data: str | None) -> None:
    """Run all parts, or the selected ones. Size imagenet runs only the part imagenet."""
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    selected = only or SIZES[size].parts or tuple(PARTS)
    outcomes: dict[str, Outcome] = {}
    with scratch(data) as place:
        lab = Lab(SIZES[size], place)
        try:
            for name in (name for name in PARTS if name in selected):
                outcomes[name] = run_part(name, lab, target)
                write_results(target, size, outcomes)
        finally:
            lab.close()
    print(f"written to {target / 'results.md'}")
    sys.exit(any(outcome.status == "failed" for outcome in outcomes.values()))


def run_part(name: str, lab: Lab, target: Path) -> Outcome:
    """Run a part; return its tables, also if an error occurs after some of them."""
    outcome, begin = Outcome(), time.perf_counter()
    print(f"## {name}", end="\n\n", flush=True)
    try:
        for table in PARTS[name](lab):
            outcome.tables.append(table)
            print(table.markdown(), end="\n\n", flush=True)
    except SkippedError as why:
        outcome.status, outcome.why = "skipped", str(why)
    except Exception as error:  # any error: the other parts must continue
        outcome.status, outcome.why = "failed", f"{type(error).__name__}: {error}"
        with suppress(Exception):  # closing broken workers may raise again
            lab.close()
    outcome.seconds = time.perf_counter() - begin
    if outcome.status == "done" and name in PLOTS:
        _add_plot(name, outcome, target)
    if outcome.why:
        print(f"{outcome.status}: {outcome.why}", end="\n\n", flush=True)
    return outcome


def _add_plot(name: str, outcome: Outcome, target: Path) -> None:
    try:
        draw(name, outcome.tables, target / f"{name}.png")
    except InputError as error:  # Matplotlib is an extra
        outcome.why = f"plot not drawn: {error}"
    else:
        outcome.plots.append(f"{name}.png")


def _ratio(row: dict[str, Any], runs: list[tuple[float, float]], product: Any) -> dict[str, Any]:
    """Add the best times of pass and product, and their ratios, to a table row."""
    wall, cpu = (min(values) for values in zip(*runs, strict=True))
    product_cpu = min(spent.cpu for spent in product)
    product_wall = min(spent.wall for spent in product)
    return row | {
        "cpu_s": cpu,
        "product_cpu_s": product_cpu,
        "ratio": cpu / product_cpu,
        "wall_s": wall,
        "product_wall_s": product_wall,
        "wall_ratio": wall / product_wall,
    }


def _peer_row(method: str, report: dict[str, Any] | str) -> dict[str, Any]:
    found = report if isinstance(report, dict) else {}
    return {
        "method": method if found else f"{method}: {report}",
        "cpu_s": found.get("cpu"),
        "wall_s": found.get("wall"),
        "peak_MB": found["peak"] / 1e6 if found else None,
        "inertia": found.get("inertia"),
        "accuracy": found.get("accuracy"),
    }


def _shape_text(rows: int, features: int, points: int) -> str:
    return f"{cell(rows)} x {features} with {cell(points)}"


if __name__ == "__main__":
    main()
