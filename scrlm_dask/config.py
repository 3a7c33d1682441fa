"""What a fit is asked to do: one frozen config, checked once, saved with the model."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

from scrlm_dask import choices
from scrlm_dask.errors import InputError
from scrlm_dask.kernels.bandwidth.search import ScanSizes, scan_sizes
from scrlm_dask.kernels.distances.points import squared_radius
from scrlm_dask.kernels.distances.pruning import Prune
from scrlm_dask.kernels.scrlm.theory import default_candidates

# Without a number of clusters to go by, candidates are drawn for this many.
ASSUMED_CLUSTERS = 1000
_LEAST_SQ_REACH = 1e-30
_MOST_FINITE = math.nextafter(math.inf, 0.0)


class _Rule(NamedTuple):
    """The values that a field accepts."""

    expected: str  # as messages say it
    kind: Any  # Integral, Real or bool; (): only the words
    words: tuple[str | None, ...] = ()
    least: float = 0.0
    most: float = math.inf


def _integer(least: int, *words: str | None) -> _Rule:
    others = "".join(f", or {word!r}" for word in words)
    return _Rule(f"an integer of at least {least}{others}", Integral, words, least)


def _one_of(words: tuple[str, ...]) -> _Rule:
    return _Rule(f"one of {', '.join(words)}", (), words)


_POSITIVE = _Rule("a finite number above 0", Real, (), math.ulp(0.0), _MOST_FINITE)
_SHARE = _Rule("a number from 0 to 1", Real, (), 0.0, 1.0)
_FLAG = _Rule("True or False", bool)
_LLOYD_RULES = {
    "max_iter": _integer(0),
    "tol": _SHARE,
    "inertia_tol": _SHARE,
    "max_seconds": _POSITIVE._replace(words=(None,)),
    "sample": _SHARE._replace(words=(None,)),
    "persist": _one_of(choices.PERSIST_KINDS),
}
_SHARED_RULES = {
    "seed": _integer(0),
    "prune": _integer(0, "auto"),
    "margins": _FLAG,
    "preprocess": _one_of(choices.PREPROCESS_KINDS),
}
_KMEANS_RULES = _SHARED_RULES | {"n_clusters": _integer(1), "init": _one_of(choices.INIT_KINDS)}
_FIT_RULES = _SHARED_RULES | {
    "F": _POSITIVE,
    "rho": _POSITIVE._replace(expected=f"{_POSITIVE.expected}, or 'auto'", words=("auto",)),
    "n_clusters": _integer(1, None),
    "n_candidates": _integer(1, "auto"),
    "loss_rows": _integer(1, "all"),
    "min_neighbors": _integer(1),
    "polish": _FLAG,
    "robust": _FLAG._replace(words=("auto",)),
    "extraction": _one_of(choices.EXTRACTIONS),
}


def _check_fields(config: object, rules: dict[str, _Rule]) -> None:
    """Replace fields by plain Python values; raise for a value that its rule rejects."""
    for name, rule in rules.items():
        value = getattr(config, name)
        # by type first: an array would compare each of its items
        if not ((value is None or isinstance(value, str)) and value in rule.words):
            object.__setattr__(config, name, _convert(name, value, rule))


def _convert(name: str, value: Any, rule: _Rule) -> Any:
    # by its word: NumPy's truth values belong to no type of Python's
    if rule.kind is bool and str(value) in ("True", "False"):
        return str(value) == "True"
    if isinstance(value, rule.kind) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer that no float holds
            number = int(value) if rule.kind is Integral else float(value)
            if rule.least <= number <= rule.most:
                return number
    raise InputError(f"{name} is {value!r}; it must be {rule.expected}")


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
        _check_fields(self, _LLOYD_RULES)
        if self.sample == 0.0:
            raise InputError("sample is 0; give the share of blocks to begin with, or None")


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
        _check_fields(self, _KMEANS_RULES)
        object.__setattr__(self, "lloyd", lloyd_config(self.lloyd))

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
        _check_fields(self, _FIT_RULES)
        object.__setattr__(self, "refine", lloyd_config(self.refine))
        if not isinstance(self.rho, str):
            self._settle_extraction(self.rho)
        if self.extraction == "merge" and self.n_clusters is None:
            raise InputError(
                "extraction is 'merge', which merges centers down to n_clusters, but there is no "
                "such number; give it (n_clusters, --clusters), or extract 'residual'"
            )
        if self.robust is False and self.refine.max_iter == 0 and self.extraction != "merge":
            raise InputError(
                "robust is False, which says how k-means refines the centers, but no iterations "
                "are asked for; give some (refine, --kmeans-iter), or leave it out"
            )

    def _settle_extraction(self, rho: float) -> None:
        """Replace "auto" where a given rho decides it."""
        if rho * rho * self.F < _LEAST_SQ_REACH:
            raise InputError(
                f"rho is {rho!r}, whose square float32 cannot work with; "
                "multiply the features (or preprocess='scale') and rho by a large number"
            )
        if self.extraction == "auto":
            object.__setattr__(self, "extraction", "greedy")
        if self.robust == "auto":
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
        if self.samples:
            sizes = self._sizes(n_rows)
            return ResolvedConfig(self, n_rows, sizes.candidates, sizes.judged, sizes)
        n_candidates = self.n_candidates
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


def lloyd_config(value: Any) -> LloydConfig:
    """Return the iterations, which may be given by their number or as they were saved."""
    if isinstance(value, LloydConfig):
        return value
    return LloydConfig(**value) if isinstance(value, dict) else LloydConfig(max_iter=value)
