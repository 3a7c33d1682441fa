"""Invalid input is rejected with one message and an exit code, and leaves no output behind."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

USAGE, REJECTED = 2, 3
ROWS, FEATURES = 4000, 64


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def rejected(invoke, out):
    """Run a command that must fail with a message that contains the facts, and write no output."""

    def run(*args, facts, code=REJECTED):
        done = invoke(*args)
        done.rejected(*facts, code=code)
        assert not out.exists()
        return done

    return run


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


DAMAGE = {"deleted": Path.unlink, "flipped byte": flip, "truncated": truncate}


class TestInvalidFeatures:
    @pytest.mark.parametrize("command", ["fit", "predict"])
    def test_missing_path(self, rejected, round_trip, out, tmp_path, command):
        before = (round_trip.run,) if command == "predict" else ()
        gone = tmp_path / "gone.zarr"
        done = rejected(command, *before, gone, "--out", out, facts=(str(gone),))
        assert "zarr.json" not in done.stderr  # the hint for a folder that is not a store

    @pytest.mark.parametrize(
        ("kind", "fact"),
        [
            ("folder", "zarr.json"),
            ("file", "zarr.json"),
            ("random JSON", "'features'"),
            ("broken JSON", "JSONDecodeError"),
        ],
    )
    def test_not_a_zarr_store(self, rejected, out, tmp_path, kind, fact):
        path = tmp_path / "other.zarr"
        match kind:
            case "folder":
                path.mkdir()
            case "file":
                path.write_text("1,2,3\n")
            case "random JSON":
                path.mkdir()
                (path / "zarr.json").write_text('{"colour": "red"}')
            case "broken JSON":
                path.mkdir()
                (path / "zarr.json").write_text('{"zarr_format": 3, "node')
        done = rejected("fit", path, "--out", out, facts=(str(path), fact))
        assert "NotFoundError" not in done.stderr

    @pytest.mark.parametrize("command", ["fit", "kmeans", "predict", "inspect"])
    @pytest.mark.parametrize("name", ["a b.csv", "a.npy", "a.parquet", "a.h5", "a.npz", "shards"])
    def test_files_that_are_not_ingested_yet(
        self, rejected, round_trip, out, tmp_path, command, name
    ):
        path, x = tmp_path / name, np.ones((4, 3), np.float32)
        match name.split(".")[-1]:
            case "csv":
                np.savetxt(path, x, delimiter=",")
            case "npy":
                np.save(path, x)
            case "npz":
                np.savez(path, x)
            case "parquet":
                pq.write_table(pa.table({"a": x[:, 0]}), path)
            case "h5":
                with h5py.File(path, "w") as file:
                    file["x"] = x
            case "shards":
                path.mkdir()
                np.save(path / "0.npy", x)
        args = {
            "fit": ("fit", path, "--out", out),
            "kmeans": ("kmeans", path, "--clusters", 2, "--out", out),
            "predict": ("predict", round_trip.run, path, "--out", out),
            "inspect": ("inspect", path),
        }[command]
        kind = {"shards": "npy", "a.h5": "hdf5"}.get(name, path.suffix[1:])
        facts = (str(path), kind, f"scrlm ingest {shlex.quote(str(path))} OUT.zarr")
        assert "NotFoundError" not in rejected(*args, facts=facts).stderr

    def test_group_without_features_lists_its_arrays(self, rejected, store, out, tmp_path):
        path = tmp_path / "group.zarr"
        zarr.create_group(path)
        store(path / "embeddings", np.ones((5, 3), np.float32))
        facts = (str(path), "'features'", "embeddings")
        rejected("fit", path, "--out", out, facts=facts)

    def test_unfinished_store(self, rejected, my_features, out):
        zarr.open_group(my_features, mode="r+").attrs["complete"] = False
        rejected("fit", my_features, "--out", out, facts=(str(my_features),))

    @pytest.mark.parametrize(
        ("shape", "fact"),
        [((20,), "1"), ((20, 3, 2), "3"), ((0, 3), "(0, 3)"), ((3, 0), "(3, 0)")],
    )
    def test_shape(self, rejected, store, out, tmp_path, shape, fact):
        chunks = tuple(max(1, size) for size in shape)
        path = store(tmp_path / "odd.zarr", np.ones(shape, np.float32), chunks=chunks)
        rejected("fit", path, "--out", out, facts=(str(path), fact))

    @pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "complex64"])
    def test_dtype(self, rejected, store, out, tmp_path, dtype):
        path = store(tmp_path / "odd.zarr", np.ones((20, 3), dtype))
        facts = (str(path), dtype, "float32", "astype")
        rejected("fit", path, "--out", out, facts=facts)

    def test_another_width_in_predict(self, rejected, round_trip, store, out, tmp_path, rows):
        path = store(tmp_path / "narrow.zarr", rows[:, :31])
        facts = (str(path), "31", "64")
        rejected("predict", round_trip.run, path, "--out", out, facts=facts)


class TestBadValuesInFeatures:
    """The bad value is in row 3333: in the last block of 1024 rows, and not a candidate."""

    ROW, BLOCK = 3333, 3
    OPTIONS = ("--rho", 0.5, "--block-rows", 1024, "--candidates", 50)

    @pytest.fixture(params=["nan", "inf", "-inf"])
    def bad_features(self, request, store, tmp_path, rows):
        values = rows.copy()
        values[self.ROW, 17] = float(request.param)
        return store(tmp_path / "bad.zarr", values)

    @pytest.mark.parametrize("kind", ["standardize", "center", "scale", "none", "l2"])
    def test_fit_names_row_and_block(self, rejected, bad_features, out, kind):
        done = rejected(
            *("fit", bad_features, "--out", out, "--preprocess", kind, *self.OPTIONS),
            facts=(f"row {self.ROW}", f"block {self.BLOCK}", str(bad_features), "NaN"),
        )
        # Standardization needs moments of all rows; without it the loss pass reads the row first.
        in_loss = kind in ("none", "l2")
        assert ("\nsurvey: " in done.stderr) == in_loss
        assert "\nloss: " not in done.stderr

    def test_fit_detects_a_row_that_only_the_last_pass_reads(self, rejected, bad_features, out):
        options = (*self.OPTIONS, "--preprocess", "none", "--loss-rows", 40)
        done = rejected(
            *("fit", bad_features, "--out", out, *options),
            facts=(f"row {self.ROW}", f"block {self.BLOCK}"),
        )
        assert "\nloss: " in done.stderr

    def test_a_bad_candidate(self, rejected, bad_features, out):
        rejected(
            *("fit", bad_features, "--out", out, "--preprocess", "none", "--block-rows", 1024),
            facts=(f"row {self.ROW}", f"block {self.BLOCK}"),
        )

    def test_predict_names_row_and_block(self, rejected, round_trip, bad_features, out):
        rejected(
            *("predict", round_trip.run, bad_features, "--out", out, "--block-rows", 1024),
            facts=(f"row {self.ROW}", f"block {self.BLOCK}", str(bad_features), "NaN"),
        )

    @pytest.mark.parametrize("kind", ["standardize", "none"])
    def test_too_large_for_float32(self, rejected, store, out, tmp_path, rows, kind):
        values = rows.astype(np.float64)
        values[self.ROW] *= 1e200
        path = store(tmp_path / "large.zarr", values)
        rejected(
            *("fit", path, "--out", out, "--preprocess", kind, *self.OPTIONS),
            facts=(f"row {self.ROW}", f"block {self.BLOCK}"),
        )

    def test_row_length_does_not_change_labels_of_unit_vectors(
        self, invoke, store, out, tmp_path, rows, labels_of
    ):
        """With l2 a very long row keeps its label or is rejected; the label never changes."""
        values = rows.astype(np.float64)
        options = ("--preprocess", "l2", "--rho", 0.05, *self.OPTIONS)
        invoke("fit", store(tmp_path / "as-is.zarr", values), "--out", out, *options).ok()
        expected = labels_of(out)
        row = int(np.flatnonzero(expected >= 0)[-1])
        values[row] *= 1e200
        path = store(tmp_path / "long.zarr", values)
        done = invoke("fit", path, "--out", out, "--overwrite", *options)
        if done.code != 0:
            done.rejected(f"row {row}")
        else:
            assert labels_of(out)[row] == expected[row]

    @pytest.mark.parametrize("command", ["fit", "predict"])
    def test_running_blocks_leave_no_output(
        self, rejected, round_trip, store, tmp_path, out, rows, command
    ):
        """The first block fails while other blocks still write labels."""
        values = rows.copy()
        values[0, 0] = np.nan
        path = store(tmp_path / "bad.zarr", values)
        options = ("--out", out, "--block-rows", 50, "--nthreads", 8)
        args = {
            "fit": ("fit", path, "--preprocess", "none", "--candidates", 5, "--loss-rows", 5),
            "predict": ("predict", round_trip.run, path),
        }[command]
        for _ in range(2):
            rejected(*args, *options, facts=("row 0", "block 0"))


class TestDamagedFeatures:
    @pytest.mark.parametrize("kind", ["none", "standardize"])
    @pytest.mark.parametrize("damage", DAMAGE)
    def test_fit(self, rejected, my_features, out, damage, kind):
        DAMAGE[damage](my_features / "features/c/2/0")
        shown = ("c/2/0",) if damage == "deleted" else ("2048", "3071", "checksum")
        facts = (str(my_features), *shown)
        options = ("--block-rows", 1024, "--candidates", 10, "--preprocess", kind)
        rejected("fit", my_features, "--out", out, *options, facts=facts)

    @pytest.mark.parametrize("damage", DAMAGE)
    def test_predict(self, rejected, round_trip, my_features, out, damage):
        DAMAGE[damage](my_features / "features/c/2/0")
        facts = (str(my_features), "2048", "c/2/0" if damage == "deleted" else "checksum")
        options = ("--out", out, "--block-rows", 1024)
        rejected("predict", round_trip.run, my_features, *options, facts=facts)

    @pytest.mark.parametrize("damage", DAMAGE)
    def test_truth_in_the_store(self, invoke, my_features, my_run, record_of, damage):
        point_to(my_run, record_of(my_run), my_features)
        DAMAGE[damage](my_features / "labels/c/1")
        invoke("evaluate", my_run).rejected(
            str(my_features), "c/1" if damage == "deleted" else "checksum"
        )


def point_to(run: Path, record: dict, features: Path) -> None:
    record["features"]["path"] = str(features)
    (run / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("option", "value", "code", "facts"),
    [
        ("--rho", "0", REJECTED, ("rho", "0.0")),
        ("--rho", "-1", REJECTED, ("rho", "-1.0")),
        ("--rho", "nan", REJECTED, ("rho", "nan")),
        ("--rho", "inf", REJECTED, ("rho", "inf")),
        ("--rho", "abc", USAGE, ("--rho", "abc")),
        ("--F", "0", REJECTED, ("F", "0.0")),
        ("--F", "nan", REJECTED, ("F", "nan")),
        ("--clusters", "0", REJECTED, ("n_clusters", "0")),
        ("--clusters", "-3", REJECTED, ("n_clusters", "-3")),
        ("--clusters", "1.5", USAGE, ("--clusters", "1.5")),
        ("--candidates", "0", REJECTED, ("n_candidates", "0")),
        ("--candidates", "4001", REJECTED, ("n_candidates", "4001", "4000")),
        ("--loss-rows", "0", REJECTED, ("loss_rows", "0")),
        ("--loss-rows", "4001", REJECTED, ("loss_rows", "4001", "4000")),
        ("--min-neighbors", "0", REJECTED, ("min_neighbors", "0")),
        ("--seed", "-1", REJECTED, ("seed", "-1")),
        ("--block-rows", "0", REJECTED, ("block_rows", "0")),
        ("--block-rows", "-5", REJECTED, ("block_rows", "-5")),
        ("--block-rows", "many", USAGE, ("--block-rows", "many")),
        ("--preprocess", "whiten", USAGE, ("--preprocess", "whiten", "standardize")),
        ("--nthreads", "0", USAGE, ("--nthreads", "0")),
        ("--colour", "red", USAGE, ("--colour",)),
    ],
)
def test_invalid_values_of_fit(rejected, features, out, option, value, code, facts):
    rejected("fit", features, "--out", out, option, value, code=code, facts=facts)


@pytest.mark.parametrize("value", ["-1", "two"])
def test_invalid_number_of_workers(invoke, features, out, value):
    done = invoke("fit", features, "--out", out, "--nworkers", value, threads=False)
    done.rejected("--nworkers", value, code=USAGE)
    assert not out.exists()


@pytest.mark.parametrize("block_rows", ["0", "-5"])
def test_invalid_block_rows_of_predict(rejected, round_trip, out, block_rows):
    args = (round_trip.run, round_trip.features, "--out", out, "--block-rows", block_rows)
    rejected("predict", *args, facts=("block_rows", block_rows))


@pytest.mark.parametrize(
    ("option", "value", "code", "facts"),
    [
        ("--rows", "0", REJECTED, ("rows", "0")),
        ("--features", "0", REJECTED, ("features", "0")),
        ("--clusters", "0", REJECTED, ("clusters", "0")),
        ("--outliers", "-0.1", REJECTED, ("outliers", "-0.1")),
        ("--outliers", "1.5", REJECTED, ("outliers", "1.5")),
        ("--outliers", "nan", REJECTED, ("outliers", "nan")),
        ("--sigma-min", "0", REJECTED, ("sigma", "0.0")),
        ("--sigma-min", "nan", REJECTED, ("sigma", "nan")),
        ("--sigma-max", "0.01", REJECTED, ("sigma", "0.0625", "0.01")),
        ("--sigma-max", "inf", REJECTED, ("sigma", "inf")),
        ("--sigma-max", "nan", REJECTED, ("sigma", "nan")),
        ("--seed", "-1", REJECTED, ("seed", "-1")),
        ("--chunk-size", "big", USAGE, ("--chunk-size", "big", "64MB")),
        ("--chunk-size", "0", USAGE, ("--chunk-size", "0", "64MB")),
        ("--chunk-size", "-5MB", USAGE, ("--chunk-size", "-5MB", "64MB")),
    ],
)
def test_invalid_values_of_synth(rejected, out, option, value, code, facts):
    base = {"--rows": "50", "--features": "4", "--clusters": "2", option: value}
    args = (x for pair in base.items() for x in pair)
    rejected("synth", out, *args, code=code, facts=facts)


@pytest.mark.parametrize(
    ("option", "value", "facts"),
    [
        ("--rows", "0", ("rows", "0")),
        ("--features", "0", ("features", "0")),
        ("--clusters", "0", ("clusters", "0")),
        ("--candidates", "0", ("candidates", "0")),
        ("--min-weight", "0", ("min_weight", "0.0", "0.8")),
        ("--min-weight", "nan", ("min_weight", "nan", "0.8")),
        ("--delta", "0", ("delta", "0.0", "0.01")),
        ("--delta", "1", ("delta", "1.0", "0.01")),
        ("--delta", "nan", ("delta", "nan", "0.01")),
    ],
)
def test_invalid_values_of_theory(rejected, option, value, facts):
    base = {"--rows": "50", "--features": "4", "--clusters": "2", option: value}
    rejected("paper", "theory", *(x for pair in base.items() for x in pair), facts=facts)


@pytest.mark.parametrize(
    ("command", "argument"),
    [("fit", "FEATURES"), ("predict", "RUN"), ("evaluate", "RUN"), ("synth", "OUT")],
)
def test_missing_argument(invoke, command, argument):
    assert invoke(command).rejected(argument, code=USAGE)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (("--scheduler", "tcp://127.0.0.1:9", "--nworkers", "2"), ("--nworkers", "--scheduler")),
        (("--scheduler", "tcp://127.0.0.1:9", "--nthreads", "2"), ("--nthreads", "--scheduler")),
        (("--scheduler-file", "f.json", "--nworkers", "0"), ("--nworkers", "--scheduler-file")),
        (("--scheduler-file", "f.json", "--memory-limit", "1GB"), ("--memory-limit",)),
        (
            ("--scheduler", "tcp://127.0.0.1:9", "--scheduler-file", "f.json"),
            ("--scheduler", "--scheduler-file"),
        ),
        (("--nworkers", "0", "--memory-limit", "1GB"), ("--memory-limit", "--nworkers 0")),
    ],
)
@pytest.mark.parametrize("command", ["synth", "fit", "predict", "evaluate", "demo"])
def test_mutually_exclusive_options(invoke, round_trip, out, command, options, facts):
    args = {
        "synth": (out,),
        "fit": (round_trip.features, "--out", out),
        "predict": (round_trip.run, round_trip.features, "--out", out),
        "evaluate": (round_trip.run,),
        "demo": ("--out", out),
    }[command]
    invoke(command, *args, *options, threads=False).rejected(*facts, code=USAGE)
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "facts", "code"),
    [
        (("--stall-timeout", ""), ("--stall-timeout", "''", "55m"), USAGE),
        (("--stall-timeout", " "), ("--stall-timeout", "' '", "55m"), USAGE),
        (("--max-time", "1e999h"), ("--max-time", "1e999h", "55m"), USAGE),
        (("--wait-workers", "1e999"), ("--wait-workers", "1e999", "55m"), USAGE),
        (("--wait-workers", "nan"), ("--wait-workers", "nan", "55m"), USAGE),
        (
            ("--storage-option", "region=" + "[" * 10**5),
            ("--storage-option", "region", "JSON"),
            USAGE,
        ),
        (("--memory-limit", "1e999GB"), ("1e999GB", "4GB"), REJECTED),
        (("--scheduler", "tcp://[::1"), ("tcp://[::1",), REJECTED),
    ],
)
def test_invalid_option_values(invoke, round_trip, out, options, facts, code):
    done = invoke("fit", round_trip.features, "--out", out, *options, threads=False)
    done.rejected(*facts, code=code)
    assert not out.exists()


@pytest.mark.parametrize("size", ["", " ", "1e999GB", "nan"])
def test_invalid_sizes(rejected, out, size):
    args = ("--rows", 50, "--features", 4, "--clusters", 2, "--chunk-size", size)
    rejected("synth", out, *args, facts=("--chunk-size", repr(size), "64MB"), code=USAGE)


class TestExistingOutput:
    @pytest.fixture
    def commands(self, round_trip):
        """Map the name of each command that writes to its arguments as a function of the output."""
        features, run = round_trip.features, round_trip.run
        return {
            "synth": lambda out: (*("synth", out, "--rows", 50, "--features", 4, "--clusters", 2),),
            "fit": lambda out: ("fit", features, "--out", out, "--candidates", 50),
            "predict": lambda out: ("predict", run, features, "--out", out),
        }

    @pytest.mark.parametrize("command", ["synth", "fit", "predict"])
    def test_is_kept_without_overwrite(self, invoke, commands, files_of, out, command):
        args = commands[command](out)
        invoke(*args).ok()
        before = files_of(out)
        invoke(*args).rejected(str(out), "--overwrite")
        assert files_of(out) == before

    @pytest.mark.parametrize("command", ["synth", "fit", "predict"])
    def test_is_replaced_with_overwrite(self, invoke, commands, files_of, out, command):
        args = commands[command](out)
        invoke(*args).ok()
        fresh = sorted(files_of(out))
        more = ("--seed", 3) if command != "predict" else ("--block-rows", 5000)
        invoke(*args, *more, "--overwrite").ok()
        assert sorted(files_of(out)) == fresh
        seed = {
            "synth": lambda: zarr.open_group(out, mode="r").attrs["mixture"]["seed"],
            "fit": lambda: json.loads((out / "run.json").read_text())["config"]["seed"],
            "predict": lambda: zarr.open_array(out / "labels", mode="r").chunks[0] - 4997,
        }[command]()
        assert seed == 3

    @pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
    @pytest.mark.parametrize("command", ["synth", "fit", "predict"])
    @pytest.mark.parametrize(
        "kind", ["folder", "file", "zarr of another tool", "run of another tool"]
    )
    def test_files_of_other_programs_are_kept(
        self, invoke, commands, files_of, store, out, command, overwrite, kind
    ):
        match kind:
            case "folder":
                (out / "deep").mkdir(parents=True)
                (out / "deep/thesis.tex").write_text("years of work")
            case "file":
                out.write_text("years of work")
            case "zarr of another tool":
                store(out, np.arange(12.0).reshape(4, 3))
            case "run of another tool":
                out.mkdir()
                (out / "run.json").write_text('{"status": "complete", "epochs": 90}')
                (out / "weights.bin").write_bytes(b"days of work")
        before = out.read_bytes() if kind == "file" else files_of(out)
        done = invoke(*commands[command](out), *overwrite)
        assert (out.read_bytes() if kind == "file" else files_of(out)) == before
        # The option would not help, so the message does not suggest it.
        assert "--overwrite" not in done.rejected(str(out))

    @pytest.mark.parametrize("command", ["synth", "fit", "predict"])
    def test_empty_folder_is_accepted(self, invoke, commands, out, command):
        out.mkdir()
        invoke(*commands[command](out)).ok()

    def test_rejected_fit_keeps_the_run_it_would_have_replaced(
        self, invoke, features, my_run, files_of
    ):
        before = files_of(my_run)
        for bad in (("--candidates", 9999), ("--rho", 0), ("--block-rows", 0)):
            invoke("fit", features, "--out", my_run, "--overwrite", *bad).rejected()
        assert files_of(my_run) == before

    def test_overwrite_replaces_an_unfinished_run(self, invoke, commands, my_run, record_of):
        record = {**record_of(my_run), "status": "running"}
        (my_run / "run.json").write_text(json.dumps(record))
        invoke(*commands["fit"](my_run), "--overwrite").ok()
        assert record_of(my_run)["status"] == "complete"

    @pytest.mark.parametrize("command", ["synth", "fit", "predict"])
    def test_a_path_below_a_file(self, invoke, commands, tmp_path, command):
        (tmp_path / "file").write_text("mine")
        below = tmp_path / "file" / "out"
        done = invoke(*commands[command](below))
        assert done.code in (1, REJECTED)
        done.rejected(str(tmp_path / "file"), code=done.code)
        assert (tmp_path / "file").read_text() == "mine"

    @pytest.mark.parametrize("command", ["synth", "fit", "predict"])
    def test_remote_output_creates_no_local_folder(
        self, invoke, commands, tmp_path, monkeypatch, command
    ):
        monkeypatch.chdir(tmp_path)
        done = invoke(*commands[command](f"memory://{command}/out"))
        assert not (tmp_path / "memory:").exists()
        assert done.code in (0, REJECTED)


class TestOutputOverlapsInput:
    """--overwrite never deletes what the command is about to read."""

    def test_predict_onto_its_features(self, invoke, round_trip, my_features, files_of):
        before = files_of(my_features)
        args = ("predict", round_trip.run, my_features, "--out", my_features, "--overwrite")
        done = invoke(*args)
        assert files_of(my_features) == before
        done.rejected(str(my_features))

    @pytest.mark.parametrize("part", ["model.zarr", "labels.zarr"])
    def test_predict_onto_part_of_its_run(
        self, invoke, store, tmp_path, rows, my_run, files_of, part
    ):
        """Labels of other features would make the run inconsistent."""
        other = store(tmp_path / "other.zarr", rows[:100])
        before = files_of(my_run)
        done = invoke("predict", my_run, other, "--out", my_run / part, "--overwrite")
        assert files_of(my_run) == before
        done.rejected(str(my_run / part))

    def test_fit_onto_the_folder_of_its_features(self, invoke, my_run, features, files_of):
        inside = my_run / "features.zarr"
        shutil.copytree(features, inside)
        before = files_of(inside)
        done = invoke("fit", inside, "--out", my_run, "--overwrite", "--candidates", 50)
        assert inside.exists()
        assert files_of(inside) == before
        done.rejected(str(my_run))

    def test_fit_onto_its_features(self, invoke, my_features, files_of):
        before = files_of(my_features)
        done = invoke("fit", my_features, "--out", my_features, "--overwrite")
        assert files_of(my_features) == before
        done.rejected(str(my_features))


class TestTruth:
    @pytest.fixture
    def evaluate(self, invoke, round_trip):
        def run(truth, *facts):
            invoke("evaluate", round_trip.run, "--truth", truth).rejected(*facts)

        return run

    @pytest.mark.parametrize("suffix", [".npy", ".zarr"])
    def test_of_wrong_length(self, evaluate, store, tmp_path, truth, suffix):
        path = save(tmp_path / f"truth{suffix}", truth[:-1], store)
        evaluate(path, "3999", "4000")

    @pytest.mark.parametrize("suffix", [".npy", ".zarr"])
    def test_of_floats(self, evaluate, store, tmp_path, truth, suffix):
        path = save(tmp_path / f"truth{suffix}", truth + 0.5, store)
        evaluate(path, str(path), "float64")

    @pytest.mark.parametrize("suffix", [".npy", ".zarr"])
    def test_of_two_columns(self, evaluate, store, tmp_path, truth, suffix):
        path = save(tmp_path / f"truth{suffix}", np.stack([truth, truth], axis=1), store)
        evaluate(path, str(path), "(4000, 2)")

    @pytest.mark.parametrize("suffix", [".npy", ".zarr"])
    def test_missing(self, evaluate, tmp_path, suffix):
        path = tmp_path / f"truth{suffix}"
        evaluate(path, str(path))

    def test_of_objects_is_never_unpickled(self, evaluate, tmp_path):
        path = tmp_path / "truth.npy"
        np.save(path, np.array([Trap(tmp_path / "sprung")], object), allow_pickle=True)
        evaluate(path, str(path))
        assert not (tmp_path / "sprung").exists()

    def test_of_text(self, evaluate, tmp_path):
        path = tmp_path / "truth.npy"
        path.write_text("0 1 2 3")
        evaluate(path, str(path), ".npy")

    def test_of_floats_in_the_features_store(self, invoke, my_features, my_run, record_of, store):
        """Truncated to integers, these labels would give a wrong score."""
        point_to(my_run, record_of(my_run), my_features)
        group = zarr.open_group(my_features, mode="r+")
        labels = group["labels"][:]
        del group["labels"]
        store(my_features / "labels", labels + 0.5)
        invoke("evaluate", my_run).rejected(str(my_features), "float64")

    def test_store_without_labels(self, invoke, store, tmp_path, rows):
        path = store(tmp_path / "features.zarr", rows)
        invoke("fit", path, "--out", tmp_path / "run", "--candidates", 50).ok()
        invoke("evaluate", tmp_path / "run").rejected(str(path), "labels", "--truth")

    def test_missing_features_store(self, invoke, my_run, record_of, tmp_path):
        point_to(my_run, record_of(my_run), tmp_path / "gone.zarr")
        invoke("evaluate", my_run).rejected(str(tmp_path / "gone.zarr"), "--truth")


class Trap:
    """An object whose unpickling leaves a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def save(path: Path, values: np.ndarray, store) -> Path:
    if path.suffix == ".zarr":
        return store(path, values)
    np.save(path, values)
    return path


class TestInvalidRuns:
    @pytest.fixture(params=["evaluate", "predict"])
    def use(self, request, invoke, features, out):
        """Evaluate or predict with the given run directory."""

        def run(path, *facts):
            more = (features, "--out", out) if request.param == "predict" else ()
            invoke(request.param, path, *more).rejected(*facts)
            assert not out.exists()

        return run

    def test_still_running(self, use, my_run, record_of):
        record = {**record_of(my_run), "status": "running"}
        (my_run / "run.json").write_text(json.dumps(record))
        use(my_run, str(my_run), "running", "--overwrite")

    def test_missing(self, use, tmp_path):
        use(tmp_path / "gone", str(tmp_path / "gone"))

    def test_empty_folder(self, use, tmp_path):
        (tmp_path / "empty").mkdir()
        use(tmp_path / "empty", str(tmp_path / "empty"))

    def test_file(self, use, tmp_path):
        (tmp_path / "file").touch()
        use(tmp_path / "file", str(tmp_path / "file"))

    def test_features_store(self, use, features):
        use(features, str(features))

    @pytest.mark.parametrize("text", ["{", "[]", '{"status": "complete"}', '{"colour": "red"}'])
    def test_invalid_record(self, use, tmp_path, text):
        path = tmp_path / "other"
        path.mkdir()
        (path / "run.json").write_text(text)
        use(path, str(path))

    def test_missing_labels_or_model(self, use, my_run):
        for part in ("labels.zarr", "model.zarr"):
            (my_run / part).rename(my_run / f"moved-{part}")
        use(my_run, str(my_run))

    @pytest.mark.parametrize("damage", DAMAGE)
    def test_damaged_labels(self, invoke, my_run, damage):
        DAMAGE[damage](my_run / "labels.zarr/labels/c/1")
        invoke("evaluate", my_run).rejected(str(my_run))

    @pytest.mark.parametrize("array", ["centers/c/0/0", "scale/c/0"])
    @pytest.mark.parametrize("damage", DAMAGE)
    def test_damaged_model(self, invoke, my_run, features, out, damage, array):
        DAMAGE[damage](my_run / "model.zarr" / array)
        invoke("predict", my_run, features, "--out", out).rejected(str(my_run))
        assert not out.exists()
