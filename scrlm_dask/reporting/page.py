"""What the template of a report is filled with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import numpy as np

from scrlm_dask.reporting.findings import Findings
from scrlm_dask.reporting.items import Item, data_uri, picture_of
from scrlm_dask.reporting.words import comparison, run_facts, sentences

GENERATOR = "scrlm-dask report"  # by which a report is known that may be written again
SHOWN_CLUSTERS = 30
Figures = Sequence[tuple[str, str, bytes]]


def render(
    runs: Sequence[Findings],
    figures: Sequence[Figures],
    compared: Figures,
    agreement: Sequence[Mapping[str, str]],
    items: Mapping[int, Item],
    picture_shape: tuple[int, ...] | None,
) -> str:
    """The page. All that comes from outside is escaped by the template."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((files(__package__) / "report.html").read_text())
    names = [found.name for found in runs]
    several = len(runs) > 1
    return template.render(
        generator=GENERATOR,
        version=version("scrlm-dask"),
        title=f"Report of {len(runs)} runs" if several else f"Report of {names[0]}",
        subtitle=", ".join(found.location.url for found in runs),
        names=names,
        comparison=comparison(runs) if several else [],
        agreement=agreement,
        compared_figures=[_figure(*figure) for figure in compared],
        runs=[
            _run(found, shown, items, picture_shape)
            for found, shown in zip(runs, figures, strict=True)
        ],
    )


def shown_clusters(found: Findings) -> list[int]:
    return [int(cluster) for cluster in found.by_size[:SHOWN_CLUSTERS]]


def _run(
    found: Findings,
    figures: Figures,
    items: Mapping[int, Item],
    picture_shape: tuple[int, ...] | None,
) -> dict[str, Any]:
    model, record = found.model, found.record
    shown = shown_clusters(found)
    several = f"The largest {len(shown)} of {model.n_clusters:,} clusters"
    return {
        "name": found.name,
        "sentences": sentences(found),
        "notes": found.notes,
        "numbers": [
            (f"{model.n_clusters:,}", "clusters"),
            (f"{model.n_rows:,}", "rows"),
            (f"{100 * record['outlier_share']:.2f} %", "outliers"),
            (f"{record['seconds']:.1f} s", "in all"),
        ],
        "figures": [_figure(*figure) for figure in figures],
        "clusters_title": several if len(shown) < model.n_clusters else "Clusters",
        "clusters": [_cluster(found, cluster) for cluster in shown],
        "extracted": len(model.losses) > 0,
        "pairs": [_pair(found, number) for number in range(len(found.pairs.first))],
        "radius": record.get("radius"),
        "prototypes": [_prototype(found, cluster, items, picture_shape) for cluster in shown],
        "facts": run_facts(found),
    }


def _figure(name: str, title: str, png: bytes) -> dict[str, str]:
    return {"name": name, "title": title, "uri": data_uri(png)}


def _cluster(found: Findings, cluster: int) -> dict[str, str]:
    model = found.model
    return {
        "number": str(cluster),
        "rows": f"{model.counts[cluster]:,}",
        "share": f"{100 * model.counts[cluster] / model.n_rows:.2f} %",
        "weight": f"{model.weights[cluster]:.4f}",
        "sigma": f"{model.sigmas[cluster]:.4g}",
        "loss": f"{model.losses[cluster]:,.1f}" if len(model.losses) else "",
        "nearest": _nearest(found, cluster),
    }


def _nearest(found: Findings, cluster: int) -> str:
    distances = np.linalg.norm(found.points - found.points[cluster], axis=1)
    distances[cluster] = np.inf
    other = int(distances.argmin())
    return f"{other} at {distances[other]:.4g}" if np.isfinite(distances[other]) else "-"


def _pair(found: Findings, number: int) -> dict[str, str]:
    model, pairs = found.model, found.pairs
    both = [int(pairs.first[number]), int(pairs.second[number])]
    distance, radius = float(pairs.distances[number]), found.record.get("radius")
    return {
        "names": " and ".join(str(cluster) for cluster in both),
        "distance": f"{distance:.4g}",
        "share": f"{distance / radius:.0%}" if radius else "",
        "rows": " and ".join(f"{model.counts[cluster]:,}" for cluster in both),
        "sigmas": " and ".join(f"{model.sigmas[cluster]:.4g}" for cluster in both),
    }


def _prototype(
    found: Findings,
    cluster: int,
    items: Mapping[int, Item],
    picture_shape: tuple[int, ...] | None,
) -> dict[str, Any]:
    """The rows nearest to a center, and the center itself where rows are pictures."""
    center = None
    if picture_shape is not None and np.prod(picture_shape) == found.model.n_features:
        center = picture_of(found.model.centers[cluster].reshape(picture_shape))
    rows = [int(row) for row in found.columns.nearest.of(cluster)]
    names = _names(found, rows)
    return {
        "number": cluster,
        "rows": f"{found.model.counts[cluster]:,}",
        "center": center,
        "shown": [{**vars(items.get(row, Item())), "name": names[row]} for row in rows],
    }


def _names(found: Findings, rows: Sequence[int]) -> dict[int, str]:
    """Rows by their id, else by their number."""
    if found.labelled.ids is None:
        return {row: f"row {row:,}" for row in rows}
    ids = {row: found.labelled.read(row, row + 1).ids for row in rows}
    return {row: str(name[0]) if name is not None else "" for row, name in ids.items()}
