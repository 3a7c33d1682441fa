"""Results of `scrlm inspect`: content for --json, and tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scrlm_dask.text import first_few, format_bytes, plural

from .summaries import facts

if TYPE_CHECKING:
    from rich.console import Group

    from scrlm_dask.kernels.statistics.row_statistics import Distances, Norms, Spectrum
    from scrlm_dask.passes.digests import DamagedBlock
    from scrlm_dask.pipeline.inspect import RowsReport
    from scrlm_dask.storage.store_info import StoreInfo


def store_content(store: StoreInfo) -> dict[str, Any]:
    """Return the metadata of a store for --json."""
    rows, features = store.features.shape
    manifest = store.manifest
    return {
        "store": store.url,
        "rows": rows,
        "features": features,
        "dtype": str(store.features.dtype),
        "bytes": store.raw_bytes,
        "stored_bytes": store.stored_bytes,
        "zarr_format": store.zarr_format,
        "chunks": list(store.inner_chunks or store.features.chunks),
        "shards": list(store.features.chunks) if store.inner_chunks else None,
        "n_files": store.n_chunks,
        "n_missing_chunks": store.n_missing_chunks,
        "codecs": list(store.codecs),
        "checksums": store.has_checksums,
        "complete": store.is_complete,
        "missing_blocks": list(store.missing_blocks),
        "labels": store.labels,
        "label_names": None if store.label_names is None else list(store.label_names),
        "ids": store.ids,
        "source_rows": store.has_source_rows,
        "manifest": None
        if manifest is None
        else {
            "blocks": manifest.n_blocks,
            "block_rows": manifest.block_rows,
            "sources": len(manifest.sources),
            "source_bytes": sum(source.bytes for source in manifest.sources),
            "request": manifest.request,
        },
    }


def rows_content(report: RowsReport) -> dict[str, Any]:
    """Return the statistics of the rows for --json."""
    statistics, classes = report.statistics, report.classes
    return {
        "usable_rows": statistics.n_rows,
        "nan_rows": statistics.unusable.nan,
        "infinite_rows": statistics.unusable.infinite,
        "too_large_rows": statistics.unusable.too_large,
        "first_unusable_rows": list(statistics.unusable.first),
        "zero_rows": statistics.zero_rows,
        "duplicate_rows": statistics.duplicates.rows,
        "duplicates_counted_share": statistics.duplicates.counted_share,
        "largest_duplicate_groups": [
            {"first_row": row, "rows": count} for row, count in statistics.duplicates.groups
        ],
        "constant_features": list(statistics.constant),
        "classes": None if classes is None else classes.n_classes,
        "outlier_share": None if classes is None else classes.outlier_share,
        "mean_range": _range(statistics.means) if statistics.n_rows else None,
        "std_range": _range(statistics.deviations) if statistics.n_rows else None,
        "norms": _norms(statistics.norms),
        "spectrum": _spectrum(statistics.spectrum),
        "distances": _distances(statistics.distances),
    }


def _norms(norms: Norms | None) -> dict[str, Any] | None:
    return norms and {
        "min": norms.least,
        "mean": norms.mean,
        "max": norms.largest,
        "quantiles": {str(share): value for share, value in norms.quantiles.items()},
        "histogram": _histogram(norms.histogram),
    }


def _spectrum(spectrum: Spectrum | None) -> dict[str, Any] | None:
    return spectrum and {
        "axes_for_90_percent": spectrum.axes,
        "sampled_rows": spectrum.sampled_rows,
        "variances": spectrum.variances.tolist(),
    }


def _distances(distances: Distances | None) -> dict[str, Any] | None:
    return distances and {
        "sampled_rows": distances.n_rows,
        "pairs": distances.n_pairs,
        "quantiles": {str(share): value for share, value in distances.quantiles.items()},
        "radius": distances.radius,
        "inside_radius_share": distances.share_inside,
        "histogram": _histogram(distances.histogram),
    }


def _range(values: Any) -> list[float]:
    return [float(values.min()), float(values.max())]


def _histogram(histogram: Any) -> dict[str, Any]:
    return {"edges": histogram.edges.tolist(), "counts": histogram.counts.tolist()}


def damage_content(damaged: tuple[DamagedBlock, ...], store: StoreInfo) -> dict[str, Any]:
    """Return the result of the verification for --json."""
    return {
        "digests": store.manifest is not None,
        "checksums": store.has_checksums,
        "damaged_blocks": [asdict(damage) for damage in damaged],
    }


def store_tables(content: dict[str, Any]) -> Group:
    """Return tables of the store and, if `content` has them, of its rows and its verification."""
    from rich.console import Group

    parts: list[Any] = [facts("Features store", _store_facts(content))]
    if "statistics" in content:
        parts.append(facts("Rows", _rows_facts(content["statistics"])))
    if "verification" in content:
        parts.append(facts("Verification", _verification_facts(content["verification"])))
    return Group(*parts)


def _store_facts(content: dict[str, Any]) -> dict[str, Any]:
    manifest, stored = content["manifest"], format_bytes(content["stored_bytes"])
    shown = {name: content[name] for name in ("store", "rows", "features", "dtype")}
    shown["size"] = f"{format_bytes(content['bytes'])}, {stored} stored"
    shown["chunks"] = _shape(content["chunks"])
    if content["shards"]:
        shown["shards"] = _shape(content["shards"])
    shown["files"] = content["n_files"]
    shown["codecs"] = ", ".join(content["codecs"]) or "none"
    shown["complete"] = _completeness(content)
    if manifest is not None:
        shown["manifest"] = f"{manifest['blocks']:,} blocks of {manifest['block_rows']:,} rows"
        if "embed" in manifest["request"]:
            shown["encoder"] = manifest["request"]["embed"]["encoder"]
        if manifest["sources"]:
            size = format_bytes(manifest["source_bytes"])
            shown["sources"] = f"{manifest['sources']:,} files, {size}"
    for name in ("labels", "ids"):
        shown[name] = content[name] or "none"
    if content["label_names"] is not None:
        shown["labels"] += f" ({first_few(content['label_names'])})"
    shown["source rows"] = "yes" if content["source_rows"] else "none"
    return shown


def _completeness(content: dict[str, Any]) -> str:
    blocks, chunks = content["missing_blocks"], content["n_missing_chunks"]
    if content["complete"]:
        return "yes"
    if blocks:
        return f"no: {plural(len(blocks), 'block')} missing ({first_few(blocks)})"
    return f"no: {plural(chunks, 'chunk')} missing" if chunks else "no: writing was stopped"


def _rows_facts(content: dict[str, Any]) -> dict[str, Any]:
    shown = {
        "usable rows": content["usable_rows"],
        "rows with NaN": content["nan_rows"],
        "rows with infinity": content["infinite_rows"],
        "rows too large for float32": content["too_large_rows"],
    }
    if content["first_unusable_rows"]:
        listed = first_few(content["first_unusable_rows"], total=False)  # at most the first ten
        shown["first unusable"] = f"rows {listed}"
    shown["rows of zeros"] = content["zero_rows"]
    shown["duplicates"] = _duplicates(content)
    constant = content["constant_features"]
    shown["constant features"] = f"{len(constant):,} ({first_few(constant)})" if constant else 0
    if content["classes"] is not None:
        shown["classes"] = content["classes"]
        shown["outlier_share"] = content["outlier_share"]
    if content["mean_range"]:
        shown["means"] = _span(content["mean_range"])
        shown["standard deviations"] = _span(content["std_range"])
    if content["norms"]:
        norms = content["norms"]
        shown["norms"] = f"{_span([norms['min'], norms['max']])}, mean {norms['mean']:.4g}"
    return shown | _space_facts(content)


def _space_facts(content: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    spectrum, distances = content["spectrum"], content["distances"]
    if spectrum:
        total, axes = len(spectrum["variances"]), spectrum["axes_for_90_percent"]
        sampled = spectrum["sampled_rows"]
        note = f" (on a sample of {sampled:,} rows)" if sampled else ""
        shown["axes for 90 % of variance"] = f"{axes:,} of {total:,} axes{note}"
    if distances:
        quantiles = list(distances["quantiles"].values())
        shown["distances"] = (
            f"{_span([quantiles[0], quantiles[-1]])} (1 % to 99 %), median {quantiles[2]:.4g}"
        )
        if distances["radius"] is not None:
            shown["radius"] = distances["radius"]
            shown["pairs inside the radius"] = f"{100 * distances['inside_radius_share']:.3g} %"
    return shown


def _duplicates(content: dict[str, Any]) -> str:
    rows, share = content["duplicate_rows"], content["duplicates_counted_share"]
    note = "" if share == 1 else f", estimated from {100 * share:.3g} % of the rows"
    groups = [
        f"row {group['first_row']:,} x {group['rows']:,}"
        for group in content["largest_duplicate_groups"]
    ]
    return f"{rows:,} rows ({first_few(groups)}){note}" if groups else "none"


def _verification_facts(content: dict[str, Any]) -> dict[str, Any]:
    means = [name for name in ("digests", "checksums") if content[name]]
    shown: dict[str, Any] = {
        "checked against": " and ".join(means) or "nothing: no digests and no checksums",
        "damaged blocks": len(content["damaged_blocks"]),
    }
    for damage in content["damaged_blocks"]:
        rows = f"rows {damage['first_row']:,} to {damage['last_row']:,}"
        shown[f"block {damage['block']:,}"] = f"{rows}: {damage['reason']}"
    return shown


def _shape(sizes: list[int]) -> str:
    return " x ".join(f"{n:,}" for n in sizes)


def _span(ends: list[float]) -> str:
    return f"{ends[0]:.4g} to {ends[1]:.4g}"
