"""The two most expensive passes, the shapes of their data, and the sizes of all benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from distributed import Client

from scrlm_dask.config import FitConfig
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec

from .common import Measured, features_store
from .kmeans_cpu import kmeans_steps
from .loss_cpu import loss_pass


@dataclass(frozen=True)
class Shape:
    """Size of the mixture, numbers of candidates and clusters, and rows per block."""

    rows: int
    features: int
    candidates: int  # of the loss pass
    clusters: int  # of k-means
    block_rows: int
    drawn: int = 100  # clusters of the mixture, independent of `clusters`

    def store(self, place: Path) -> Path:
        spec = MixtureSpec(self.features, self.drawn)
        return features_store(place, self.rows, spec, 4 * self.features * self.block_rows)

    def divided(self, axis: str, by: int) -> Shape:
        return replace(self, **{axis: getattr(self, axis) // by})


@dataclass(frozen=True)
class Pass:
    """A pass that compares all rows with points (candidates or centers), and how to run it."""

    name: str
    points: str  # the field of `Shape` with the number of points
    phase: str
    run: Callable[[Client, Path, Shape, int], list[Measured]]

    def operands(self, shape: Shape) -> tuple[int, int, int]:
        """Return rows, features and points of the product that the pass is compared with."""
        return shape.rows, shape.features, getattr(shape, self.points)


def _losses(client: Client, store: Path, shape: Shape, repeats: int) -> list[Measured]:
    config = FitConfig(rho=0.5, n_candidates=shape.candidates)
    return [loss_pass(client, store, config, block_rows=shape.block_rows) for _ in range(repeats)]


def _iterations(client: Client, store: Path, shape: Shape, repeats: int) -> list[Measured]:
    return kmeans_steps(client, store, shape.clusters, repeats, block_rows=shape.block_rows)


PASSES = (
    Pass("loss", "candidates", "loss", _losses),
    Pass("k-means", "clusters", "kmeans-step", _iterations),
)


@dataclass(frozen=True)
class Whole:
    """Size of a complete fit, and the number of rows on which scikit-learn is measured."""

    rows: int
    features: int
    clusters: int
    part: int
    outliers: float = 0.2
    refine: int = 10


@dataclass(frozen=True)
class Size:
    """Sizes of all parts."""

    ratios: Shape  # of the comparison of passes with the product
    curves: Shape  # the largest point of every curve
    halvings: int  # number of smaller points per curve
    overhead: Shape
    baselines: tuple[int, int, int, int]  # rows, features, clusters, iterations
    methods: tuple[str, ...]  # other libraries to compare with; empty: all
    whole: Whole
    repeats: int
    pruning: str  # the name of a size in `benchmarks.pruning`
    parts: tuple[str, ...] = ()  # parts that run by default; empty: all


_MEDIUM = Size(
    ratios=Shape(131_072, 640, 4096, 1000, 25 * 1024),
    curves=Shape(262_144, 640, 4096, 1000, 8192),
    halvings=4,
    overhead=Shape(24 * 25 * 1024, 640, 4096, 1000, 25 * 1024),
    baselines=(100_000, 640, 1000, 10),
    methods=(),
    whole=Whole(200_000, 640, 200, 20_000),
    repeats=2,
    pruning="full",
)
SIZES = {
    "smoke": Size(
        ratios=Shape(8192, 32, 256, 32, 2048),
        curves=Shape(8192, 32, 256, 32, 1024),
        halvings=1,
        overhead=Shape(8192, 32, 256, 32, 1024),
        baselines=(2048, 32, 8, 2),
        methods=("scrlm_dask random", "faiss superkmeans"),
        whole=Whole(8192, 32, 8, 2048, refine=2),
        repeats=1,
        pruning="smoke",
    ),
    "small": Size(
        ratios=Shape(65_536, 256, 2048, 256, 16_384),
        curves=Shape(65_536, 256, 2048, 256, 4096),
        halvings=3,
        overhead=Shape(8 * 64 * 1024, 256, 1024, 256, 64 * 1024),
        baselines=(20_000, 128, 100, 10),
        methods=(),
        whole=Whole(65_536, 128, 50, 10_000),
        repeats=2,
        pruning="smoke",
    ),
    "medium": _MEDIUM,
    # If --only selects other parts, they have the medium size.
    "imagenet": replace(_MEDIUM, whole=Whole(1_281_167, 640, 1000, 50_000), parts=("imagenet",)),
}
