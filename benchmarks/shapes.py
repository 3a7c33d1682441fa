"""The two passes that cost the most, the shapes that they are measured on, and sizes of it all."""

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
    """Rows x features of the mixture, what they are compared with, and rows of a block."""

    rows: int
    features: int
    candidates: int  # of the loss
    clusters: int  # of k-means
    block_rows: int
    drawn: int = 100  # clusters of the mixture: the data does not change with what is asked of it

    def store(self, place: Path) -> Path:
        spec = MixtureSpec(self.features, self.drawn)
        return features_store(place, self.rows, spec, 4 * self.features * self.block_rows)

    def divided(self, axis: str, by: int) -> Shape:
        return replace(self, **{axis: getattr(self, axis) // by})


@dataclass(frozen=True)
class Pass:
    """A pass over all rows: what it multiplies them with, its phase, and how to run it."""

    name: str
    points: str  # a number of the shape
    phase: str
    run: Callable[[Client, Path, Shape, int], list[Measured]]

    def operands(self, shape: Shape) -> tuple[int, int, int]:
        """Rows, features and points of the product that it is measured against."""
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
    """A whole fit, and the part of its rows that scikit-learn is measured on."""

    rows: int
    features: int
    clusters: int
    part: int
    outliers: float = 0.2
    refine: int = 10


@dataclass(frozen=True)
class Size:
    """How large everything is."""

    ratios: Shape  # loss and k-means against the product
    curves: Shape  # the largest point of every curve
    halvings: int  # how many smaller points a curve has
    overhead: Shape
    peers: tuple[int, int, int, int]  # rows, features, clusters, iterations
    methods: tuple[str, ...]  # peers to compare with; none: all
    whole: Whole
    repeats: int
    pruning: str  # the name of its own size
    parts: tuple[str, ...] = ()  # that run unless others are asked for; none: all


_MEDIUM = Size(
    ratios=Shape(131_072, 640, 4096, 1000, 25 * 1024),
    curves=Shape(262_144, 640, 4096, 1000, 8192),
    halvings=4,
    overhead=Shape(24 * 25 * 1024, 640, 4096, 1000, 25 * 1024),
    peers=(100_000, 640, 1000, 10),
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
        peers=(2048, 32, 8, 2),
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
        peers=(20_000, 128, 100, 10),
        methods=(),
        whole=Whole(65_536, 128, 50, 10_000),
        repeats=2,
        pruning="smoke",
    ),
    "medium": _MEDIUM,
    # the other parts, where they are asked for, are those of the medium size
    "imagenet": replace(_MEDIUM, whole=Whole(1_281_167, 640, 1000, 50_000), parts=("imagenet",)),
}
