"""Results as plain values: dicts, lists, numbers and texts."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from scrlm_dask import Model
from scrlm_dask.storage.model_store import load_model

Result = dict[str, Any]


def plain(value: Any) -> Any:
    """Return dicts, lists, numbers and texts; JSON has no infinity, so it becomes a text."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def digest_of(values: NDArray[Any]) -> str:
    """Return a SHA-256 of the bytes, kind and shape of an array."""
    if values.dtype.kind in "OUT":
        content = json.dumps([str(value) for value in values]).encode()
    else:
        content = np.ascontiguousarray(values).tobytes()
    return hashlib.sha256(f"{values.dtype.kind}{values.shape}".encode() + content).hexdigest()


def labels_of(labels: Any) -> Result:
    """Return counts and a digest of labels, which identify them exactly."""
    values = np.asarray(labels).astype(np.int32)
    names, counts = np.unique(values, return_counts=True)
    return {
        "dtype": str(np.asarray(labels).dtype),
        "rows": len(values),
        "counts": dict(zip(names.tolist(), counts.tolist(), strict=True)),
        "sha256": digest_of(values),
    }


def column_of(values: Any) -> Result:
    """Return a summary of floats, one per row, and a digest of their bits."""
    array = np.asarray(values)
    finite = array[np.isfinite(array)].astype(np.float64)
    return {
        "dtype": str(array.dtype),
        "rows": len(array),
        "finite": len(finite),
        "mean": float(finite.mean()) if len(finite) else None,
        "largest": float(finite.max()) if len(finite) else None,
        "bits": digest_of(array),
    }


def model_of(model: Model) -> Result:
    """Return all fields of a model."""
    tree = model.tree
    return {
        "repr": repr(model),
        "n_clusters": model.n_clusters,
        "n_features": model.n_features,
        "radius": model.radius,
        **{
            field.name: getattr(model, field.name)
            for field in fields(model)
            if field.name not in ("affine", "config", "tree")
        },
        "dtypes": [str(array.dtype) for array in (model.centers, model.means, model.weights)],
        "affine": asdict(model.affine),
        "config": {"class": type(model.config).__name__, **asdict(model.config)},
        # the tree has many leaves, and rounding may choose between neighboring ones
        "tree": None if tree is None else {name: {"bits": digest_of(np.asarray(array))}
                                           for name, array in asdict(tree).items()},
    }  # fmt: skip


def labels_store_of(path: Path) -> Result:
    """Return the content of a labels store."""
    group = zarr.open_group(path, mode="r")
    found: Result = {"attributes": dict(group.attrs), "arrays": sorted(group.array_keys())}
    for name in found["arrays"]:
        values = group[name][:]
        found[name] = labels_of(values) if values.dtype.kind == "i" else column_of(values)
    return found


def run_of(path: Path) -> Result:
    """Return the content of a finished run directory."""
    stored = zarr.open_group(path / "model.zarr", mode="r")
    model = load_model(path)
    attributes = dict(stored.attrs)
    config = "as in the model" if attributes["config"] == asdict(model.config) else "another one"
    return {
        "files": sorted(entry.name for entry in path.iterdir()),
        "record": record_of(json.loads((path / "run.json").read_text())),
        "events": list(_events_in(path / "events.jsonl")),
        "model": model_of(model),
        "model_attributes": {**attributes, "config": config},
        "model_arrays": sorted(stored.array_keys()),
        "labels": labels_store_of(path / "labels.zarr"),
    }


def record_of(record: Result) -> Result:
    """Return a record of a run or of a scan, with its trial bandwidths as columns."""
    if "scan" in record:
        return {**record, "scan": record_of(record["scan"])}
    if "rungs" not in record:
        return record
    names = list(record["rungs"][0])
    assert all(list(trial) == names for trial in record["rungs"])
    columns = {name: [trial[name] for trial in record["rungs"]] for name in names}
    return {**record, "rungs": columns}


def _events_in(path: Path) -> Iterator[str]:
    """Yield the events in order, without BlocksDone, whose number depends on timing."""
    for line in path.read_text().splitlines():
        event = json.loads(line)
        if event["event"] != "BlocksDone":
            yield " ".join([event["event"], *([event["name"]] if "name" in event else [])])


def features_of(path: Path) -> Result:
    """Return the content of a features store, with digests of rows, labels and ids."""
    group = zarr.open_group(path, mode="r")
    attributes = dict(group.attrs)
    manifest = attributes.get("manifest", {})
    # file sizes depend on the version of the library that wrote them
    manifest["sources"] = [source["path"] for source in manifest.get("sources", [])]
    found: Result = {"attributes": attributes, "arrays": sorted(group.array_keys())}
    for name in found["arrays"]:
        values = group[name][:]
        kind = {"dtype": str(values.dtype), "shape": values.shape, "chunks": group[name].chunks}
        found[name] = {**kind, "sha256": digest_of(values)}
    return found
