"""How the passes grow with the data, and how they shrink with workers.

    python -m benchmarks.run --only scaling

CPU seconds of the loss pass in N, p and n and of a k-means iteration in N, p and k, everything else
fixed, each beside the bare product of the same shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

from .product import best_product_cpu
from .shapes import PASSES, Pass, Shape

SYMBOLS = {"rows": "N", "features": "p", "candidates": "n", "clusters": "k"}


def curves(
    client: Client, place: Path, largest: Shape, halvings: int, repeats: int
) -> Iterator[dict[str, Any]]:
    """A point for each pass, each number that it grows with and each of its values."""
    for work in PASSES:
        known: dict[Shape, tuple[float, float]] = {}  # the largest point belongs to three curves
        for axis in ("rows", "features", work.points):
            for halving in reversed(range(halvings + 1)):
                shape = largest.divided(axis, 2**halving)
                if shape not in known:
                    known[shape] = _point(client, place, work, shape, repeats)
                cpu, product = known[shape]
                yield {
                    "pass": work.name,
                    "in": SYMBOLS[axis],
                    "value": getattr(shape, axis),
                    "cpu_s": cpu,
                    "product_cpu_s": product,
                    "ratio": cpu / product,
                }


def _point(
    client: Client, place: Path, work: Pass, shape: Shape, repeats: int
) -> tuple[float, float]:
    measured = work.run(client, shape.store(place), shape, repeats)
    product = best_product_cpu(client, *work.operands(shape), repeats)
    return min(run.cpu for run in measured), min(product)


def exponents(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The power of each curve, and that of the product beside it."""
    return [
        {
            "pass": name,
            "in": axis,
            "exponent": exponent(curve, "cpu_s"),
            "product_exponent": exponent(curve, "product_cpu_s"),
        }
        for (name, axis), curve in by_curve(points)
    ]


def by_curve(
    points: list[dict[str, Any]],
) -> list[tuple[tuple[str, str], list[dict[str, Any]]]]:
    """Points that belong together, in the order in which they were measured."""
    return [(name, list(curve)) for name, curve in groupby(points, itemgetter("pass", "in"))]


def exponent(curve: list[dict[str, Any]], what: str) -> float:
    """Least squares in logarithms."""
    x, y = ([point[name] for point in curve] for name in ("value", what))
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def worker_numbers(cores: int) -> list[int]:
    """1, 2, 4, ... and all cores, falling: a cluster shrinks faster than it grows."""
    doubled = {2**i for i in range(cores.bit_length())}
    return sorted({number for number in doubled if number <= cores} | {cores}, reverse=True)
