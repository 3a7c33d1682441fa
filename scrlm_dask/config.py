"""What a fit is asked to do: one frozen config, checked once, saved with the model."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

from scrlm_dask.errors import InputError
from scrlm_dask.kernels.preprocessing import PREPROCESS_KINDS, Preprocess
from scrlm_dask.kernels.theory import default_candidates

# Without a number of clusters to go by, candidates are drawn for this many.
ASSUMED_CLUSTERS = 1000
_LEAST_SQ_REACH = 1e-30


@dataclass(frozen=True)
class FitConfig:
    """Parameters of SCRLM in the paper's terms; `resolve` fills in what depends on the data."""

    rho: float = 0.5
    F: float = 2.5
    n_clusters: int | None = None  # the paper's T: at most so many; None: as many as are there
    n_candidates: int | Literal["auto"] = "auto"
    loss_rows: int | Literal["all"] = "all"
    min_neighbors: int = 1
    preprocess: Preprocess = "standardize"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rho", "F"):
            object.__setattr__(self, name, _positive(name, getattr(self, name)))
        if self.rho * self.rho * self.F < _LEAST_SQ_REACH:
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
        ):
            value = getattr(self, name)
            # identity first: an array would answer == for each of its items
            if not (value is word or (isinstance(value, str) and value == word)):
                object.__setattr__(self, name, _integer(name, value, least, word))
        if self.preprocess not in PREPROCESS_KINDS:
            kinds = ", ".join(PREPROCESS_KINDS)
            raise InputError(f"preprocess is {self.preprocess!r}; it must be one of {kinds}")

    def resolve(self, n_rows: int) -> ResolvedConfig:
        """The same parameters with the numbers that hold for `n_rows` rows."""
        for name in ("n_candidates", "loss_rows"):
            value = getattr(self, name)
            if isinstance(value, int) and value > n_rows:
                raise InputError(
                    f"{name} is {value}, but the features have {n_rows} rows; use {n_rows} or fewer"
                )
        n_candidates = self.n_candidates
        if n_candidates == "auto":
            n_candidates = default_candidates(n_rows, self.n_clusters or ASSUMED_CLUSTERS)
        loss_rows = n_rows if self.loss_rows == "all" else self.loss_rows
        return ResolvedConfig(self, n_rows, n_candidates, loss_rows)


@dataclass(frozen=True)
class ResolvedConfig:
    """A config and the data-dependent numbers that it stands for."""

    asked: FitConfig
    n_rows: int
    n_candidates: int
    loss_rows: int

    @property
    def loss_on_all_rows(self) -> bool:
        return self.loss_rows == self.n_rows


def _positive(name: str, value: object) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer that no float holds
            number = float(value)
            if math.isfinite(number) and number > 0:
                return number
    raise InputError(f"{name} is {value!r}; it must be a finite number above 0")


def _integer(name: str, value: object, least: int, word: object) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least:
        return int(value)
    other = "" if word is ... else f", or {word!r}"
    raise InputError(f"{name} is {value!r}; it must be an integer of at least {least}{other}")
