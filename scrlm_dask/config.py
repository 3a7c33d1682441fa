"""Parameters of SCRLM and k-means: immutable, validated once, saved with the model."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, TypeVar

from scrlm_dask import choices
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.kernels.bandwidth.search import ScanSizes, scan_sizes
from scrlm_dask.kernels.distances.points import squared_radius
from scrlm_dask.kernels.distances.pruning import Prune
from scrlm_dask.kernels.scrlm.theory import default_candidates

# If `n_clusters` is None, enough candidates are drawn to find this many clusters.
ASSUMED_CLUSTERS = 1000
# Maximum number of k-means iterations if it is "auto": after a merge, and of `kmeans`.
MERGED_ITERATIONS, KMEANS_ITERATIONS = 20, 100
_LEAST_SQ_REACH = 1e-30  # smallest rho^2 F that float32 arithmetic can handle
_MOST_FINITE = math.nextafter(math.inf, 0.0)


class _Rule(NamedTuple):
    """Rule for a field of a config: the values that it accepts."""

    expected: str  # for messages
    kind: Any  # type: Integral, Real or bool; (): only `words` are accepted
    words: tuple[str | None, ...] = ()
    least: float = 0.0
    most: float = math.inf


def _integer(least: int, *words: str | None) -> _Rule:
    others = "".join(f" or {word!r}" for word in words)
    return _Rule(f"an integer >= {least}{others}", Integral, words, least)


def _one_of(words: tuple[str, ...]) -> _Rule:
    return _Rule(f"one of {', '.join(words)}", (), words)


def _positive(*words: str | None) -> _Rule:
    others = "".join(f" or {word!r}" for word in words)
    return _Rule(f"a finite number > 0{others}", Real, words, math.ulp(0.0), _MOST_FINITE)


_SHARE = _Rule("a number between 0 and 1", Real, (), 0.0, 1.0)
_FLAG = _Rule("True or False", bool)
_LLOYD_RULES = {
    "max_iter": _integer(0, "auto"),
    "tol": _SHARE,
    "inertia_tol": _SHARE,
    "max_seconds": _positive(None),
    "sample": _Rule("a number > 0 and <= 1 or None", Real, (None,), math.ulp(0.0), 1.0),
    "persist": _one_of(choices.PERSIST_KINDS),
}
_SHARED_RULES = {
    "seed": _integer(0),
    "prune": _integer(0, "auto"),
    "margins": _FLAG,
}
_KMEANS_RULES = _SHARED_RULES | {
    "n_clusters": _integer(1),
    "init": _one_of(choices.INIT_KINDS),
    "preprocess": _one_of(choices.PREPROCESS_KINDS),
}
_FIT_RULES = _SHARED_RULES | {
    "F": _positive(),
    "rho": _positive("auto"),
    "n_clusters": _integer(1, None),
    "n_candidates": _integer(1, "auto"),
    "loss_rows": _integer(1, "all"),
    "min_neighbors": _integer(1),
    "preprocess": _one_of(choices.FIT_PREPROCESS_KINDS),
    "outlier_share": _Rule(
        "a number > 0 and < 1, 'auto' or None",
        *(Real, ("auto", None), math.ulp(0.0), math.nextafter(1.0, 0.0)),
    ),
    "radius": _positive(None),
    "levels": _FLAG,
    "polish": _FLAG,
    "robust": _FLAG._replace(expected="True, False or 'auto'", words=("auto",)),
    "extraction": _one_of(choices.EXTRACTIONS),
}
# Options of the command line whose names differ from the fields.
_OPTIONS = {
    "n_clusters": "--clusters",
    "n_candidates": "--candidates",
    "max_iter": "--max-iter or --kmeans-iter",
    "max_seconds": "--max-time",
    "sample": "--kmeans-sample",
}


def _spell(name: str) -> str:
    """Return the name of a field, with its option if the option has another name."""
    return f"{name} ({_OPTIONS[name]})" if name in _OPTIONS else name


def _check_fields(config: object, rules: dict[str, _Rule]) -> None:
    """Convert the fields to plain Python values; raise if a rule does not accept a value."""
    for name, rule in rules.items():
        value = getattr(config, name)
        # Check the type first: an array would be compared element by element.
        if not ((value is None or isinstance(value, str)) and value in rule.words):
            object.__setattr__(config, name, _convert(name, value, rule))


def _convert(name: str, value: Any, rule: _Rule) -> Any:
    # Compare as text, because np.bool_ is not a subclass of bool.
    if rule.kind is bool and str(value) in ("True", "False"):
        return str(value) == "True"
    if isinstance(value, rule.kind) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer that is too large for a float
            number = int(value) if rule.kind is Integral else float(value)
            if rule.least <= number <= rule.most:
                return number
    raise InputError(f"{_spell(name)} must be {rule.expected}, got {value!r}")


@dataclass(frozen=True)
class LloydConfig:
    """Iterations and stopping criteria of k-means.

    k-means stops as soon as one criterion is met, or when no row changes its cluster.

    Parameters
    ----------
    max_iter : int or "auto", default="auto"
        Maximum number of iterations over all rows; each reads the features once. 0 disables
        k-means. Iterations on a `sample` are not counted. "auto" is 100 for k-means; for SCRLM it
        is 20 if centers are merged, otherwise 0.
    tol : float, default=1e-4
        Stop when the centers move by at most this fraction of the distance between rows and their
        centers (both as root mean square).
    inertia_tol : float, default=1e-5
        Stop when the inertia changes by at most this fraction in an iteration.
    max_seconds : float or None, default=None
        Start no new iteration after this time, in seconds since the start of the run. The number
        of iterations, and therefore the result, then depends on the speed of the machine.
    sample : float or None, default=None
        Fraction of the blocks, above 0 and up to 1, for the first iterations. The sample is doubled
        until it contains all blocks. None uses all blocks from the start.
    persist : {"auto", "yes", "no"}, default="auto"
        Keep the features in the memory of the workers between iterations. "auto" does so if they
        fit and are read more than once; "no" reads them from storage in every iteration.

    See Also
    --------
    FitConfig : Takes a `LloydConfig` as `refine`.
    KMeansConfig : Takes a `LloydConfig` as `lloyd`.

    Examples
    --------
    >>> from scrlm_dask import FitConfig, LloydConfig
    >>> lloyd = LloydConfig(max_iter=10, tol=1e-3)
    >>> FitConfig(rho=0.5, refine=lloyd).refine.tol
    0.001
    """

    max_iter: int | Literal["auto"] = "auto"
    tol: float = 1e-4
    inertia_tol: float = 1e-5
    max_seconds: float | None = None
    sample: float | None = None
    persist: choices.Persist = "auto"

    def __post_init__(self) -> None:
        _check_fields(self, _LLOYD_RULES)

    def limit(self, default: int) -> int:
        """Return the maximum number of iterations; `default` replaces "auto"."""
        return default if isinstance(self.max_iter, str) else self.max_iter

    def settle(self, default: int) -> LloydConfig:
        """Return the config with a number in place of "auto"."""
        return replace(self, max_iter=self.limit(default))


@dataclass(frozen=True)
class KMeansConfig:
    """Parameters of k-means.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters.
    init : {"scrlm", "k-means++", "k-means||", "random", "given"}, default="scrlm"
        Method that chooses the initial centers:

        - "scrlm": run SCRLM with several bandwidths on a sample, and take the centers that are
          nearest to held-out rows.
        - "k-means++": run k-means++ on a sample.
        - "k-means||": draw about ``2 * n_clusters`` rows in each of three passes and reduce them to
          `n_clusters`.
        - "random": draw rows at random.
        - "given": use the `centers` passed to `scrlm_dask.kmeans`.
    lloyd : LloydConfig, int or dict, default=LloydConfig(max_iter=100)
        Iterations and stopping criteria. An int is the maximum number of iterations.
    preprocess : {"none", "center", "standardize", "scale", "l2"}, default="none"
        Transformation of the rows before distances are computed; see `FitConfig`. "l2" is
        spherical k-means: rows and centers have unit length.
    seed : int, default=0
        Seed of all random choices. The same seed gives the same result, bit by bit.
    prune : int or "auto", default="auto"
        Number of axes for pruning pairs of rows and centers that are far apart. The labels do not
        change. "auto" chooses the cheapest number per block; 0 disables pruning.
    margins : bool, default=True
        Store the margin of each row: distance to the second-nearest center minus distance to the
        nearest. False makes the labelling faster.

    See Also
    --------
    scrlm_dask.kmeans : Run k-means with this config.
    scrlm_dask.KMeans : Estimator with the same parameters.

    Examples
    --------
    >>> from scrlm_dask import KMeansConfig
    >>> config = KMeansConfig(n_clusters=100, init="k-means++", lloyd=20)
    >>> config.lloyd.max_iter
    20
    """

    n_clusters: int = 8
    init: choices.Init = "scrlm"
    lloyd: LloydConfig = field(default_factory=lambda: LloydConfig(max_iter=100))
    preprocess: choices.Preprocess = "none"
    seed: int = 0
    prune: Prune = "auto"
    margins: bool = True

    def __post_init__(self) -> None:
        _check_fields(self, _KMEANS_RULES)
        object.__setattr__(self, "lloyd", lloyd_config(self.lloyd).settle(KMEANS_ITERATIONS))

    def sq_radius(self, n_features: int) -> float:
        """Return infinity: k-means has no outliers."""
        return math.inf


@dataclass(frozen=True)
class FitConfig:
    """Parameters of SCRLM.

    Parameters
    ----------
    rho : float or "auto", default="auto"
        Bandwidth, in units of the preprocessed features. Rows within the radius
        ``rho * sqrt(n_features * F)`` of a center belong to its cluster. A smaller value gives
        tighter clusters and more outliers; a larger value joins neighboring clusters. "auto"
        estimates it on a sample of rows.
    F : float, default=2.5
        Depth of the loss: a row at the position of a candidate adds ``-F`` to the loss of the
        candidate. The default is the value of the paper.
    n_clusters : int or None, default=None
        Maximum number of clusters. None determines the number from the data.
    n_candidates : int or "auto", default="auto"
        Number of random rows that are tried as centers. "auto" uses the number that the theory
        requires for `n_clusters`, or for 1000 clusters if `n_clusters` is None. On a sample, it is
        2048 to 4096. The cost of a fit with a given `rho` grows with ``n_candidates * n_rows``.
    loss_rows : int or "all", default="all"
        Number of random rows on which the loss of the candidates is computed. A subset saves most
        of the time if clusters are large. Every row gets a label regardless.
    min_neighbors : int, default=1
        Minimum number of other rows within the radius of a center.
    preprocess : {"auto", "none", "center", "standardize", "scale", "l2"}, default="auto"
        Transformation of the rows before distances are computed. It is saved with the model and
        applied to new rows.

        - "auto": "standardize" if `rho` is given. Otherwise "l2" for rows of unit length with at
          least 16 features; rows of zeros are ignored. For other rows "standardize" if it shows a
          clear scale, otherwise the best of "standardize", "center" and (with at least 16 features)
          "l2" on a sample.
        - "none": use the rows as they are.
        - "center": subtract the mean of each feature.
        - "standardize": subtract the mean and divide by the standard deviation of each feature.
        - "scale": divide all features by one number, which keeps their proportions.
        - "l2": scale each row to unit length, for cosine distance.
    seed : int, default=0
        Seed of all random choices. The same seed gives the same result, bit by bit.
    polish : bool, default=False
        Move each center to the mean of the rows within its radius, in one more pass.
    refine : LloydConfig, int or dict, default=LloydConfig()
        k-means iterations that refine the centers; by default up to 20 if centers are merged, else
        none. An int is the maximum number of iterations.
    robust : bool or "auto", default="auto"
        True excludes rows outside the radius from k-means and labels them as outliers (-1). False
        uses all rows for k-means, and assigns every row to its nearest center unless
        `outlier_share` or `radius` is given; it requires `refine` iterations or
        ``extraction="merge"``. "auto" is True unless centers are merged. If centers are merged, the
        radius is that of ``outlier_share="auto"``.
    outlier_share : float, "auto" or None, default=None
        A number sets the radius such that about this share of the rows are outliers, those farthest
        from their centers. "auto" keeps a clear scale as it is; without a clear scale, the radius
        is the median distance to the centers of rows of a normal distribution with the covariance
        of the data. None does not change the radius.
    radius : float or None, default=None
        Distance, after preprocessing, beyond which rows are outliers. None: determined by `rho`,
        `robust` and `outlier_share`.
    prune : int or "auto", default="auto"
        Number of axes for pruning pairs of rows and centers that are far apart. The labels do not
        change. "auto" chooses the cheapest number per block; 0 disables pruning.
    margins : bool, default=True
        Store the margin of each row (distance to the second-nearest center minus distance to the
        nearest) and the distances of outliers. False makes the labelling faster.
    levels : bool, default=False
        Store the labels of the coarse level in addition to the default and the fine level. There
        are levels only if the number of clusters is chosen without a clear scale.
    extraction : {"auto", "greedy", "residual", "merge"}, default="auto"
        Method that selects centers from the candidates:

        - "greedy": repeatedly take the candidate of lowest loss and remove the candidates within
          its radius, as in the paper.
        - "residual": compute the loss of the candidates on rows of a sample that no center covers
          yet.
        - "merge": extract about ten centers per cluster, like "residual", and merge them into
          `n_clusters` clusters; `n_clusters` is required.
        - "auto": "greedy" if `rho` is given. Otherwise "merge" if the data shows no clear scale
          with at most `n_clusters` clusters, else usually "residual".

    See Also
    --------
    scrlm_dask.fit : Fit SCRLM with this config.
    scrlm_dask.SCRLM : Estimator with the same parameters.

    Examples
    --------
    >>> from scrlm_dask import FitConfig
    >>> config = FitConfig(rho=0.5, n_clusters=20, refine=10)
    >>> config.extraction, config.robust, config.refine.max_iter
    ('greedy', True, 10)
    >>> FitConfig(rho=-1)
    Traceback (most recent call last):
        ...
    scrlm_dask.errors.InputError: rho must be a finite number > 0 or 'auto', got -1
    """

    rho: float | Literal["auto"] = "auto"
    F: float = 2.5
    n_clusters: int | None = None
    n_candidates: int | Literal["auto"] = "auto"
    loss_rows: int | Literal["all"] = "all"
    min_neighbors: int = 1
    preprocess: choices.FitPreprocess = "auto"
    seed: int = 0
    polish: bool = False
    refine: LloydConfig = field(default_factory=LloydConfig)
    robust: bool | Literal["auto"] = "auto"
    outlier_share: float | Literal["auto"] | None = None
    radius: float | None = None
    prune: Prune = "auto"
    margins: bool = True
    levels: bool = False
    extraction: choices.Extraction = "auto"

    def __post_init__(self) -> None:
        _check_fields(self, _FIT_RULES)
        object.__setattr__(self, "refine", lloyd_config(self.refine))
        if not isinstance(self.rho, str):
            self._settle_extraction(self.rho)
        if self.extraction == "merge" and self.n_clusters is None:
            raise InputError(
                "extraction='merge' requires n_clusters (--clusters), the number of clusters to "
                "merge to; set it, or use extraction='residual'"
            )
        if self.robust is False and not self.most_iterations and self.extraction != "merge":
            raise InputError(
                "robust=False (--no-robust) requires k-means iterations; set refine "
                "(--kmeans-iter) to 1 or more, or omit robust"
            )
        self._check_outliers()

    def _check_outliers(self) -> None:
        """Raise if the settings of outliers contradict each other."""
        given = [name for name in ("outlier_share", "radius") if getattr(self, name) is not None]
        if len(given) == 2:
            raise InputError(
                f"give either outlier_share (--outlier-share) or radius (--radius), got "
                f"{self.outlier_share!r} and {self.radius!r}"
            )
        if self.outlier_share == "auto" and not self.samples:
            raise InputError(
                "outlier_share='auto' requires rho='auto', because a given rho has a radius "
                "already; omit one of them, or give a share such as 0.02"
            )

    def _settle_extraction(self, rho: float) -> None:
        """Replace "auto" in the settings that a given rho determines."""
        if rho * rho * self.F < _LEAST_SQ_REACH:
            raise InputError(
                f"rho must be larger, got {rho!r}, whose square underflows in float32; multiply "
                "rho and the features by a large number, or use preprocess='scale'"
            )
        if self.extraction == "auto":
            object.__setattr__(self, "extraction", "greedy")
        if self.preprocess == "auto":
            object.__setattr__(self, "preprocess", "standardize")
        object.__setattr__(self, "refine", self.refine.settle(self.most_iterations))
        if self.robust == "auto":
            # Merged clusters extend beyond the radius.
            robust = self.extraction != "merge" or self.outlier_share == "auto"
            object.__setattr__(self, "robust", robust)

    @property
    def samples(self) -> bool:
        """True if rho or the centers are determined on a sample of rows."""
        return self.rho == "auto" or self.extraction in ("residual", "merge")

    @property
    def most_iterations(self) -> int:
        """Largest possible number of k-means iterations."""
        merges = self.extraction in ("auto", "merge")
        return self.refine.limit(MERGED_ITERATIONS if merges else 0)

    @property
    def first_preprocess(self) -> choices.Preprocess:
        """The preprocessing that is tried first: "standardize" if it is "auto"."""
        return "standardize" if self.preprocess == "auto" else self.preprocess

    @property
    def given_rho(self) -> float:
        """Bandwidth as a number; raises if it is still "auto"."""
        if isinstance(self.rho, str):
            raise InputError("rho must be a number here, got 'auto'; fit first to determine it")
        return self.rho

    def sq_radius(self, n_features: int) -> float:
        """Return the squared radius beyond which rows are outliers; infinity if there are none."""
        if self.radius is not None:
            return self.radius**2
        return squared_radius(self.given_rho, self.F, n_features) if self.robust else math.inf

    def kmeans_sq_radius(self, n_features: int) -> float:
        """Return the squared radius beyond which k-means ignores rows; infinity: it uses all."""
        return self.sq_radius(n_features) if self.robust else math.inf

    def resolve(self, n_rows: int) -> ResolvedConfig:
        """Return the config with the numbers of candidates and sampled rows for `n_rows` rows."""
        for name in ("n_candidates", "loss_rows"):
            value = getattr(self, name)
            if isinstance(value, int) and value > n_rows:
                raise InputError(
                    f"{_spell(name)} must be at most {n_rows} (the features have {n_rows} rows), "
                    f"got {value}"
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
        """Return the sizes of the sample: the numbers that the user gave, or the defaults."""
        sizes = scan_sizes(n_rows, self.n_clusters)
        judged = sizes.judged if self.loss_rows == "all" else self.loss_rows
        candidates = sizes.candidates if self.n_candidates == "auto" else self.n_candidates
        judged = max(judged, candidates)  # the loss rows include the candidates
        return ScanSizes(candidates, judged, min(sizes.held_out, n_rows - judged))


@dataclass(frozen=True)
class ResolvedConfig:
    """A `FitConfig`, and the numbers that depend on the number of rows."""

    asked: FitConfig
    n_rows: int
    n_candidates: int
    loss_rows: int
    sample: ScanSizes | None = None  # set if rho or the centers are determined on a sample

    @property
    def loss_on_all_rows(self) -> bool:
        """True if the loss is computed on all rows, not on a subset."""
        return self.loss_rows == self.n_rows


_Config = TypeVar("_Config")


def as_config(value: Any, kind: type[_Config]) -> _Config:
    """Return a config of this class, the default one for None; reject other types."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        name = kind.__name__
        raise InputError(f"config must be a {name}, got {type(value).__name__}; use {name}(...)")
    return value


def stored_config(content: dict[str, Any], kind: type[_Config]) -> _Config:
    """Return the config of a run from its record; reject fields of other versions."""
    try:
        return kind(**content)
    except (TypeError, AttributeError, OverflowError) as error:
        raise StoreError(
            f"the settings of the run were written by another version or changed by hand ({error});"
            " run the command again with --overwrite"
        ) from error


def lloyd_config(value: Any) -> LloydConfig:
    """Return a `LloydConfig`, built from `max_iter` or from a dict of its fields if necessary."""
    if isinstance(value, LloydConfig):
        return value
    return LloydConfig(**value) if isinstance(value, dict) else LloydConfig(max_iter=value)
