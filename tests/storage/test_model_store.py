"""The model store: models are restored bit for bit; incomplete or other stores are rejected."""

from __future__ import annotations

import json
import math
import pickle
import pickletools
import shutil
from dataclasses import asdict, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from messages import expecting

from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
from scrlm_dask.errors import MissingError, StoreError
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.scrlm.ward import ward_tree
from scrlm_dask.model import Model
from scrlm_dask.storage.arrays import add_array
from scrlm_dask.storage.model_store import load_model, package_versions, save_model
from scrlm_dask.storage.run_directory import COMPLETE, RunDirectory

CONFIG = FitConfig(
    rho=0.3, F=2.0, n_clusters=7, n_candidates=12, loss_rows=50, preprocess="center", seed=42
)


def make_model(k: int = 2, p: int = 8, dtype: str = "float32") -> Model:
    """Return a model of k clusters in p dimensions whose numbers need full precision."""
    rng = np.random.default_rng(5)
    sigmas = rng.random(k) / 3
    if k:
        sigmas[0] = np.nan  # a cluster of one row has no sigma
    return Model(
        centers=rng.normal(1e4, 1, (k, p)).astype(dtype),
        center_rows=np.arange(k) + 2**40,
        losses=-rng.random(k) * 1e9,
        neighbors=np.arange(k) * 3,
        means=rng.normal(size=(k, p)),
        counts=np.arange(k) * 10,
        weights=rng.random(k) / 7,
        sigmas=sigmas,
        outlier_weight=1 / 3,
        n_outliers=17,
        n_rows=2**40,
        n_candidates=12,
        inertia=1e10 / 3,
        affine=AffineMap("center", rng.normal(size=p), np.ones(p)),
        config=CONFIG,
    )


def bits(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, AffineMap):
        return value.kind, bits(value.shift), bits(value.scale)
    return type(value), value


def assert_same_bits(found: Model, expected: Model) -> None:
    for field in fields(Model):
        name = field.name
        assert bits(getattr(found, name)) == bits(getattr(expected, name)), name


def finished_run(path: Path, model: Model) -> RunDirectory:
    run = RunDirectory(str(path))
    run.create({})
    save_model(model, run.model)
    run.write_record({}, COMPLETE)
    return run


def attrs_of(path: Path) -> Any:
    return zarr.open_group(str(path), mode="r+").attrs


# --- save and load -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_model_is_restored_bit_for_bit(tmp_path: Path, k: int, dtype: str) -> None:
    model = make_model(k, dtype=dtype)
    save_model(model, tmp_path / "model.zarr")
    found = load_model(tmp_path / "model.zarr")
    assert_same_bits(found, model)
    assert found.n_clusters == k
    assert found.n_features == 8


def test_model_is_loaded_from_a_run_or_from_its_own_path(tmp_path: Path) -> None:
    model = make_model()
    run = finished_run(tmp_path / "run", model)
    for path in (run.path, Path(run.path), run.model, Path(run.model.url)):
        assert_same_bits(load_model(path), model)


def test_a_model_can_be_moved(tmp_path: Path) -> None:
    model = make_model()
    finished_run(tmp_path / "run", model)
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    assert_same_bits(load_model(tmp_path / "elsewhere"), model)


@pytest.mark.parametrize("kind", ["none", "center", "standardize", "scale", "l2"])
def test_every_preprocessing_map_is_restored(tmp_path: Path, kind: Any) -> None:
    # shifts of zeros are included: by default Zarr does not store such chunks
    model = replace(
        make_model(),
        affine=AffineMap(kind, np.zeros(8), np.ones(8)),
        config=FitConfig(rho=0.5, preprocess=kind),
    )
    save_model(model, tmp_path / "m")
    assert_same_bits(load_model(tmp_path / "m"), model)


@pytest.mark.parametrize(
    "config",
    [
        FitConfig(rho=0.5),
        FitConfig(seed=2**100, rho=1e-10),
        FitConfig(n_clusters=np.int32(3), rho=np.float32(0.1), n_candidates=np.int64(5)),  # type: ignore[arg-type]
        FitConfig(rho=0.5, refine=LloydConfig(max_iter=7, sample=0.25), polish=True, robust=False),
        KMeansConfig(n_clusters=3, init="k-means||", lloyd=LloydConfig(max_seconds=1.5)),
    ],
    ids=["defaults", "extremes", "numpy scalars", "refined", "k-means"],
)
def test_every_config_is_restored(tmp_path: Path, config: FitConfig) -> None:
    save_model(replace(make_model(), config=config), tmp_path / "m")
    assert load_model(tmp_path / "m").config == config


# --- on disk -----------------------------------------------------------------------------------


def test_attributes_describe_the_model(tmp_path: Path) -> None:
    save_model(make_model(), tmp_path / "m")
    attrs = dict(attrs_of(tmp_path / "m"))
    assert (attrs["scrlm"], attrs["format"]) == ("model", 1)
    assert attrs["complete"] is True
    assert (attrs["rho"], attrs["F"], attrs["seed"]) == (0.3, 2.0, 42)
    # rho sqrt(p F) = 0.3 sqrt(16)
    assert attrs["radius"] == pytest.approx(1.2, rel=1e-15)
    assert attrs["preprocess"] == "center"
    assert attrs["config"] == asdict(CONFIG)
    assert attrs["config"]["n_candidates"] == 12
    assert attrs["config"]["loss_rows"] == 50
    assert (attrs["n_rows"], attrs["n_outliers"], attrs["n_candidates"]) == (2**40, 17, 12)
    assert attrs["outlier_weight"] == 1 / 3
    assert attrs["versions"] == package_versions()
    assert attrs["versions"]["zarr"] == zarr.__version__
    assert attrs["versions"]["scrlm-dask"] == version("scrlm-dask")


def test_attributes_are_strict_json(tmp_path: Path) -> None:
    # NaN and Infinity are not part of JSON
    save_model(make_model(0), tmp_path / "m")

    def reject(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    found = json.loads((tmp_path / "m/zarr.json").read_text(), parse_constant=reject)
    assert math.isclose(found["attributes"]["radius"], 1.2)


def looks_like_pickle(content: bytes) -> bool:
    try:
        return bool(list(pickletools.genops(content)))
    except Exception:  # genops raises many types of errors
        return False


def test_model_contains_no_pickle(tmp_path: Path) -> None:
    assert looks_like_pickle(pickle.dumps(np.arange(3)))
    finished_run(tmp_path / "run", make_model())
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) >= 20  # 10 arrays of one chunk, each with its metadata
    for path in files:
        content = path.read_bytes()
        assert not looks_like_pickle(content), path
        assert b"pickle" not in content, path
        if path.suffix == ".json":
            assert json.loads(content).get("data_type") in (None, "float32", "float64", "int64")


def test_a_model_does_not_replace_another(tmp_path: Path) -> None:
    model = make_model()
    save_model(model, tmp_path / "m")
    with pytest.raises(Exception, match=r"(?i)exists|contains"):
        save_model(make_model(3), tmp_path / "m")
    assert_same_bits(load_model(tmp_path / "m"), model)


# --- rejected stores ---------------------------------------------------------------------------


def test_unfinished_model_is_rejected(tmp_path: Path) -> None:
    save_model(make_model(), tmp_path / "m")
    load_model(tmp_path / "m")
    attrs_of(tmp_path / "m")["complete"] = False
    with pytest.raises(StoreError, match=f"{tmp_path}/m") as caught:
        load_model(tmp_path / "m")
    assert caught.value.__cause__ is None  # not an error of reading the attributes


def test_model_without_complete_attribute_is_rejected(tmp_path: Path) -> None:
    save_model(make_model(), tmp_path / "m")
    load_model(tmp_path / "m")
    del attrs_of(tmp_path / "m")["complete"]
    with pytest.raises(StoreError, match=f"{tmp_path}/m") as caught:
        load_model(tmp_path / "m")
    assert caught.value.__cause__ is None  # not an error of reading the attributes


@pytest.mark.parametrize("number", [0, 2, "1", None])
def test_model_of_another_format_is_rejected(tmp_path: Path, number: Any) -> None:
    save_model(make_model(), tmp_path / "m")
    attrs_of(tmp_path / "m")["format"] = number
    with pytest.raises(StoreError) as caught:
        load_model(tmp_path / "m")
    without_path = str(caught.value).replace(f"{tmp_path}/m", "PATH")
    for fact in ("PATH", f"{number}", "1"):
        assert fact in without_path


def test_model_of_an_incomplete_run_is_rejected(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    run.create({})
    save_model(make_model(), run.model)
    with pytest.raises(StoreError, match=rf"(?=.*{run.path}\b)(?=.*running)(?=.*--overwrite)"):
        load_model(run.path)


def test_run_without_model(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    run.create({})
    run.write_record({}, COMPLETE)
    with pytest.raises(MissingError, match=r"run/model\.zarr"):
        load_model(run.path)


def test_other_stores_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=f"{tmp_path}/nowhere"):
        load_model(tmp_path / "nowhere")
    zarr.create_group(str(tmp_path / "group"))
    zarr.create_array(str(tmp_path / "array"), shape=(2, 2), dtype="float32", chunks=(2, 2))
    for name in ("group", "array"):
        with pytest.raises(StoreError, match=rf"(?=.*{tmp_path}/{name}\b)(?=.*model\.zarr)"):
            load_model(tmp_path / name)
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=f"(?=.*{tmp_path}/folder)(?=.*Zarr)"):
        load_model(tmp_path / "folder")


def flip_a_bit(chunk: Path) -> None:
    content = chunk.read_bytes()
    chunk.write_bytes(content[:5] + bytes([content[5] ^ 1]) + content[6:])


@pytest.mark.parametrize("array", ["centers", "sigmas", "shift"])
def test_damaged_array_is_named(tmp_path: Path, array: str) -> None:
    save_model(make_model(), tmp_path / "m")
    (chunk,) = (path for path in (tmp_path / "m" / array / "c").rglob("*") if path.is_file())
    flip_a_bit(chunk)
    with pytest.raises(StoreError, match=f"{tmp_path}/m/{array}") as caught:
        load_model(tmp_path / "m")
    assert caught.value.__cause__ is not None  # the error of the codec
    chunk.unlink()
    key = chunk.relative_to(tmp_path / "m" / array)
    with pytest.raises(StoreError, match=rf"(?=.*\b{key}\b)(?=.*{tmp_path}/m/{array})") as caught:
        load_model(tmp_path / "m")
    assert caught.value.__cause__ is None


def rewrite_array(path: Path, values: np.ndarray) -> None:
    shutil.rmtree(path)
    add_array(path, values)


@pytest.mark.parametrize("name", ["centers", "means", "counts", "weights", "sigmas", "losses"])
def test_arrays_that_do_not_fit_are_rejected(tmp_path: Path, name: str) -> None:
    """Compiled functions do not check indices, so they would read outside of the arrays."""
    model = make_model(3)
    save_model(model, tmp_path / "m")
    values = getattr(model, name)
    for wrong in (values[:1], values.astype(bool), values[None]):
        rewrite_array(tmp_path / "m" / name, wrong)
        with pytest.raises(StoreError, match=expecting(tmp_path / "m", "shape")):
            load_model(tmp_path / "m")
    rewrite_array(tmp_path / "m" / name, values)
    assert_same_bits(load_model(tmp_path / "m"), model)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("merges", [[0, 1], [2, 10**12]]),
        ("merges", [[0, 1], [2, -1]]),
        ("merges", [[0, 4], [2, 3]]),
        ("merges", [[0, 1], [1, 2]]),
        ("merges", [[0, 1]]),
        ("weights", [1.0]),
        ("leaves", [[1.0]]),
    ],
)
def test_damaged_merge_trees_are_rejected(tmp_path: Path, name: str, wrong: Any) -> None:
    leaves = np.array([[0.0], [1.0], [5.0]])
    model = replace(make_model(3, 1), tree=ward_tree(leaves, np.ones(3), leaves))
    save_model(model, tmp_path / "m")
    assert load_model(tmp_path / "m").tree is not None
    rewrite_array(tmp_path / "m" / f"tree_{name}", np.array(wrong))
    with pytest.raises(StoreError, match=expecting(tmp_path / "m")):
        load_model(tmp_path / "m")


@pytest.mark.parametrize(
    "change",
    [{"n_rows": "3"}, {"inertia": None}, {"preprocess": "other"}, {"radius": 7}, {"radius": None}],
)
def test_attributes_with_other_values_are_rejected(tmp_path: Path, change: dict[str, Any]) -> None:
    save_model(make_model(), tmp_path / "m")
    attrs_of(tmp_path / "m").update(change)
    with pytest.raises(StoreError, match=expecting(tmp_path / "m", *change)):
        load_model(tmp_path / "m")


def test_missing_array_is_named(tmp_path: Path) -> None:
    save_model(make_model(), tmp_path / "m")
    del zarr.open_group(str(tmp_path / "m"), mode="r+")["means"]
    with pytest.raises(StoreError, match=f"(?=.*{tmp_path}/m)(?=.*'means')"):
        load_model(tmp_path / "m")


def test_versions_of_numerical_packages_are_recorded() -> None:
    found = package_versions()
    assert {"scrlm-dask", "dask", "distributed", "zarr", "numpy", "numba", "scipy"} <= set(found)
    assert found["numpy"] == np.__version__
    assert all(isinstance(text, str) and text for text in found.values())
