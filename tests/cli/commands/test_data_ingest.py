"""`scrlm ingest`: output, damaged sources, and stores that are not complete."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import struct
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from formats import WRITERS, columns_of
from zarr.codecs import Crc32cCodec

REJECTED, FAILED, USAGE = 3, 1, 2
ROWS, P = 40, 6
X = np.random.default_rng(0).normal(size=(ROWS, P)).astype(np.float32)
CHUNKS = ("--chunk-size", "240B")  # 10 rows


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.zarr"


@pytest.fixture
def rejected(invoke, out):
    """Run an ingest that must fail with a message that contains the facts, and return it."""

    def run(*sources: Any, facts: tuple[str, ...], code: int = REJECTED) -> str:
        message = invoke("ingest", *sources, out, *CHUNKS).rejected(*facts, code=code)
        if out.exists():
            check_unfinished(invoke, out)
        return message

    return run


def check_unfinished(invoke: Any, out: Path) -> None:
    """Check that the blocks of an interrupted ingest are not accepted as a features store."""
    assert invoke("inspect", out, "--json").json()["complete"] is False
    invoke("fit", out, "--out", out.parent / "run").rejected(str(out))


def write(name: str, folder: Path) -> tuple[Path, list[Any]]:
    """Write a file or folder of the format; return its path and the options it needs."""
    paths, options = WRITERS[name][0](folder, X)
    args: list[Any] = ["--format", options.format] if options.format else []
    args += ["--dataset", options.dataset] if options.dataset else []
    args += [word for column in options.columns for word in ("--column", column)]
    if options.raw_dtype:
        args += ["--raw-dtype", options.raw_dtype, "--features", options.raw_features]
    return Path(paths[0]), args


def stored(path: Path) -> np.ndarray:
    return zarr.open_array(path / "features", mode="r")[:]


def cut(path: Path, n_bytes: int = 30) -> None:
    path.write_bytes(path.read_bytes()[:-n_bytes])


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


class TestCommand:
    def test_json(self, scrlm, tmp_path, out):
        np.save(tmp_path / "x.npy", X)
        np.save(tmp_path / "y.npy", np.arange(ROWS) % 3)
        names = ("--labels", tmp_path / "y.npy", "--ids", tmp_path / "y.npy")
        done = scrlm("ingest", tmp_path / "x.npy", out, *names, *CHUNKS, "--nworkers", 1, "--json")
        assert done.json() == {
            "path": str(out),
            "rows": ROWS,
            "features": P,
            "dtype": "float32",
            "blocks": 4,
            "kept_blocks": 0,
            "dropped_rows": 0,
            "bytes": X.nbytes,
            "columns": [],
            "label_names": None,
        }
        np.testing.assert_array_equal(stored(out), X)
        assert "rows/s" in done.stderr

    def test_columns_and_names_of_labels(self, invoke, tmp_path, out):
        names = [f"f{i}" for i in range(P)]
        table = {"file": ["x"] * ROWS, "kind": ["owl", "cat"] * (ROWS // 2)}
        table |= {name: X[:, i] for i, name in enumerate(names)}
        pq.write_table(pa.table(table), tmp_path / "x.parquet")
        args = ("ingest", tmp_path / "x.parquet", out, "--labels", "kind")
        invoke(*args).rejected("'file'", "--exclude file")
        found = invoke(*args, "--exclude", "file", "--json").json()
        assert (found["columns"], found["label_names"]) == (names, ["cat", "owl"])
        done = invoke(*args, "--exclude", "file", "--overwrite").ok()
        assert re.search(r"f0, f1, f2, f3, f4\b.*\b6\b", done.stdout)
        assert "cat, owl" in done.stdout
        assert invoke("inspect", out, "--json").json()["label_names"] == ["cat", "owl"]
        assert re.search("int32.*cat, owl", invoke("inspect", out).ok().stdout)

    def test_columns_that_are_rarely_features_are_reported(self, invoke, tmp_path, out):
        file = tmp_path / "rows.csv"
        file.write_text("ID,x,y2,label\n" + "".join(f"{i},{i / 7},{-i},1\n" for i in range(20)))
        stderr = invoke("ingest", file, out).ok().stderr
        assert "'ID'" in stderr
        assert "'label'" in stderr
        assert "--exclude ID --exclude label" in stderr
        names = ("--labels", "label", "--ids", "ID")
        assert "--exclude" not in invoke("ingest", file, out, "--overwrite", *names).ok().stderr

    def test_seed_requires_shuffle(self, invoke, tmp_path, out):
        np.save(tmp_path / "x.npy", X)
        done = invoke("ingest", tmp_path / "x.npy", out, "--seed", 5)
        done.rejected("--seed", "--shuffle", code=USAGE)
        assert not out.exists()

    def test_ingested_store_can_be_fitted_and_evaluated(self, invoke, rows, features, tmp_path):
        np.save(tmp_path / "x.npy", rows)
        np.save(tmp_path / "y.npy", zarr.open_array(features / "labels", mode="r")[:])
        out, run = tmp_path / "out.zarr", tmp_path / "run"
        args = ("--labels", tmp_path / "y.npy", "--chunk-size", "64kB", "--shuffle", "--seed", 5)
        invoke("ingest", tmp_path / "x.npy", out, *args).ok()
        invoke("fit", out, "--out", run, "--clusters", 10).ok()
        assert invoke("evaluate", run, "--json").json()["accuracy"] > 0.99

    @pytest.mark.parametrize("name", WRITERS)
    def test_every_format(self, invoke, tmp_path, out, name):
        if "float32" not in WRITERS[name][1]:
            np.savetxt(tmp_path / "x.csv", X, delimiter=",", fmt="%.9g")
            path, args = tmp_path / "x.csv", []
        else:
            path, args = write(name, tmp_path)
        several = sorted(tmp_path.glob("x?.parquet")) or [path]
        invoke("ingest", *several, out, *args, *CHUNKS).ok()
        np.testing.assert_array_equal(stored(out), X)

    def test_raw_dtype_defaults_to_the_output_dtype(self, invoke, tmp_path, out):
        X.astype(np.float16).tofile(tmp_path / "x.dat")
        args = ("--format", "raw", "--features", P)
        invoke("ingest", tmp_path / "x.dat", out, *args, "--dtype", "float16").ok()
        np.testing.assert_array_equal(stored(out), X.astype(np.float16))
        X.astype(">f8").tofile(tmp_path / "x.dat")
        more = ("--raw-dtype", ">f8", "--dtype", "float32", "--overwrite")
        invoke("ingest", tmp_path / "x.dat", out, *args, *more).ok()
        np.testing.assert_array_equal(stored(out), X)

    @pytest.mark.parametrize("args", [(), ("x.npy",), ("x.npy", "out", "--limit", 0)])
    def test_usage(self, invoke, args):
        assert invoke("ingest", *args).code == USAGE

    def test_invalid_sources(self, rejected, tmp_path):
        rejected(tmp_path / "gone.npy", facts=(str(tmp_path / "gone.npy"),))
        rejected(tmp_path / "*.npy", facts=(str(tmp_path / "*.npy"),))
        (tmp_path / "empty").mkdir()
        rejected(tmp_path / "empty", facts=(str(tmp_path / "empty"), ".npy", ".parquet"))
        (tmp_path / "x.docx").write_bytes(b"\x00\x01")
        rejected(tmp_path / "x.docx", facts=(str(tmp_path / "x.docx"), "--format", "parquet"))
        rejected("s3://bucket/x.npy", "--format", "npy", facts=("s3://bucket/x.npy", "Zarr"))

    def test_option_that_does_not_apply_to_the_format(self, rejected, tmp_path):
        np.save(tmp_path / "x.npy", X)
        facts = ("--dataset", str(tmp_path / "x.npy"))
        rejected(tmp_path / "x.npy", "--dataset", "a", facts=facts)

    def test_missing_library_is_named(self, invoke, out, tmp_path, monkeypatch):
        path, _ = write("hdf5", tmp_path)
        monkeypatch.setitem(__import__("sys").modules, "h5py", None)
        facts = (str(path), "h5py", "scrlm-dask[formats]")
        invoke("ingest", path, out).rejected(*facts, code=REJECTED)


# Rows and bytes of the header and of the file, or the error of the library that reads it.
TRUNCATED = {
    "npy": ("40", "38", "1088", "1058"),
    "npy in Fortran order": ("40", "1088", "1058"),
    "npz": ("BadZipFile",),
    "npz deflated": ("BadZipFile",),
    "bin": ("40", "38", "968", "938"),
    "vecs": ("row 38", "1090"),
    "raw": ("row 38", "930"),
    "hdf5": ("OSError", "truncated"),
    "parquet, fixed-size lists": ("ArrowInvalid",),
    "arrow": ("OSError", "176", "154"),
}


class TestDamagedFiles:
    @pytest.mark.parametrize("name", TRUNCATED)
    def test_truncated(self, rejected, tmp_path, name):
        path, args = write(name, tmp_path)
        cut(path)
        rejected(path, *args, facts=(str(path), *TRUNCATED[name]))

    def test_arrow_stream_without_end_mark(self, rejected, tmp_path):
        path, _ = write("arrow", tmp_path)
        cut(path, 8)
        rejected(path, facts=(str(path), "row 40"))

    def test_truncated_csv(self, rejected, tmp_path):
        path = tmp_path / "x.csv"
        np.savetxt(path, X, delimiter=",", fmt="%.3f")
        cut(path, 20)
        rejected(path, facts=(str(path), "row 39", "line 40", "4", "6"))

    def test_truncated_dataset(self, rejected, tmp_path):
        path, _ = write("huggingface", tmp_path)
        cut(next(path.glob("data-00001*.arrow")), 100)
        rejected(path, facts=("data-00001-of-00002.arrow",))

    def test_truncated_shard(self, rejected, tmp_path):
        path, _ = write("shards", tmp_path)
        cut(path / "emb_10.npy")
        rejected(path, facts=("emb_10.npy", "3", "200", "170"))

    @pytest.mark.parametrize("damage", ["cut", "flipped", "missing"])
    @pytest.mark.parametrize("zarr_format", [2, 3])
    def test_zarr_chunks(self, rejected, tmp_path, damage, zarr_format):
        path = tmp_path / "x.zarr"
        # In Zarr version 2 the checksum is a separate filter.
        import numcodecs

        codec = Crc32cCodec() if zarr_format == 3 else numcodecs.CRC32()
        array = zarr.create_array(
            path,
            shape=X.shape,
            chunks=(10, P),
            dtype=X.dtype,
            compressors=codec,
            zarr_format=zarr_format,
        )
        array[...] = X
        chunk = path / ("c/2/0" if zarr_format == 3 else "2.0")
        {"cut": cut, "flipped": lambda p: flip(p, 50), "missing": Path.unlink}[damage](chunk)
        key = "c/2/0" if zarr_format == 3 else "2.0"
        facts = ("row 20", key) if damage == "missing" else ("20", "29", "checksum")
        rejected(path, facts=(str(path), *facts))

    def test_flipped_byte_of_parquet_page(self, rejected, invoke, out, tmp_path):
        path = tmp_path / "x.parquet"
        table = columns_of(X, "fixed").select(["emb"])
        options = {"compression": "none", "use_dictionary": False, "row_group_size": 10}
        pq.write_table(table, path, write_page_checksum=True, **options)
        at = path.read_bytes().index(X[25].tobytes())
        flip(path, at)
        rejected(path, facts=(str(path), "group 2", "row 20", "CRC"))

    @pytest.mark.parametrize("name", ["npz", "npz deflated"])
    def test_flipped_byte_of_archive(self, invoke, out, tmp_path, name):
        """The damage is far from the header and only detected after the rows have been read."""
        paths, _ = WRITERS[name][0](tmp_path, np.tile(X, (1000, 1)))
        path = Path(paths[0])
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo("emb.npy")
        flip(path, info.header_offset + 30 + len("emb.npy") + info.compress_size - 40)
        done = invoke("ingest", path, out, "--dataset", "emb")
        done.rejected(str(path), "0", "39999")
        assert not out.exists()  # rows written before the damage was detected are removed

    def test_flipped_byte_of_hdf5_dataset_with_checksums(self, rejected, tmp_path):
        path = tmp_path / "x.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("emb", data=X, chunks=(10, P), fletcher32=True)
        flip(path, path.read_bytes().index(X[25].tobytes()))
        rejected(path, facts=(str(path), "20", "29"))

    def test_row_of_fvecs_with_another_number_of_features(self, rejected, tmp_path):
        path, _ = write("vecs", tmp_path)
        flip(path, 17 * (4 + 4 * P))
        rejected(path, facts=(str(path), "row 17", "7", "6"))

    def test_text_that_is_not_a_number(self, rejected, tmp_path):
        (tmp_path / "x.csv").write_text(
            "".join(f"{i},{'x' if i == 33 else i}\n" for i in range(40))
        )
        rejected(tmp_path / "x.csv", facts=("x.csv", "row 33", "'x'"))
        (tmp_path / "x.csv").write_text(
            "".join(f"{i},1\n\n" if i == 7 else f"{i},1\n" for i in range(40))
        )
        facts = ("x.csv", "row 8", "0", "2")
        rejected(tmp_path / "x.csv", "--overwrite", facts=facts)

    @pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.h5", "x.parquet", "x.arrow"])
    def test_content_that_does_not_match_the_suffix(self, rejected, tmp_path, name):
        path = tmp_path / name
        path.write_bytes(bytes(1000))
        rejected(path, facts=(str(path), path.suffix, "--format"))


class TestShards:
    def test_order_of_the_shell_is_replaced_by_numeric_order(self, invoke, tmp_path, out):
        folder, _ = write("shards", tmp_path)
        shell, column = sorted(folder.glob("*.npy")), ("--labels", "kind")
        place = [path.name for path in shell].index("emb_10.npy") + 1
        note = invoke("ingest", *shell, out, *CHUNKS).ok().stderr
        assert re.search(rf"emb_10\.npy\b.*\b{place}\b.*\b{len(shell)}\b", note)
        np.testing.assert_array_equal(stored(out), X)
        # numeric or another order is not changed
        other = invoke("ingest", *shell[::-1], out, *CHUNKS, "--overwrite").ok()
        assert not np.array_equal(stored(out), X)
        assert shell[-1].name not in other.stderr
        in_order = sorted(shell, key=lambda path: int(path.stem[4:]))
        assert "numeric" not in invoke("ingest", *in_order, out, "--overwrite").ok().stderr
        # the error is about the column, not about the order
        invoke("ingest", *shell, out, *column, "--overwrite").rejected("'kind'")

    @pytest.mark.parametrize("option", ["--labels", "--ids"])
    def test_order_of_a_file_with_labels_is_ambiguous(self, invoke, tmp_path, out, option):
        folder, _ = write("shards", tmp_path)
        np.save(tmp_path / "y.npy", np.arange(ROWS))
        names = (option, tmp_path / "y.npy")
        shell = sorted(folder.glob("*.npy"))
        done = invoke("ingest", *shell, out, *names)
        done.rejected(option, str(tmp_path / "y.npy"), "emb_10.npy", "'part*.npy'")
        assert not out.exists()
        for sources in ([folder], [folder / "*.npy"], shell[:2]):
            expected = np.load(shell[0]).shape[0] + np.load(shell[1]).shape[0]
            np.save(tmp_path / "y.npy", np.arange(expected if len(sources) == 2 else ROWS))
            invoke("ingest", *sources, out, *names, "--overwrite").ok()

    def test_unfinished_import_of_a_shell_resumes(self, invoke, tmp_path, out):
        """Its sources were read in numeric order."""
        folder, _ = write("shards", tmp_path)
        invoke("ingest", folder, out, *CHUNKS).ok()
        for name in ("c/1", "c/3"):
            shutil.rmtree(out / "digests" / name)
        group = zarr.open_group(out, mode="r+")
        group.attrs["complete"] = False
        done = invoke("ingest", *sorted(folder.glob("*.npy")), out, *CHUNKS, "--json").json()
        assert done["kept_blocks"] == 2
        np.testing.assert_array_equal(stored(out), X)

    def test_gap_in_the_numbers(self, rejected, tmp_path):
        path, _ = write("shards", tmp_path)
        (path / "emb_6.npy").unlink()
        for source in (path, path / "*.npy"):
            rejected(source, facts=("emb_6.npy", "emb_7.npy"))

    def test_first_is_missing(self, rejected, tmp_path):
        path, _ = write("shards", tmp_path)
        for i in (0, 1):
            (path / f"emb_{i}.npy").unlink()
        rejected(path, facts=("emb_0.npy", "emb_2.npy"))

    def test_last_is_missing_if_names_contain_the_total(self, rejected, tmp_path):
        for i in (0, 1, 2):
            pq.write_table(columns_of(X, "fixed"), tmp_path / f"part-{i:05d}-of-00004.parquet")
        facts = ("part-00003-of-00004.parquet", "3", "4")
        rejected(tmp_path / "part-*.parquet", facts=facts)

    def test_data_file_of_a_dataset_is_missing(self, rejected, tmp_path):
        path, _ = write("huggingface", tmp_path)
        (path / "data-00001-of-00002.arrow").unlink()
        rejected(path, facts=("data-00001-of-00002.arrow", "state.json"))

    def test_splits_are_named(self, rejected, tmp_path):
        (tmp_path / "hf").mkdir()
        (tmp_path / "hf/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
        rejected(tmp_path / "hf", facts=("train", "test", str(tmp_path / "hf/train")))

    def test_different_widths(self, rejected, tmp_path):
        path, _ = write("shards", tmp_path)
        np.save(path / "emb_4.npy", X[:3, :5])
        rejected(path, facts=("emb_4.npy", "5", "emb_0.npy", "6"))

    def test_metadata_with_another_number_of_rows(self, rejected, tmp_path):
        path, _ = write("clip-retrieval", tmp_path)
        pq.write_table(pa.table({"label": [1, 2]}), path / "metadata/metadata_1.parquet")
        facts = ("metadata_1.parquet", "2", "img_emb_1.npy", "13")
        rejected(path, facts=facts)
        (path / "metadata/metadata_1.parquet").unlink()
        rejected(path, facts=("metadata_1.parquet", "img_emb_1.npy"))


class TestParquetRows:
    def table(self, path: Path, rows: list[Any]) -> Path:
        table = pa.table({"emb": pa.array(rows, pa.list_(pa.float32()))})
        pq.write_table(table, path, row_group_size=7)
        return path

    @pytest.mark.parametrize(
        ("bad", "facts"),
        [
            ([1.0] * 5, ("5", "6")),
            ([1.0] * 7, ("7", "6")),
            ([], ("0", "6")),
            (None, ("null",)),
            ([1.0, None, 1.0, 1.0, 1.0, 1.0], ("null",)),
        ],
        ids=["short", "long", "empty", "null", "null item"],
    )
    def test_ragged_or_null(self, rejected, tmp_path, bad, facts):
        rows: list[Any] = X.tolist()
        rows[23] = bad
        path = self.table(tmp_path / "x.parquet", rows)
        rejected(path, facts=("row 23", str(path), *facts))

    def test_two_ragged_rows_with_the_right_total(self, rejected, tmp_path):
        rows: list[Any] = X.tolist()
        rows[23], rows[24] = rows[23][:5], [*rows[24], 0.0]
        path = self.table(tmp_path / "x.parquet", rows)
        rejected(path, facts=("row 23", str(path), "5", "6"))

    def test_null_in_a_column_of_numbers(self, rejected, tmp_path):
        values = X[:, 0].tolist()
        values[23] = None
        path = tmp_path / "x.parquet"
        pq.write_table(pa.table({"a": X[:, 1], "b": values}), path, row_group_size=7)
        rejected(path, facts=("row 23", "'b'", str(path), "null"))

    def test_ambiguous_or_unknown_column(self, rejected, tmp_path):
        table = columns_of(X, "fixed")
        path = tmp_path / "x.parquet"
        pq.write_table(table.append_column("emb2", table.column("emb")), path)
        rejected(path, facts=(str(path), "emb", "emb2", "--column"))
        rejected(path, "--column", "no", facts=(str(path), "'no'", "emb2"))
        rejected(path, "--column", "name", facts=(str(path), "'name'", "string"))


_SHAPE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000, 6), }"
WRONG_HEADER = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + _SHAPE.ljust(117) + b"\n"


class TestWrongHeaders:
    """Each header claims terabytes, so the size must be checked before memory is allocated."""

    def test_npy(self, rejected, tmp_path):
        path = tmp_path / "x.npy"
        path.write_bytes(WRONG_HEADER + X.tobytes())
        rejected(path, facts=(str(path), "10000000000000", "40"))

    def test_bin(self, rejected, tmp_path):
        path = tmp_path / "x.fbin"
        path.write_bytes(struct.pack("<II", 2**32 - 1, 2**32 - 1) + X.tobytes())
        rejected(path, facts=(str(path), "4294967295", "968"))

    def test_vecs(self, rejected, tmp_path):
        path = tmp_path / "x.fvecs"
        path.write_bytes(struct.pack("<i", 2**31 - 1) + X.tobytes())
        rejected(path, facts=(str(path), "2147483647", "row 0"))

    @pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    def test_npz(self, rejected, tmp_path, method):
        with zipfile.ZipFile(tmp_path / "x.npz", "w", method) as archive:
            archive.writestr("emb.npy", WRONG_HEADER + X.tobytes())
        facts = ("x.npz[emb.npy]", "10000000000000", "40")
        rejected(tmp_path / "x.npz", facts=facts)


class Payload:
    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.target),)


def test_objects_are_not_unpickled(rejected, tmp_path):
    trap = tmp_path / "trap"
    payload = np.array([[Payload(str(trap))]], object)
    np.save(tmp_path / "x.npy", payload, allow_pickle=True)
    rejected(tmp_path / "x.npy", facts=("x.npy", "object"))
    np.savez(tmp_path / "x.npz", emb=payload)
    rejected(tmp_path / "x.npz", facts=("x.npz[emb]", "object"))
    assert not trap.exists()
    np.load(tmp_path / "x.npy", allow_pickle=True)
    assert trap.exists()  # the payload works, so the test can fail
    assert pickle.dumps(Payload("x"))


class TestNan:
    @pytest.fixture
    def source(self, tmp_path):
        x = X.copy()
        x[9, 0], x[10, 5], x[33, 2] = np.nan, np.inf, -np.inf
        np.save(tmp_path / "x.npy", x)
        return tmp_path / "x.npy", x

    def test_error(self, rejected, source, out):
        message = rejected(source[0], facts=(str(source[0]), "NaN", "--nan drop", "--nan keep"))
        assert re.search(r"row (9|10|33)\b", message)
        assert re.search(r"block [013]\b", message)
        assert not out.exists()  # the same rows would be rejected again

    def test_drop(self, invoke, source, out):
        done = invoke("ingest", source[0], out, "--nan", "drop", *CHUNKS, "--json").json()
        assert (done["rows"], done["dropped_rows"]) == (37, 3)
        np.testing.assert_array_equal(stored(out), np.delete(X, [9, 10, 33], axis=0))

    def test_keep(self, invoke, source, out):
        invoke("ingest", source[0], out, "--nan", "keep", *CHUNKS).ok()
        np.testing.assert_array_equal(stored(out), source[1])


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system with limited space or a limited number of files."""
    mounted: list[Path] = []

    def mount(**options: Any) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        text = ",".join(f"{key}={value}" for key, value in options.items())
        command = ["mount", "-t", "tmpfs", "-o", text, "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"mounting a tmpfs is not possible here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


class TestFullDisk:
    def test_too_little_space_is_detected_before_writing(self, invoke, small_disk, tmp_path):
        np.save(tmp_path / "x.npy", np.zeros((4096, 64), np.float32))
        out = small_disk(size="512k") / "out.zarr"
        facts = ("1048576", "524288", str(out))
        invoke("ingest", tmp_path / "x.npy", out).rejected(*facts, code=FAILED)
        assert not out.exists()

    def test_resumes_after_a_full_disk_gets_more_space(self, invoke, small_disk, tmp_path):
        """The limit is the number of files, which is only detected while writing."""
        np.save(tmp_path / "x.npy", X)
        disk = small_disk(size="16m", nr_inodes=90)
        (disk / "other").mkdir()
        for i in range(50):
            (disk / "other" / str(i)).touch()
        out = disk / "out.zarr"
        args = ("ingest", tmp_path / "x.npy", out, "--chunk-size", "24B")
        message = invoke(*args).rejected("No space left", str(out), code=FAILED)
        assert "block" in message or "out.zarr/" in message
        done = len(list((out / "digests/c").rglob("0")))
        assert 0 < done < ROWS
        check_unfinished(invoke, out)
        subprocess.run(["mount", "-o", "remount,nr_inodes=5000", str(disk)], check=True)
        assert 0 < invoke(*args, "--json").json()["kept_blocks"] < ROWS
        np.testing.assert_array_equal(stored(out), X)


def done_blocks(out: Path) -> set[Path]:
    return set((out / "digests" / "c").glob("*/0"))


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("shuffle", [(), ("--shuffle", "--seed", 3)], ids=["in order", "shuffled"])
def test_resumes_after_being_killed_twice(
    start, invoke, files_of, without_times, tmp_path, shuffle
):
    x = np.random.default_rng(1).normal(size=(2000, P)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    out, whole = tmp_path / "out.zarr", tmp_path / "whole.zarr"
    args = ("--nworkers", 2, "--chunk-size", "240B", *shuffle)  # 200 blocks
    kept: set[Path] = set()
    for _ in range(2):
        running = start("ingest", tmp_path / "x.npy", out, *args)
        running.until(lambda kept=kept: len(done_blocks(out) - kept) >= 20)
        family = psutil.Process(running.process.pid).children(recursive=True)
        os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait()
        psutil.wait_procs(family, timeout=60)
        kept = done_blocks(out)
        assert 20 <= len(kept) < 200
        check_unfinished(invoke, out)
    stamps = {
        chunk: chunk.stat().st_mtime_ns
        for block in kept
        for chunk in (block, out / "features/c" / block.parent.name / "0")
    }
    other = invoke("ingest", tmp_path / "x.npy", out, "--chunk-size", "240B", "--limit", 9)
    other.rejected("limit", "None", "9", "--overwrite")
    done = invoke("ingest", tmp_path / "x.npy", out, "--chunk-size", "240B", *shuffle, "--json")
    assert done.json()["kept_blocks"] == len(kept)
    assert all(chunk.stat().st_mtime_ns == stamp for chunk, stamp in stamps.items())
    invoke("ingest", tmp_path / "x.npy", whole, "--chunk-size", "240B", *shuffle).ok()
    found = {k: v for k, v in files_of(out).items() if not k.endswith(".partial")}
    assert without_times(found) == without_times(files_of(whole))
    assert json.loads(found["zarr.json"])["attributes"]["complete"] is True


@pytest.mark.slow
@pytest.mark.cluster
def test_interrupt_keeps_finished_blocks(start, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3000, P), np.float32))
    out = tmp_path / "out.zarr"
    running = start("ingest", tmp_path / "x.npy", out, "--nworkers", 1, "--chunk-size", "240B")
    running.until(lambda: len(done_blocks(out)) >= 20)
    running.interrupt()
    running.outcome().rejected("SIGINT", code=130)
    assert 20 <= len(done_blocks(out)) < 300
