"""Descriptions of the choices of a run: number of clusters, preprocessing and radius."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scrlm_dask.kernels.bandwidth.modularity import CLEAR_GAP, NEIGHBORS, WEAK_GAP, Levels
from scrlm_dask.kernels.bandwidth.representation import RepresentationTrial
from scrlm_dask.kernels.bandwidth.search import NullRadius
from scrlm_dask.model import Model
from scrlm_dask.text import plural

_NORMAL = "one normal distribution"


def describe_clusters(levels: Levels, n_clusters: int | None = None) -> str:
    """Return number of clusters, interval, levels and structure in one short sentence.

    `n_clusters` replaces the default of the levels if a fit has another number of clusters.
    """
    number = levels.clusters if n_clusters is None else n_clusters
    if levels.structure == "none":
        return f"arbitrary division into {plural(number, 'cluster')}; structure: none"
    others = describe_others(levels)
    brackets = f" ({others})" if others else ""
    return f"{plural(number, 'cluster')}{brackets}; structure: {levels.structure}"


def describe_others(levels: Levels) -> str:
    """Return the interval and the levels; empty if there are none."""
    return "; ".join(filter(None, (describe_interval(levels), describe_levels(levels))))


def describe_interval(levels: Levels) -> str:
    """Return the interval of good numbers of clusters; empty if it has only one number."""
    if levels.low == levels.high:
        return ""
    return f"{levels.low:,} to {levels.high:,} would do as well"


def describe_levels(levels: Levels) -> str:
    """Return the numbers of clusters of the coarse and the fine level, if there are any."""
    numbers = (("coarse", levels.coarse), ("fine", levels.fine))
    return ", ".join(f"{name} {number:,}" for name, number in numbers if number is not None)


def describe_structure(levels: Levels) -> str:
    """Return the structure in words, with its gap and the gap that would be better."""
    limits = {
        "clear": f"clear from {CLEAR_GAP:g}",
        "weak": f"weak from {WEAK_GAP:g}, clear from {CLEAR_GAP:g}",
        "none": f"weak from {WEAK_GAP:g}",
    }
    return f"{levels.structure} ({_describe_gap(levels.gap)}; {limits[levels.structure]})"


def choice_sentences(levels: Levels) -> Iterator[str]:
    """Yield sentences on the number of clusters, the structure and its reliability."""
    neighbors = (
        f"{levels.same:.0%} of the {NEIGHBORS} nearest neighbors of a row are in its cluster"
    )
    if levels.structure == "none":
        yield (
            f"The sample does not show clearly more structure than {_NORMAL}, so the division "
            f"into {levels.clusters:,} clusters is arbitrary. The structure is "
            f"{describe_structure(levels)}. If you expect clusters, set their number (--clusters, "
            "n_clusters)."
        )
    else:
        yield (
            f"The number of clusters was chosen by modularity on a sample: {neighbors}. "
            f"The structure is {describe_structure(levels)}."
        )
        yield from _other_numbers(levels)
    if not levels.is_stable:
        yield (
            "Another sample or seed would give partly different clusters: the labels from two "
            f"parts of the sample have an adjusted Rand index of {levels.agreement:.2f}."
        )


def _other_numbers(levels: Levels) -> Iterator[str]:
    """Yield a sentence on other good numbers of clusters, if there are any."""
    views = [
        f"{number:,} clusters are a {name} view"
        for name, number in (("coarser", levels.coarse), ("finer", levels.fine))
        if number is not None
    ]
    interval = describe_interval(levels).replace(" would", " clusters would")
    if interval or views:
        yield "; ".join(filter(None, (interval, *views))) + "."


def describe_agreement(levels: Levels) -> str:
    """Return the agreement of two parts of the sample; if it is low, with the consequence."""
    ari = f"ARI {levels.agreement:.2f}"
    if levels.is_stable:
        return ari
    return f"{ari} (another sample or seed would give partly different clusters)"


def describe_representation(trial: RepresentationTrial) -> str:
    """Return the modularity of a kind of preprocessing, and its gap."""
    return f"{trial.modularity:.2f} ({_describe_gap(trial.gap)})"


def _describe_gap(gap: float) -> str:
    rounded = round(gap, 2)
    return f"{abs(rounded):.2f} {'above' if rounded >= 0.0 else 'below'} {_NORMAL}"


def requested_config(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config that the user requested, from `run.json`; empty if it is not recorded."""
    asked = record.get("asked")
    config = asked.get("config") if isinstance(asked, dict) else None
    return config if isinstance(config, dict) else {}


def describe_preprocess(config: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Return the preprocessing of a run; `asked` is the config that the user requested."""
    chosen = " (chosen on the sample)" if asked.get("preprocess") == "auto" else ""
    return f"{config.get('preprocess')}{chosen}"


def describe_radius(radius: float, config: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Return the radius of outliers and how it was chosen.

    `config` has every "auto" resolved; `asked` is the config that the user requested.
    """
    share = asked.get("outlier_share")
    if config.get("radius") is None:
        reason = "from rho"
    elif asked.get("radius") is not None:
        reason = "given"
    elif isinstance(share, float):
        reason = f"set so that {100 * share:.2f} % of the rows are outliers"
    else:
        reason = f"median distance of rows of {_NORMAL} to the centers"
    return f"{radius:.6g} ({reason})"


def describe_outside(null: NullRadius) -> str:
    """Return the share of the sample outside the radius of the null, and the radius."""
    return (
        f"{100 * null.outside:.1f} % of the sample is farther than {null.radius:.3g} from every "
        "center"
    )


def sigma_units(model: Model) -> str:
    """Return the units of the sigmas of a model."""
    return "rows of unit length" if model.affine.unit_length else "input units"
