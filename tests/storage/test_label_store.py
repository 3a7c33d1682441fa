"""The labels store, and true labels as .npy files or Zarr arrays."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from scrlm_dask.config import FitConfig
from scrlm_dask.errors import InputError, MissingError, StoreError
from scrlm_dask.kernels.distances.assignment import Assignment
from scrlm_dask.pipeline.evaluate import evaluate
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.storage.arrays import StoredArray, read_rows
from scrlm_dask.storage.feature_store import mark_complete
from scrlm_dask.storage.label_store import (
    COARSE,
    FINE,
    copy_joined,
    create_labels_store,
    ensure_labels_store,
    is_labels_store,
    labelled_features,
    labels_complete,
    open_labels,
    open_truth,
    write_coarse_labels,
    write_labels_block,
)
from scrlm_dask.storage.npy_files import NpyColumn
from scrlm_dask.storage.store_info import RecordedFeatures

# 5 rows: three near a cluster, one outlier, one halfway between the two centers. Distances to the
# nearest center are 0, 3, 4, 12 and 5; to the second-nearest 5, 5, 5, 13 and 5.
ASSIGNED = Assignment(
    labels=np.array([0, 0, 1, -1, 0], np.int32),
    sq_distances=np.array([0.0, 9.0, 16.0, 144.0, 25.0]),
    second_sq_distances=np.array([25.0, 25.0, 25.0, 169.0, 25.0]),
)


def rows_of(assigned: Assignment, start: int, stop: int) -> Assignment:
    return Assignment(
        assigned.labels[start:stop],
        assigned.sq_distances[start:stop],
        assigned.second_sq_distances[start:stop],
    )


def finished_store(path: Path) -> str:
    url = create_labels_store(path, 5, 2, margins=True).url
    for start in (4, 0, 2):  # blocks finish in any order
        write_labels_block(url, start, rows_of(ASSIGNED, start, start + 2))
    mark_complete(url)
    return url


def array_in(path: Path, values: NDArray[Any], **options: Any) -> None:
    options = {"shape": values.shape, "chunks": values.shape, "dtype": values.dtype, **options}
    zarr.create_array(str(path), config={"write_empty_chunks": True}, **options)[...] = values


# --- the store ---------------------------------------------------------------------------------


def test_layout(tmp_path: Path) -> None:
    url = create_labels_store(tmp_path / "labels.zarr", 5, 2, margins=True).url
    assert url == f"{tmp_path}/labels.zarr"
    group = zarr.open_group(url, mode="r")
    assert sorted(group.array_keys()) == ["distances", "labels", "margins"]
    assert dict(group.attrs) == {"scrlm": "labels", "complete": False}
    for name, dtype in (("labels", "int32"), ("distances", "float32"), ("margins", "float32")):
        array = group[name]
        assert isinstance(array, zarr.Array)
        assert (array.dtype, array.shape, array.chunks) == (np.dtype(dtype), (5,), (2,)), name
        assert [c["name"] for c in array.metadata.to_dict()["codecs"]] == ["bytes", "crc32c"]
        # no row can have this label or distance
        assert array.fill_value == -2 if name == "labels" else np.isnan(array.fill_value)


def test_assignment_is_written(tmp_path: Path) -> None:
    group = zarr.open_group(finished_store(tmp_path / "l"), mode="r")
    found = {name: array[...].tolist() for name, array in group.arrays()}
    assert found == {
        "labels": [0, 0, 1, -1, 0],
        "distances": [0.0, 3.0, 4.0, 12.0, 5.0],
        "margins": [5.0, 2.0, 1.0, 1.0, 0.0],
    }


def test_distances_are_infinite_without_clusters(tmp_path: Path) -> None:
    url = create_labels_store(tmp_path / "l", 2, 2, margins=True).url
    nothing = np.full(2, np.inf)
    write_labels_block(url, 0, Assignment(np.full(2, -1, np.int32), nothing, nothing))
    mark_complete(url)
    assert read_rows(open_labels(url, "the labels"), 0, 2, "it").tolist() == [-1, -1]
    group = zarr.open_group(url, mode="r")
    for name in ("distances", "margins"):
        assert group[name][...].tolist() == [np.inf, np.inf]  # type: ignore[union-attr,index]


def test_finished_store_is_opened(tmp_path: Path) -> None:
    stored = open_labels(finished_store(tmp_path / "l"), "the labels")
    assert stored.location.url == f"{tmp_path}/l/labels"
    assert (stored.shape, stored.chunks) == ((5,), (2,))
    assert read_rows(stored, 1, 4, "the labels").tolist() == [0, 1, -1]


def test_unfinished_store_is_rejected(tmp_path: Path) -> None:
    url = finished_store(tmp_path / "l")
    open_labels(url, "labels-7")
    zarr.open_group(url, mode="r+").attrs["complete"] = False
    with pytest.raises(StoreError, match=f"(?=.*labels-7)(?=.*{tmp_path}/l)"):
        open_labels(url, "labels-7")


def test_missing_block_is_rejected(tmp_path: Path) -> None:
    url = create_labels_store(tmp_path / "l", 5, 2, margins=True).url
    write_labels_block(url, 0, rows_of(ASSIGNED, 0, 2))
    write_labels_block(url, 4, rows_of(ASSIGNED, 4, 5))
    mark_complete(url)
    with pytest.raises(StoreError, match=r"(?=.*\bc/1\b)(?=.*\brow 2\b)(?=.*-2\b)"):
        open_labels(url, "the labels")


def test_group_without_labels_is_rejected(tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "g"))
    with pytest.raises(StoreError, match=f"(?=.*{tmp_path}/g)(?=.*'labels')"):
        open_labels(tmp_path / "g", "the truth")


# --- labels of other levels ----------------------------------------------------------------------

FINE_LABELS = np.array([1, 0, 2, -1, 1], np.int32)


def store_with_fine_labels(path: Path) -> str:
    url = create_labels_store(path, 5, 2, margins=True, fine=True).url
    for start in (4, 0, 2):
        rows = rows_of(ASSIGNED, start, start + 2)
        write_labels_block(url, start, rows, FINE_LABELS[start : start + 2])
    return url


def labels_in(url: str, name: str) -> list[int]:
    return read_rows(open_labels(url, "the labels", name), 0, 5, "the labels").tolist()


def test_fine_labels_are_written(tmp_path: Path) -> None:
    url = store_with_fine_labels(tmp_path / "l")
    assert labels_complete(url, 0, 5)
    mark_complete(url)
    array = zarr.open_group(url, mode="r")[FINE]
    assert (array.dtype, array.shape, array.chunks) == (np.dtype("int32"), (5,), (2,))
    assert array.fill_value == -2
    assert labels_in(url, FINE) == FINE_LABELS.tolist()
    assert labels_in(url, "labels") == [0, 0, 1, -1, 0]


def test_block_without_its_fine_labels_is_incomplete(tmp_path: Path) -> None:
    url = create_labels_store(tmp_path / "l", 5, 2, margins=True, fine=True).url
    for start in (0, 2, 4):
        fine = FINE_LABELS[start : start + 2] if start != 2 else None
        write_labels_block(url, start, rows_of(ASSIGNED, start, start + 2), fine)
    assert [labels_complete(url, start, min(start + 2, 5)) for start in (0, 2, 4)] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_store_is_reused_only_with_the_same_levels(
    tmp_path: Path, before: bool, after: bool
) -> None:
    url = create_labels_store(tmp_path / "l", 5, 2, margins=True, fine=before).url
    write_labels_block(url, 0, rows_of(ASSIGNED, 0, 2))
    assert ensure_labels_store(url, 5, 2, margins=True, fine=after).url == url
    group = zarr.open_group(url, mode="r")
    assert (FINE in group) == after
    assert (group["labels"][0] == 0) == (before == after)  # -2 in a new store


def test_coarse_labels_are_joined_labels(tmp_path: Path) -> None:
    url = finished_store(tmp_path / "l")
    write_coarse_labels(url, np.array([1, 0]))
    assert labels_in(url, COARSE) == [1, 1, 0, -1, 1]
    assert labels_in(url, "labels") == [0, 0, 1, -1, 0]
    array = zarr.open_group(url, mode="r")[COARSE]
    assert (array.dtype, array.chunks) == (np.dtype("int32"), (2,))
    write_coarse_labels(url, np.array([0, 0]))  # a resumed run writes them again
    assert labels_in(url, COARSE) == [0, 0, 0, -1, 0]


def test_coarse_labels_can_be_written_before_the_store_is_complete(tmp_path: Path) -> None:
    url = store_with_fine_labels(tmp_path / "l")
    write_coarse_labels(url, np.array([0, 0]))
    mark_complete(url)
    assert labels_in(url, COARSE) == [0, 0, 0, -1, 0]


def test_joined_labels_keep_outliers(tmp_path: Path) -> None:
    url = store_with_fine_labels(tmp_path / "l")
    mark_complete(url)
    target = create_labels_store(tmp_path / "t", 5, 2, margins=False, distances=False)
    copy_joined(open_labels(url, "it", FINE), np.array([0, 0, 1]), target, "labels")
    mark_complete(target)
    assert labels_in(target.url, "labels") == [0, 0, 1, -1, 0]


# --- the truth ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", ">i4", "uint64"])
def test_truth_as_npy(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "y.npy", np.array([3, 1, 2], dtype))
    truth = open_truth(tmp_path / "y.npy")
    assert isinstance(truth, NpyColumn)  # a path; the rows are not read yet
    assert truth.shape == (3,)
    assert truth.read(1, 3).tolist() == [1, 2]


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_truth_as_zarr(tmp_path: Path, dtype: str) -> None:
    array_in(tmp_path / "y", np.array([3, 1, 2], dtype), chunks=(2,))
    truth = open_truth(tmp_path / "y")
    assert isinstance(truth, StoredArray)
    assert read_rows(truth, 0, 3, "the truth").tolist() == [3, 1, 2]


def test_truth_as_labels_of_a_group(tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "g"))
    array_in(tmp_path / "g/labels", np.array([3, 1, 2]))
    truth = open_truth(tmp_path / "g")
    assert isinstance(truth, StoredArray)
    assert truth.location.url == f"{tmp_path}/g/labels"


def test_missing_chunk_of_the_truth_is_detected(tmp_path: Path) -> None:
    array_in(tmp_path / "y", np.array([3, 1, 2]), chunks=(2,))
    (tmp_path / "y/c/1").unlink()
    with pytest.raises(StoreError, match=rf"(?=.*{tmp_path}/y)(?=.*\bc/1\b)(?=.*\brow 2\b)"):
        open_truth(tmp_path / "y")


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (np.array([[0, 1], [1, 0]]), "(2, 2)"),
        (np.array(3), "()"),
        (np.array([0.0, 1.0]), "float64"),
        (np.array([True, False]), "bool"),
        (np.array([1 + 0j]), "complex128"),
    ],
    ids=["2-D", "0-D", "float", "bool", "complex"],
)
@pytest.mark.parametrize("form", ["npy", "zarr"])
def test_only_one_integer_per_row_is_accepted(
    tmp_path: Path, values: NDArray[Any], found: str, form: str
) -> None:
    path = tmp_path / f"y.{form}"
    if form == "npy":
        np.save(path, values)
    else:
        array_in(path, values)
    with pytest.raises(InputError) as caught:
        open_truth(path)
    for fact in (str(path), found):
        assert fact in str(caught.value)


def test_truth_inside_a_features_store_is_checked(tmp_path: Path) -> None:
    # converted to integers, 0.2 and 0.9 would be one class and the scores would be wrong
    x = np.repeat(np.array([[0.0] * 4, [9.0] * 4], np.float32), 10, axis=0)
    zarr.create_group(str(tmp_path / "x.zarr"))
    array_in(tmp_path / "x.zarr/features", x)
    array_in(tmp_path / "x.zarr/labels", np.repeat([0.2, 0.9], 10))
    fit(tmp_path / "x.zarr", FitConfig(rho=0.5, preprocess="none"), out=tmp_path / "run")
    with pytest.raises(InputError, match=r"(?=.*x\.zarr/labels)(?=.*float64)"):
        evaluate(tmp_path / "run")


class Unpickled:
    """Creates a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


def test_pickle_in_a_npy_file_is_rejected_and_not_executed(tmp_path: Path) -> None:
    values = np.array([Unpickled(tmp_path / "trace"), None], object)
    np.save(tmp_path / "y.npy", values, allow_pickle=True)
    with pytest.raises(StoreError, match=f"{tmp_path}/y.npy"):
        open_truth(tmp_path / "y.npy")
    assert not (tmp_path / "trace").exists()
    np.load(tmp_path / "y.npy", allow_pickle=True)
    assert (tmp_path / "trace").exists()


def test_pickle_renamed_to_npy_is_rejected_and_not_executed(tmp_path: Path) -> None:
    (tmp_path / "y.npy").write_bytes(pickle.dumps(Unpickled(tmp_path / "trace")))
    with pytest.raises(StoreError, match=f"{tmp_path}/y.npy"):
        open_truth(tmp_path / "y.npy")
    assert not (tmp_path / "trace").exists()


def test_path_of_the_features_is_recorded(tmp_path: Path) -> None:
    known = [RecordedFeatures("/data/x.zarr", "1f", shuffled) for shuffled in (None, False, True)]
    for number, features in enumerate([None, *known]):
        url = create_labels_store(tmp_path / str(number), 5, 2, True, features)
        assert is_labels_store(url)
        assert labelled_features(url) == features
    zarr.create_group(tmp_path / "g")
    assert not is_labels_store(tmp_path / "g")
    assert not is_labels_store(tmp_path / "nowhere")


def whole(path: Path) -> bytes:
    np.save(path, np.arange(1000))
    return path.read_bytes()


def text(path: Path) -> bytes:
    return b"0\n1\n1\n"


def truncated(path: Path) -> bytes:
    return whole(path)[:-1]


def truncated_header(path: Path) -> bytes:
    return whole(path)[:40]


def wrong_shape_in_header(path: Path) -> bytes:
    return whole(path).replace(b"(1000,)", b"(9999,)")


def empty(path: Path) -> bytes:
    return b""


def renamed_npz(path: Path) -> bytes:
    with path.open("wb") as file:
        np.savez(file, labels=np.arange(3))
    return path.read_bytes()


@pytest.mark.parametrize(
    "content",
    [text, truncated, truncated_header, wrong_shape_in_header, empty, renamed_npz],
)
def test_invalid_npy_file_is_rejected(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "y.npy"
    path.write_bytes(content(path))
    with pytest.raises(StoreError, match=rf"{path}\b.*\.npy\b") as caught:
        open_truth(path)
    assert not isinstance(caught.value, MissingError)


def test_missing_truth(tmp_path: Path) -> None:
    for name in ("y.npy", "y.zarr"):
        with pytest.raises(MissingError, match=f"{tmp_path}/{name}"):
            open_truth(tmp_path / name)
