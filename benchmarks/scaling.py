"""Measure how the time of passes scales with the data and with the number of workers.

    python -m benchmarks.run --only scaling

CPU seconds are measured for the loss pass as a function of N, p and n, and for a k-means iteration
as a function of N, p and k. One number varies at a time. Each point is compared with the bare
product of the same shape.
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
    """Yield one point for each pass, each varied number, and each value of this number."""
    for work in PASSES:
        known: dict[Shape, tuple[float, float]] = {}  # the largest shape is part of three curves
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
    """Return the exponent of each curve, and of the product's curve."""
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
    """Return the points of each curve, in the order of measurement."""
    return [(name, list(curve)) for name, curve in groupby(points, itemgetter("pass", "in"))]


def exponent(curve: list[dict[str, Any]], measure: str) -> float:
    """Return the exponent of a power law, fitted by least squares of logarithms."""
    x, y = ([point[name] for point in curve] for name in ("value", measure))
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def worker_numbers(cores: int) -> list[int]:
    """Return the powers of two up to `cores`, and `cores`, descending.

    The order is descending, because removing workers is faster than adding workers.
    """
    doubled = {2**i for i in range(cores.bit_length())}
    return sorted({number for number in doubled if number <= cores} | {cores}, reverse=True)
