"""Input files in all formats, written by the usual libraries, for tests of the readers."""

from __future__ import annotations

import csv
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from numpy.typing import NDArray

from scrlm_dask.sources.registry import SourceOptions

Written = tuple[list[str], SourceOptions]


def write_npy(folder: Path, x: NDArray[Any]) -> Written:
    np.save(folder / "x.npy", x)
    return [str(folder / "x.npy")], SourceOptions()


def write_npy_fortran(folder: Path, x: NDArray[Any]) -> Written:
    return write_npy(folder, np.asfortranarray(x))


def write_npy_foreign(folder: Path, x: NDArray[Any]) -> Written:
    return write_npy(folder, x.astype(x.dtype.newbyteorder(">")))


def write_npz(folder: Path, x: NDArray[Any]) -> Written:
    np.savez(folder / "x.npz", emb=x, other=np.arange(3))
    return [str(folder / "x.npz")], SourceOptions()


def write_npz_fortran(folder: Path, x: NDArray[Any]) -> Written:
    return write_npz(folder, np.asfortranarray(x))


def write_npz_deflated(folder: Path, x: NDArray[Any]) -> Written:
    np.savez_compressed(folder / "x.npz", emb=x, more=x[:1])
    return [str(folder / "x.npz")], SourceOptions(dataset="emb")


def write_shards(folder: Path, x: NDArray[Any]) -> Written:
    """Write eleven shards, so that 2 must be sorted before 10; some may be empty."""
    (folder / "shards").mkdir()
    for i, part in enumerate(np.array_split(x, 11)):
        np.save(folder / "shards" / f"emb_{i}.npy", part)
    return [str(folder / "shards")], SourceOptions()


def write_glob(folder: Path, x: NDArray[Any]) -> Written:
    paths, options = write_shards(folder, x)
    return [f"{paths[0]}/emb_*.npy"], options


def write_clip(folder: Path, x: NDArray[Any]) -> Written:
    for name in ("img_emb", "metadata"):
        (folder / "clip" / name).mkdir(parents=True)
    first = 0
    for i, part in enumerate(np.array_split(x, 3)):
        np.save(folder / f"clip/img_emb/img_emb_{i}.npy", part)
        rows = range(first, first + len(part))
        table = pa.table(
            {"image_path": pa.array([f"{r}.jpg" for r in rows], pa.string()),
             "label": pa.array([r % 5 for r in rows], pa.int64())}
        )  # fmt: skip
        pq.write_table(table, folder / f"clip/metadata/metadata_{i}.parquet")
        first += len(part)
    return [str(folder / "clip")], SourceOptions()


def write_bin(folder: Path, x: NDArray[Any]) -> Written:
    suffix = {"f": "fbin", "u": "u8bin", "i": "i8bin"}[x.dtype.kind]
    path = folder / f"x.{suffix}"
    path.write_bytes(struct.pack("<II", *x.shape) + x.tobytes())
    return [str(path)], SourceOptions()


def write_vecs(folder: Path, x: NDArray[Any]) -> Written:
    path = folder / f"x.{'fvecs' if x.dtype.kind == 'f' else 'bvecs'}"
    path.write_bytes(b"".join(struct.pack("<i", x.shape[1]) + row.tobytes() for row in x))
    return [str(path)], SourceOptions()


def write_raw(folder: Path, x: NDArray[Any]) -> Written:
    x.tofile(folder / "x.dat")
    options = SourceOptions(format="raw", raw_dtype=str(x.dtype), raw_features=x.shape[1])
    return [str(folder / "x.dat")], options


def write_hdf5(folder: Path, x: NDArray[Any]) -> Written:
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("deep/train", data=x, chunks=(min(7, len(x)), x.shape[1]))
        file["test"] = x[:1]
        file["label"] = np.arange(len(x)) % 5
        file["name"] = [f"{i}.jpg" for i in range(len(x))]
    return [str(folder / "x.h5")], SourceOptions(dataset="deep/train")


def columns_of(x: NDArray[Any], kind: str) -> pa.Table:
    items = pa.array(np.ascontiguousarray(x).reshape(-1))
    if kind == "fixed":
        vectors = pa.FixedSizeListArray.from_arrays(items, x.shape[1])
    else:
        offsets = np.arange(len(x) + 1) * x.shape[1]
        vectors = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)
    return pa.table(
        {
            "name": pa.array([f"{i}.jpg" for i in range(len(x))], pa.string()),
            "label": pa.array(np.arange(len(x)) % 5),
            "emb": vectors,
        }
    )


def write_parquet_fixed(folder: Path, x: NDArray[Any]) -> Written:
    pq.write_table(columns_of(x, "fixed"), folder / "x.parquet", row_group_size=9)
    return [str(folder / "x.parquet")], SourceOptions()


def write_parquet_lists(folder: Path, x: NDArray[Any]) -> Written:
    half = len(x) // 2
    for i, part in enumerate((x[:half], x[half:])):
        pq.write_table(columns_of(part, "list"), folder / f"x{i}.parquet", row_group_size=9)
    # A file without rows does not contain the length of its lists.
    paths = [str(folder / f"x{i}.parquet") for i in range(2)]
    return paths[0 if half else 1 :], SourceOptions(columns=("emb",))


def write_parquet_wide(folder: Path, x: NDArray[Any]) -> Written:
    columns = {f"f{i}": x[:, i] for i in range(x.shape[1])}
    pq.write_table(pa.table(columns), folder / "x.parquet", row_group_size=9)
    return [str(folder / "x.parquet")], SourceOptions()


def write_huggingface(folder: Path, x: NDArray[Any]) -> Written:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import datasets

        datasets.disable_progress_bars()
        table = columns_of(x, "list")
        dataset = datasets.Dataset(table)
        dataset.save_to_disk(folder / "hf", num_shards=min(2, len(x)))
    return [str(folder / "hf")], SourceOptions()


def write_arrow(folder: Path, x: NDArray[Any]) -> Written:
    table = columns_of(x, "fixed")
    with pa.ipc.new_stream(folder / "x.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return [str(folder / "x.arrow")], SourceOptions()


def write_csv(folder: Path, x: NDArray[Any]) -> Written:
    with (folder / "x.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([f"f{i}" for i in range(x.shape[1])])
        writer.writerows([repr(float(v)) for v in row] for row in x)
    return [str(folder / "x.csv")], SourceOptions()


def write_tsv(folder: Path, x: NDArray[Any]) -> Written:
    np.savetxt(folder / "x.tsv", x, fmt="%.17g", delimiter="\t")
    return [str(folder / "x.tsv")], SourceOptions()


def write_zarr(folder: Path, x: NDArray[Any], **options: Any) -> Written:
    options = {"chunks": (5, max(1, x.shape[1] // 2)), "zarr_format": 3, **options}
    array = zarr.create_array(
        folder / "x.zarr",
        shape=x.shape,
        dtype=x.dtype,
        config={"write_empty_chunks": True},
        **options,
    )
    array[...] = x
    return [str(folder / "x.zarr")], SourceOptions()


def write_zarr_2(folder: Path, x: NDArray[Any]) -> Written:
    return write_zarr(folder, x, zarr_format=2)


def write_zarr_sharded(folder: Path, x: NDArray[Any]) -> Written:
    return write_zarr(folder, x, chunks=(2, x.shape[1]), shards=(6, x.shape[1]))


ANY, FLOATS = ("float16", "float32", "float64", "int8", "uint8", "int64"), ("float32", "float64")
WRITERS: dict[str, tuple[Callable[[Path, NDArray[Any]], Written], tuple[str, ...]]] = {
    "npy": (write_npy, ANY),
    "npy in Fortran order": (write_npy_fortran, ANY),
    "npy in foreign byte order": (write_npy_foreign, ("float16", "float64", "int64")),
    "npz": (write_npz, ANY),
    "npz in Fortran order": (write_npz_fortran, ANY),
    "npz deflated": (write_npz_deflated, ANY),
    "shards": (write_shards, ANY),
    "glob": (write_glob, ANY),
    "clip-retrieval": (write_clip, ("float16", "float32")),
    "bin": (write_bin, ("float32", "uint8", "int8")),
    "vecs": (write_vecs, ("float32", "uint8")),
    "raw": (write_raw, ANY),
    "hdf5": (write_hdf5, ANY),
    "parquet, fixed-size lists": (write_parquet_fixed, ANY),
    "parquet, lists in two files": (write_parquet_lists, FLOATS),
    "parquet, one column per feature": (write_parquet_wide, FLOATS),
    "huggingface": (write_huggingface, FLOATS),
    "arrow": (write_arrow, FLOATS),
    "csv": (write_csv, ("float64",)),
    "tsv": (write_tsv, ("float64",)),
    "zarr 3": (write_zarr, ANY),
    "zarr 2": (write_zarr_2, ANY),
    "zarr sharded": (write_zarr_sharded, ANY),
}
