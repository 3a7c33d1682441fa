"""Files of all source formats, written by the libraries of these formats.

Each function writes files to a folder, and returns the sources and options for `scrlm ingest`.
"""

from __future__ import annotations

import csv
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from golden.mixture_rows import FEATURES, mixture
from numpy.typing import NDArray

INGESTED = 60  # rows

Written = tuple[Any, ...]


def ingested_rows() -> NDArray[np.float32]:
    return mixture()[0][:INGESTED]


def write_npy(folder: Path) -> Written:
    np.save(folder / "x.npy", ingested_rows())
    return (folder / "x.npy",)


def write_npz(folder: Path) -> Written:
    np.savez_compressed(folder / "x.npz", emb=ingested_rows(), other=np.arange(3))
    return (folder / "x.npz", "--dataset", "emb")


def write_shards(folder: Path) -> Written:
    """Write eleven files, so that numeric and alphabetic order differ."""
    (folder / "shards").mkdir()
    for i, part in enumerate(np.array_split(ingested_rows().astype(np.float64), 11)):
        np.save(folder / "shards" / f"emb_{i}.npy", part)
    return (folder / "shards",)


def write_fbin(folder: Path) -> Written:
    rows = ingested_rows()
    (folder / "x.fbin").write_bytes(struct.pack("<II", *rows.shape) + rows.tobytes())
    return (folder / "x.fbin",)


def write_u8bin(folder: Path) -> Written:
    rows = (np.arange(INGESTED * FEATURES) % 251).astype(np.uint8).reshape(INGESTED, FEATURES)
    (folder / "x.u8bin").write_bytes(struct.pack("<II", *rows.shape) + rows.tobytes())
    return (folder / "x.u8bin",)


def write_fvecs(folder: Path) -> Written:
    rows = ingested_rows()
    parts = [struct.pack("<i", rows.shape[1]) + row.tobytes() for row in rows]
    (folder / "x.fvecs").write_bytes(b"".join(parts))
    return (folder / "x.fvecs",)


def write_raw(folder: Path) -> Written:
    ingested_rows().astype(np.float16).tofile(folder / "x.dat")
    return (folder / "x.dat", "--format", "raw", "--raw-dtype", "float16", "--features", FEATURES)


def write_hdf5(folder: Path) -> Written:
    import h5py

    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("deep/train", data=ingested_rows(), chunks=(7, FEATURES))
        file["test"] = ingested_rows()[:1]
        file["label"] = np.arange(INGESTED) % 5
        file["name"] = [f"{i}.jpg" for i in range(INGESTED)]
    return (folder / "x.h5", "--dataset", "deep/train", "--labels", "label", "--ids", "name")


def arrow_table() -> Any:
    import pyarrow as pa

    vectors = pa.FixedSizeListArray.from_arrays(pa.array(ingested_rows().ravel()), FEATURES)
    names = pa.array([f"{i}.jpg" for i in range(INGESTED)], pa.string())
    classes = pa.array([("cat", "dog", "eel")[i % 3] for i in range(INGESTED)], pa.string())
    return pa.table({"name": names, "class": classes, "emb": vectors})


_COLUMNS = ("--column", "emb", "--labels", "class", "--ids", "name")


def write_parquet(folder: Path) -> Written:
    import pyarrow.parquet as pq

    table = arrow_table()
    for i, start in enumerate((0, 25)):
        part = table.slice(start, 25 if i == 0 else None)
        pq.write_table(part, folder / f"x{i}.parquet", row_group_size=9)
    return (folder / "x0.parquet", folder / "x1.parquet", *_COLUMNS)


def write_wide_parquet(folder: Path) -> Written:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = ingested_rows()
    columns = {f"f{i}": rows[:, i] for i in range(FEATURES)}
    pq.write_table(pa.table({"id": np.arange(INGESTED) * 3, **columns}), folder / "x.parquet")
    return (folder / "x.parquet", "--ids", "id", "--exclude", "f0")


def write_arrow(folder: Path) -> Written:
    import pyarrow as pa

    table = arrow_table()
    with pa.ipc.new_stream(folder / "x.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return (folder / "x.arrow", *_COLUMNS)


def write_huggingface(folder: Path) -> Written:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import datasets

        datasets.disable_progress_bars()
        datasets.Dataset(arrow_table()).save_to_disk(folder / "hf", num_shards=2)
    return (folder / "hf", *_COLUMNS)


def write_csv(folder: Path) -> Written:
    with (folder / "x.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "class", *(f"f{i}" for i in range(FEATURES))])
        for i, row in enumerate(ingested_rows()):
            writer.writerow([f"{i}.jpg", i % 4, *(repr(float(v)) for v in row)])
    return (folder / "x.csv", "--labels", "class", "--ids", "name")


def write_zarr(folder: Path) -> Written:
    rows = ingested_rows()
    array = zarr.create_array(
        folder / "x.zarr", shape=rows.shape, dtype=rows.dtype, chunks=(5, 6), zarr_format=2
    )
    array[...] = rows
    return (folder / "x.zarr",)


def write_clip(folder: Path) -> Written:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("img_emb", "metadata"):
        (folder / "clip" / name).mkdir(parents=True)
    for i, numbers in enumerate(np.array_split(np.arange(INGESTED), 3)):
        part = ingested_rows()[numbers].astype(np.float16)
        np.save(folder / f"clip/img_emb/img_emb_{i}.npy", part)
        table = pa.table({"image_path": [f"{r}.jpg" for r in numbers], "label": numbers % 5})
        pq.write_table(table, folder / f"clip/metadata/metadata_{i}.parquet")
    return (folder / "clip", "--labels", "label", "--ids", "image_path")


WRITERS: dict[str, Callable[[Path], Written]] = {
    "npy": write_npy,
    "npz": write_npz,
    "shards": write_shards,
    "fbin": write_fbin,
    "u8bin": write_u8bin,
    "fvecs": write_fvecs,
    "raw": write_raw,
    "hdf5": write_hdf5,
    "parquet": write_parquet,
    "wide_parquet": write_wide_parquet,
    "arrow": write_arrow,
    "huggingface": write_huggingface,
    "csv": write_csv,
    "zarr": write_zarr,
    "clip_retrieval": write_clip,
}
