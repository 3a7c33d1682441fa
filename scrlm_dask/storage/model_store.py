"""Save and load models: a Zarr group of small arrays, with all other values as attributes.

Nothing is pickled.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np
import zarr

from scrlm_dask.choices import PREPROCESS_KINDS
from scrlm_dask.config import FitConfig, KMeansConfig
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.scrlm.ward import MergeTree
from scrlm_dask.model import Model
from scrlm_dask.storage.arrays import (
    add_array,
    create_group,
    has_member,
    open_node,
    read_member,
)
from scrlm_dask.storage.feature_store import mark_complete
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.outputs import KIND, MODEL_KIND
from scrlm_dask.storage.run_directory import MODEL, RECORD, RunDirectory

FORMAT = 1
_ARRAYS = (
    "centers",
    "center_rows",
    "losses",
    "neighbors",
    "means",
    "counts",
    "weights",
    "sigmas",
)
_INTEGERS = ("center_rows", "neighbors", "counts", "tree_merges")
_TREE = ("leaves", "weights", "merges", "costs")
_NUMBERS = ("outlier_weight", "n_outliers", "n_rows", "n_candidates", "inertia")
_CONFIGS: dict[str, type[FitConfig] | type[KMeansConfig]] = {
    "scrlm": FitConfig,
    "k-means": KMeansConfig,
}
_PACKAGES = ("scrlm-dask", "dask", "distributed", "zarr", "numpy", "numba", "scipy")


def save_model(model: Model, path: Place) -> None:
    """Write the model to a new Zarr group at `path`."""
    location = locate(path)
    attributes: dict[str, Any] = {
        KIND: MODEL_KIND,
        "format": FORMAT,
        "complete": False,
        "method": method_of(model),
        # JSON has no infinity, so it is stored as null
        "radius": model.radius if math.isfinite(model.radius) else None,
        "seed": model.config.seed,
        "preprocess": model.affine.kind,
        "config": asdict(model.config),
        "versions": package_versions(),
        **{name: getattr(model, name) for name in _NUMBERS},
    }
    if model.has_fine_level:
        attributes["has_fine_level"] = True
    if isinstance(model.config, FitConfig):
        attributes |= {"rho": model.config.rho, "F": model.config.F}
    create_group(location, attributes)
    for name in _ARRAYS:
        add_array(location / name, getattr(model, name))
    if model.tree is not None:
        for name in _TREE:
            add_array(location / f"tree_{name}", getattr(model.tree, name))
    add_array(location / "shift", model.affine.shift)
    add_array(location / "scale", model.affine.scale)
    mark_complete(location)


def files_of(location: Location) -> Location:
    """Return the location of a model's files: in a run directory, `model.zarr`."""
    return location / MODEL if (location / RECORD).is_file() else location


def load_model(path: Place, storage_options: Options | None = None) -> Model:
    """Load a model from a run directory or its `model.zarr`; `storage_options` are for URLs."""
    location = locate(path, storage_options)
    if (location / RECORD).is_file():
        RunDirectory(location).check_complete()
    location = files_of(location)
    group = open_node(location, "the model")
    if not isinstance(group, zarr.Group) or "format" not in group.attrs:
        raise StoreError(f"{location} is not a model; give a run directory or its {MODEL}")
    try:
        return _model_in(group, location)
    except (KeyError, TypeError, InputError) as error:
        raise StoreError(
            f"the model {location} was written by another version or changed by hand ({error!r}); "
            "fit it again with this version"
        ) from error


def _model_in(group: zarr.Group, location: Location) -> Model:
    attributes: dict[str, Any] = dict(group.attrs)
    if attributes["format"] != FORMAT or attributes.get("complete") is not True:
        problem = "is incomplete"
        if attributes["format"] != FORMAT:
            problem = f"has format {attributes['format']}, expected {FORMAT}"
        raise StoreError(f"the model {location} {problem}; fit it again with this version")
    arrays: dict[str, Any] = {
        name: read_member(group, location, name, "the model")
        for name in (*_ARRAYS, "shift", "scale")
    }
    tree = _tree_in(group, location)
    _check_arrays(arrays, tree)
    if attributes["preprocess"] not in PREPROCESS_KINDS:
        raise InputError(f"preprocess is {attributes['preprocess']!r}")
    affine = AffineMap(attributes["preprocess"], arrays.pop("shift"), arrays.pop("scale"))
    numbers = {name: attributes[name] for name in _NUMBERS}
    if not all(type(number) in (int, float) for number in numbers.values()):
        raise InputError(f"{', '.join(_NUMBERS)} are {list(numbers.values())}")
    config = _CONFIGS[attributes["method"]](**attributes["config"])
    model = Model(
        **arrays,
        **numbers,
        affine=affine,
        config=config,
        tree=tree,
        has_fine_level=bool(attributes.get("has_fine_level", False)),
    )
    radius = math.inf if attributes["radius"] is None else attributes["radius"]
    if not math.isclose(radius, model.radius):  # labels depend on it
        raise InputError(f"radius is {radius}, but the configuration gives {model.radius}")
    return model


def _check_arrays(arrays: dict[str, Any], tree: MergeTree | None) -> None:
    """Raise unless shapes, dtypes and node numbers fit; compiled functions do not check indices."""
    k, p = arrays["centers"].shape if arrays["centers"].ndim == 2 else (0, 0)
    extracted = (k,) if arrays["losses"].size else (0,)
    expected = {"centers": (k, p), "means": (k, p), "losses": extracted}
    expected |= dict.fromkeys(("counts", "weights", "sigmas"), (k,))
    expected |= {"shift": (p,), "scale": (p,)}
    if arrays["losses"].size:  # otherwise, they have no meaning
        expected |= {"center_rows": (k,), "neighbors": (k,)}
    found = {name: arrays[name] for name in expected}
    if tree is not None:
        n = len(tree.leaves)
        found |= {f"tree_{name}": getattr(tree, name) for name in _TREE}
        expected |= {"tree_leaves": (n, p), "tree_weights": (n,)}
        expected |= {"tree_merges": (n - 1, 2), "tree_costs": (n - 1,)}
    for name, shape in expected.items():
        kinds = "i" if name in _INTEGERS else "f"
        if found[name].shape != shape or found[name].dtype.kind not in kinds:
            raise InputError(
                f"{name} has shape {found[name].shape} and dtype {found[name].dtype}, expected "
                f"{shape}"
            )
    if tree is not None:
        merges, nodes = tree.merges, np.arange(tree.n_leaves, 2 * tree.n_leaves - 1)[:, None]
        is_tree = ((merges >= 0) & (merges < nodes)).all()
        if not is_tree or len(np.unique(merges)) < merges.size:
            raise InputError("tree_merges are not the merges of a tree")


def _tree_in(group: zarr.Group, location: Location) -> MergeTree | None:
    if not has_member(group, location, "tree_leaves"):
        return None
    parts: Any = {n: read_member(group, location, f"tree_{n}", "the model") for n in _TREE}
    return MergeTree(**parts)


def method_of(model: Model) -> str:
    """Return "scrlm" or "k-means"; a model of SCRLM that k-means refined is "scrlm"."""
    return "scrlm" if isinstance(model.config, FitConfig) else "k-means"


def package_versions() -> dict[str, str]:
    """Return the installed versions of this package and its main dependencies."""
    return {name: version(name) for name in _PACKAGES}
