"""What a fit is asked to do: one frozen config, checked once, saved with the model."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

from scrlm_dask import choices
from scrlm_dask.errors import InputError
from scrlm_dask.kernels.bandwidth.search import ScanSizes, scan_sizes
from scrlm_dask.kernels.distances.points import squared_radius
from scrlm_dask.kernels.distances.pruning import Prune
from scrlm_dask.kernels.scrlm.theory import default_candidates

# Without a number of clusters to go by, candidates are drawn for this many.
ASSUMED_CLUSTERS = 1000
_LEAST_SQ_REACH = 1e-30


@dataclass(frozen=True)
class LloydConfig:
    """How k-means iterates and when it stops: whichever rule holds first."""

    max_iter: int = 0  # full passes; 0: no k-means at all
    tol: float = 1e-4  # stop when centers move less than this share of rows' distance to them
    inertia_tol: float = 1e-5  # stop when the inertia falls by less than this share
    max_seconds: float | None = None  # no new iteration after so long
    sample: float | None = None  # iterate first on this share of the blocks, doubled up to all
    persist: choices.Persist = "auto"  # keep features in the workers' memory between passes

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_iter", _integer("max_iter", self.max_iter, 0, ...))
        for name in ("tol", "inertia_tol"):
            object.__setattr__(self, name, _share(name, getattr(self, name)))
        if self.max_seconds is not None:
            seconds = _positive("max_seconds", self.max_seconds)
            object.__setattr__(self, "max_seconds", seconds)
        if self.sample is not None:
            object.__setattr__(self, "sample", _share("sample", self.sample))
            if self.sample == 0.0:
                raise InputError("sample is 0; give the share of blocks to begin with, or None")
        _one_of("persist", self.persist, choices.PERSIST_KINDS)


@dataclass(frozen=True)
class KMeansConfig:
    """Parameters of k-means."""

    n_clusters: int = 8
    init: choices.Init = "scrlm"  # "given": centers that the caller brings
    lloyd: LloydConfig = field(default_factory=lambda: LloydConfig(max_iter=100))
    preprocess: choices.Preprocess = (
        "none"  # "l2": spherical k-means, rows and centers at unit length
    )
    seed: int = 0
    prune: Prune = "auto"  # axes by which far pairs are ruled out; 0: none; "auto": as it pays
    margins: bool = True  # store how much farther the second-nearest center is

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_clusters", _integer("n_clusters", self.n_clusters, 1, ...))
        object.__setattr__(self, "seed", _integer("seed", self.seed, 0, ...))
        object.__setattr__(self, "lloyd", lloyd_config(self.lloyd))
        object.__setattr__(self, "margins", _flag("margins", self.margins))
        if not (isinstance(self.prune, str) and self.prune == "auto"):
            object.__setattr__(self, "prune", _integer("prune", self.prune, 0, "auto"))
        _one_of("init", self.init, choices.INIT_KINDS)
        _one_of("preprocess", self.preprocess, choices.PREPROCESS_KINDS)

    def sq_radius(self, n_features: int) -> float:
        """Every row belongs to its nearest center, however far."""
        return math.inf


@dataclass(frozen=True)
class FitConfig:
    """Parameters of SCRLM in the paper's terms; `resolve` fills in what depends on the data."""

    rho: float | Literal["auto"] = "auto"  # "auto": chosen on a sample of rows
    F: float = 2.5
    n_clusters: int | None = None  # the paper's T: at most so many; None: as many as are there
    n_candidates: int | Literal["auto"] = "auto"
    loss_rows: int | Literal["all"] = "all"
    min_neighbors: int = 1
    preprocess: choices.Preprocess = "standardize"
    seed: int = 0
    polish: bool = False  # move each center to the mean of the rows inside its radius
    refine: LloydConfig = field(default_factory=LloydConfig)  # k-means from the centers found
    robust: bool | Literal["auto"] = (
        "auto"  # rows outside the radius take no part and stay outliers
    )
    prune: Prune = "auto"  # axes by which far pairs are ruled out; 0: none; "auto": as it pays
    margins: bool = True  # store the distance of outliers, and that to the second-nearest center
    extraction: choices.Extraction = (
        "auto"  # how centers are taken from candidates; the paper's: greedy
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "F", _positive("F", self.F))
        if not _is_word(self.rho, "auto"):
            object.__setattr__(self, "rho", _positive("rho", self.rho, "auto"))
        if self.rho != "auto" and self.rho * self.rho * self.F < _LEAST_SQ_REACH:
            raise InputError(
                f"rho is {self.rho!r}, whose square float32 cannot work with; "
                "multiply the features (or preprocess='scale') and rho by a large number"
            )
        for name, word, least in (
            ("n_clusters", None, 1),
            ("n_candidates", "auto", 1),
            ("loss_rows", "all", 1),
            ("min_neighbors", ..., 1),
            ("seed", ..., 0),
            ("prune", "auto", 0),
        ):
            value = getattr(self, name)
            if not _is_word(value, word):
                object.__setattr__(self, name, _integer(name, value, least, word))
        _one_of("preprocess", self.preprocess, choices.PREPROCESS_KINDS)
        object.__setattr__(self, "refine", lloyd_config(self.refine))
        for name in ("polish", "margins"):
            object.__setattr__(self, name, _flag(name, getattr(self, name)))
        self._settle_extraction()
        if self.robust is False and self.refine.max_iter == 0 and self.extraction != "merge":
            raise InputError(
                "robust is False, which says how k-means refines the centers, but no iterations "
                "are asked for; give some (refine, --kmeans-iter), or leave it out"
            )

    def _settle_extraction(self) -> None:
        """What "auto" stands for where a given rho decides it."""
        _one_of("extraction", self.extraction, choices.EXTRACTIONS)
        if self.extraction == "merge" and self.n_clusters is None:
            raise InputError(
                "extraction is 'merge', which merges centers down to n_clusters, but there is no "
                "such number; give it (n_clusters, --clusters), or extract 'residual'"
            )
        if self.rho != "auto" and self.extraction == "auto":
            object.__setattr__(self, "extraction", "greedy")
        if not _is_word(self.robust, "auto"):
            object.__setattr__(self, "robust", _flag("robust", self.robust))
        elif self.rho != "auto":
            # merged clusters reach farther than the radius
            object.__setattr__(self, "robust", self.extraction != "merge")

    @property
    def samples(self) -> bool:
        """Whether rho or the centers are found on a sample of rows."""
        return self.rho == "auto" or self.extraction in ("residual", "merge")

    @property
    def given_rho(self) -> float:
        """rho, where it is known."""
        if isinstance(self.rho, str):
            raise InputError("rho is 'auto', and nothing has chosen it yet; fit first")
        return self.rho

    def sq_radius(self, n_features: int) -> float:
        """Rows farther than this from every center are outliers; without `robust` none is."""
        return squared_radius(self.given_rho, self.F, n_features) if self.robust else math.inf

    def resolve(self, n_rows: int) -> ResolvedConfig:
        """The same parameters with the numbers that hold for `n_rows` rows."""
        for name in ("n_candidates", "loss_rows"):
            value = getattr(self, name)
            if isinstance(value, int) and value > n_rows:
                raise InputError(
                    f"{name} is {value}, but the features have {n_rows} rows; use {n_rows} or fewer"
                )
        n_candidates = self.n_candidates
        if self.samples:
            sizes = self._sizes(n_rows)
            return ResolvedConfig(self, n_rows, sizes.candidates, sizes.judged, sizes)
        if n_candidates == "auto":
            n_candidates = default_candidates(n_rows, self.n_clusters or ASSUMED_CLUSTERS)
        loss_rows = n_rows if self.loss_rows == "all" else self.loss_rows
        return ResolvedConfig(self, n_rows, n_candidates, loss_rows)

    def _sizes(self, n_rows: int) -> ScanSizes:
        """Rows of the sample, with the numbers that were asked for in place of the theory's."""
        sizes = scan_sizes(n_rows, self.n_clusters)
        judged = sizes.judged if self.loss_rows == "all" else self.loss_rows
        candidates = sizes.candidates if self.n_candidates == "auto" else self.n_candidates
        judged = max(judged, candidates)  # candidates are rows that judge, too
        return ScanSizes(candidates, judged, min(sizes.held_out, n_rows - judged))


@dataclass(frozen=True)
class ResolvedConfig:
    """A config and the data-dependent numbers that it stands for."""

    asked: FitConfig
    n_rows: int
    n_candidates: int
    loss_rows: int
    sample: ScanSizes | None = None  # rows on which rho or the centers are found

    @property
    def loss_on_all_rows(self) -> bool:
        return self.loss_rows == self.n_rows


def _is_word(value: object, word: object) -> bool:
    # identity first: an array would answer == for each of its items
    return value is word or (isinstance(value, str) and value == word)


def _positive(name: str, value: object, word: object = ...) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer that no float holds
            number = float(value)
            if math.isfinite(number) and number > 0:
                return number
    other = "" if word is ... else f", or {word!r}"
    raise InputError(f"{name} is {value!r}; it must be a finite number above 0{other}")


def _share(name: str, value: object) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer that no float holds
            number = float(value)
            if 0.0 <= number <= 1.0:
                return number
    raise InputError(f"{name} is {value!r}; it must be a number from 0 to 1")


def _flag(name: str, value: object) -> bool:
    # by its word: NumPy's truth values belong to no type of Python's
    if str(value) in ("True", "False"):
        return str(value) == "True"
    raise InputError(f"{name} is {value!r}; it must be True or False")


def _one_of(name: str, value: object, kinds: tuple[object, ...]) -> None:
    # compared one by one: an array would answer == for each of its items
    if not any(type(value) is type(kind) and value == kind for kind in kinds):
        raise InputError(f"{name} is {value!r}; it must be one of {', '.join(map(str, kinds))}")


def lloyd_config(value: Any) -> LloydConfig:
    """The iterations as they are, by their number, or as they were saved."""
    if isinstance(value, LloydConfig):
        return value
    if isinstance(value, dict):
        return LloydConfig(**value)
    return LloydConfig(max_iter=value)


def _integer(name: str, value: object, least: int, word: object) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least:
        return int(value)
    other = "" if word is ... else f", or {word!r}"
    raise InputError(f"{name} is {value!r}; it must be an integer of at least {least}{other}")
