"""What cannot be used is refused: one message, an exit code, nothing left behind."""

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

USAGE, REFUSED = 2, 3
ROWS, FEATURES = 4000, 64


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def refused(invoke, out):
    """Run a command that must be refused with the given words and leave nothing at `out`."""

    def run(*args, words, code=REFUSED):
        done = invoke(*args)
        done.refused(*words, code=code)
        assert not out.exists()
        return done

    return run


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shorten(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


DAMAGE = {"deleted": Path.unlink, "flipped byte": flip, "truncated": shorten}


class TestFeaturesThatAreNone:
    @pytest.mark.parametrize("command", ["fit", "predict"])
    def test_missing_path(self, refused, round_trip, out, tmp_path, command):
        before = (round_trip.run,) if command == "predict" else ()
        gone = tmp_path / "gone.zarr"
        words = (str(gone), "does not exist", "check the path")
        refused(command, *before, gone, "--out", out, words=words)

    @pytest.mark.parametrize("kind", ["empty folder", "text file", "random JSON", "broken JSON"])
    def test_not_a_zarr_store(self, refused, out, tmp_path, kind):
        path = tmp_path / "features.zarr"
        match kind:
            case "empty folder":
                path.mkdir()
            case "text file":
                path.write_text("1,2,3\n")
            case "random JSON":
                path.mkdir()
                (path / "zarr.json").write_text('{"colour": "red"}')
            case "broken JSON":
                path.mkdir()
                (path / "zarr.json").write_text('{"zarr_format": 3, "node')
        words = (str(path), "give the path of")
        done = refused("fit", path, "--out", out, words=words)
        assert "NotFoundError" not in done.stderr

    @pytest.mark.parametrize("command", ["fit", "kmeans", "predict", "inspect"])
    @pytest.mark.parametrize("name", ["a b.csv", "a.npy", "a.parquet", "a.h5", "a.npz", "shards"])
    def test_files_that_are_not_ingested_yet(
        self, refused, round_trip, out, tmp_path, command, name
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
        kind = {"shards": "npy folder", "a.h5": "hdf5 file"}.get(name, f"{path.suffix[1:]} file")
        words = (f"{path} is a {kind}", f"`scrlm ingest {shlex.quote(str(path))} OUT.zarr`")
        assert "NotFoundError" not in refused(*args, words=words).stderr

    def test_a_group_without_features_says_what_it_holds(self, refused, store, out, tmp_path):
        path = tmp_path / "group.zarr"
        zarr.create_group(path)
        store(path / "embeddings", np.ones((5, 3), np.float32))
        words = (str(path), "embeddings", "give the path of the array itself")
        refused("fit", path, "--out", out, words=words)

    def test_unfinished_store(self, refused, my_features, out):
        zarr.open_group(my_features, mode="r+").attrs["complete"] = False
        words = (str(my_features), "unfinished", "write it again")
        refused("fit", my_features, "--out", out, words=words)

    @pytest.mark.parametrize(
        ("shape", "words"),
        [
            ((20,), ("1 dimension", "rows x features")),
            ((20, 3, 2), ("3 dimension", "rows x features")),
            ((0, 3), ("(0, 3)", "at least one row")),
            ((3, 0), ("(3, 0)", "one feature")),
        ],
    )
    def test_shape(self, refused, store, out, tmp_path, shape, words):
        chunks = tuple(max(1, size) for size in shape)
        path = store(tmp_path / "odd.zarr", np.ones(shape, np.float32), chunks=chunks)
        refused("fit", path, "--out", out, words=(str(path), *words))

    @pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "complex64"])
    def test_dtype(self, refused, store, out, tmp_path, dtype):
        path = store(tmp_path / "odd.zarr", np.ones((20, 3), dtype))
        words = (str(path), dtype, "float32", "astype")
        refused("fit", path, "--out", out, words=words)

    def test_another_width_in_predict(self, refused, round_trip, store, out, tmp_path, rows):
        path = store(tmp_path / "narrow.zarr", rows[:, :31])
        words = (str(path), "31 features", "fitted on 64", "same encoder")
        refused("predict", round_trip.run, path, "--out", out, words=words)


class TestBadNumbersInFeatures:
    """In row 3333, which is in the last of the blocks of 1024 rows, and no candidate."""

    ROW, BLOCK = 3333, 3
    OPTIONS = ("--rho", 0.5, "--block-rows", 1024, "--candidates", 50)

    @pytest.fixture(params=["nan", "inf", "-inf"])
    def bad_features(self, request, store, tmp_path, rows):
        values = rows.copy()
        values[self.ROW, 17] = float(request.param)
        return store(tmp_path / "bad.zarr", values)

    @pytest.mark.parametrize("kind", ["standardize", "center", "scale", "none", "l2"])
    def test_fit_names_row_and_block(self, refused, bad_features, out, kind):
        done = refused(
            *("fit", bad_features, "--out", out, "--preprocess", kind, *self.OPTIONS),
            words=(f"row {self.ROW}", f"block {self.BLOCK}", str(bad_features), "clean or drop"),
        )
        # moments need all rows; without them the loss is the first to see this one
        in_loss = kind in ("none", "l2")
        assert ("\nsurvey: " in done.stderr) == in_loss
        assert "\nloss: " not in done.stderr

    def test_fit_finds_a_row_that_only_the_last_pass_reads(self, refused, bad_features, out):
        options = (*self.OPTIONS, "--preprocess", "none", "--loss-rows", 40)
        done = refused(
            *("fit", bad_features, "--out", out, *options),
            words=(f"row {self.ROW}", f"block {self.BLOCK}"),
        )
        assert "\nloss: " in done.stderr

    def test_a_bad_candidate(self, refused, bad_features, out):
        refused(
            *("fit", bad_features, "--out", out, "--preprocess", "none", "--block-rows", 1024),
            words=(f"row {self.ROW}", f"block {self.BLOCK}"),
        )

    def test_predict_names_row_and_block(self, refused, round_trip, bad_features, out):
        refused(
            *("predict", round_trip.run, bad_features, "--out", out, "--block-rows", 1024),
            words=(f"row {self.ROW}", f"block {self.BLOCK}", str(bad_features), "clean or drop"),
        )

    @pytest.mark.parametrize("kind", ["standardize", "none"])
    def test_too_large_for_float32(self, refused, store, out, tmp_path, rows, kind):
        values = rows.astype(np.float64)
        values[self.ROW] *= 1e200
        path = store(tmp_path / "large.zarr", values)
        refused(
            *("fit", path, "--out", out, "--preprocess", kind, *self.OPTIONS),
            words=(f"row {self.ROW}", f"block {self.BLOCK}"),
        )

    def test_length_does_not_matter_to_unit_vectors(
        self, invoke, store, out, tmp_path, rows, labels_of
    ):
        """However long a row is, l2 keeps its direction (or refuses it): never another label."""
        values = rows.astype(np.float64)
        options = ("--preprocess", "l2", "--rho", 0.05, *self.OPTIONS)
        invoke("fit", store(tmp_path / "as-is.zarr", values), "--out", out, *options).ok()
        expected = labels_of(out)
        row = int(np.flatnonzero(expected >= 0)[-1])
        values[row] *= 1e200
        path = store(tmp_path / "long.zarr", values)
        done = invoke("fit", path, "--out", out, "--overwrite", *options)
        if done.code != 0:
            done.refused(f"row {row}")
        else:
            assert labels_of(out)[row] == expected[row]

    @pytest.mark.parametrize("command", ["fit", "predict"])
    def test_blocks_under_way_leave_nothing_either(
        self, refused, round_trip, store, tmp_path, out, rows, command
    ):
        """The first block fails while others still write their labels."""
        values = rows.copy()
        values[0, 0] = np.nan
        path = store(tmp_path / "bad.zarr", values)
        options = ("--out", out, "--block-rows", 50, "--nthreads", 8)
        args = {
            "fit": ("fit", path, "--preprocess", "none", "--candidates", 5, "--loss-rows", 5),
            "predict": ("predict", round_trip.run, path),
        }[command]
        for _ in range(2):
            refused(*args, *options, words=("row 0", "block 0"))


class TestDamagedFeatures:
    @pytest.mark.parametrize("kind", ["none", "standardize"])
    @pytest.mark.parametrize("damage", DAMAGE)
    def test_fit(self, refused, my_features, out, damage, kind):
        DAMAGE[damage](my_features / "features/c/2/0")
        shown = "c/2/0" if damage == "deleted" else "rows 2048 to 3071"
        words = (str(my_features), shown, "estore")
        options = ("--block-rows", 1024, "--candidates", 10, "--preprocess", kind)
        refused("fit", my_features, "--out", out, *options, words=words)

    @pytest.mark.parametrize("damage", DAMAGE)
    def test_predict(self, refused, round_trip, my_features, out, damage):
        DAMAGE[damage](my_features / "features/c/2/0")
        words = (str(my_features), "2048", "estore")
        options = ("--out", out, "--block-rows", 1024)
        refused("predict", round_trip.run, my_features, *options, words=words)

    @pytest.mark.parametrize("damage", DAMAGE)
    def test_truth_in_the_store(self, invoke, my_features, my_run, record_of, damage):
        point_to(my_run, record_of(my_run), my_features)
        DAMAGE[damage](my_features / "labels/c/1")
        invoke("evaluate", my_run).refused(str(my_features), "estore")


def point_to(run: Path, record: dict, features: Path) -> None:
    record["features"]["path"] = str(features)
    (run / "run.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("option", "value", "code", "words"),
    [
        ("--rho", "0", REFUSED, ("rho", "0.0", "above 0")),
        ("--rho", "-1", REFUSED, ("rho", "-1", "above 0")),
        ("--rho", "nan", REFUSED, ("rho", "nan", "finite")),
        ("--rho", "inf", REFUSED, ("rho", "inf", "finite")),
        ("--rho", "abc", USAGE, ("--rho", "abc")),
        ("--F", "0", REFUSED, ("F is", "0.0", "above 0")),
        ("--F", "nan", REFUSED, ("F is", "nan", "finite")),
        ("--clusters", "0", REFUSED, ("clusters", "0", "at least 1")),
        ("--clusters", "-3", REFUSED, ("clusters", "-3", "at least 1")),
        ("--clusters", "1.5", USAGE, ("--clusters", "1.5")),
        ("--candidates", "0", REFUSED, ("candidates", "0", "at least 1")),
        ("--candidates", "4001", REFUSED, ("candidates", "4001", "4000", "or fewer")),
        ("--loss-rows", "0", REFUSED, ("loss", "0", "at least 1")),
        ("--loss-rows", "4001", REFUSED, ("loss", "4001", "4000", "or fewer")),
        ("--min-neighbors", "0", REFUSED, ("neighbors", "0", "at least 1")),
        ("--seed", "-1", REFUSED, ("seed", "-1", "at least 0")),
        ("--block-rows", "0", REFUSED, ("block", "0", "at least 1")),
        ("--block-rows", "-5", REFUSED, ("block", "-5", "at least 1")),
        ("--block-rows", "many", USAGE, ("--block-rows", "many")),
        ("--preprocess", "whiten", USAGE, ("--preprocess", "whiten", "standardize")),
        ("--nthreads", "0", USAGE, ("--nthreads", "0")),
        ("--colour", "red", USAGE, ("--colour",)),
    ],
)
def test_numbers_that_a_fit_cannot_use(refused, features, out, option, value, code, words):
    refused("fit", features, "--out", out, option, value, code=code, words=words)


@pytest.mark.parametrize("value", ["-1", "two"])
def test_numbers_of_workers(invoke, features, out, value):
    done = invoke("fit", features, "--out", out, "--nworkers", value, threads=False)
    done.refused("--nworkers", value, code=USAGE)
    assert not out.exists()


@pytest.mark.parametrize("block_rows", ["0", "-5"])
def test_block_rows_of_predict(refused, round_trip, out, block_rows):
    args = (round_trip.run, round_trip.features, "--out", out, "--block-rows", block_rows)
    refused("predict", *args, words=("block", block_rows, "at least 1"))


@pytest.mark.parametrize(
    ("option", "value", "code", "words"),
    [
        ("--rows", "0", REFUSED, ("0 rows", "at least 1")),
        ("--features", "0", REFUSED, ("0 features", "at least 1")),
        ("--clusters", "0", REFUSED, ("0 clusters", "at least 1")),
        ("--outliers", "-0.1", REFUSED, ("outliers", "-0.1", "[0, 1]")),
        ("--outliers", "1.5", REFUSED, ("outliers", "1.5", "[0, 1]")),
        ("--outliers", "nan", REFUSED, ("outliers", "nan", "[0, 1]")),
        ("--sigma-min", "0", REFUSED, ("sigma", "0.0", "above 0")),
        ("--sigma-min", "nan", REFUSED, ("sigma", "nan")),
        ("--sigma-max", "0.01", REFUSED, ("sigma", "0.01", "not fall")),
        ("--sigma-max", "inf", REFUSED, ("sigma", "inf")),
        ("--sigma-max", "nan", REFUSED, ("sigma", "nan")),
        ("--seed", "-1", REFUSED, ("seed", "-1", "negative")),
        ("--chunk-size", "big", USAGE, ("--chunk-size", "big", "64MB")),
        ("--chunk-size", "0", USAGE, ("--chunk-size", "0", "64MB")),
        ("--chunk-size", "-5MB", USAGE, ("--chunk-size", "-5MB", "64MB")),
    ],
)
def test_numbers_that_a_sample_cannot_have(refused, out, option, value, code, words):
    base = {"--rows": "50", "--features": "4", "--clusters": "2", option: value}
    args = (x for pair in base.items() for x in pair)
    refused("synth", out, *args, code=code, words=words)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--rows", "0", ("rows", "0", "1 or more")),
        ("--features", "0", ("features", "0", "1 or more")),
        ("--clusters", "0", ("clusters", "0", "1 or more")),
        ("--candidates", "0", ("candidates", "0", "1 or more")),
        ("--min-weight", "0", ("weight", "0.0", "0.8")),
        ("--min-weight", "nan", ("weight", "nan", "0.8")),
        ("--delta", "0", ("delta", "0.0", "0.01")),
        ("--delta", "1", ("delta", "1.0", "0.01")),
        ("--delta", "nan", ("delta", "nan", "0.01")),
    ],
)
def test_numbers_that_the_theory_does_not_know(refused, option, value, words):
    base = {"--rows": "50", "--features": "4", "--clusters": "2", option: value}
    refused("paper", "theory", *(x for pair in base.items() for x in pair), words=words)


@pytest.mark.parametrize("command", ["fit", "predict", "evaluate", "synth"])
def test_arguments_that_are_missing(invoke, command):
    assert invoke(command).refused("Missing", code=USAGE)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scheduler", "tcp://127.0.0.1:9", "--nworkers", "2"), ("--nworkers", "--scheduler")),
        (("--scheduler", "tcp://127.0.0.1:9", "--nthreads", "2"), ("--nthreads", "--scheduler")),
        (("--scheduler-file", "f.json", "--nworkers", "0"), ("--nworkers", "--scheduler-file")),
        (("--scheduler-file", "f.json", "--memory-limit", "1GB"), ("--memory-limit",)),
        (("--scheduler", "tcp://127.0.0.1:9", "--scheduler-file", "f.json"), ("not both",)),
        (("--nworkers", "0", "--memory-limit", "1GB"), ("--memory-limit", "--nworkers 0")),
    ],
)
@pytest.mark.parametrize("command", ["synth", "fit", "predict", "evaluate", "demo"])
def test_options_that_exclude_each_other(invoke, round_trip, out, command, options, words):
    args = {
        "synth": (out,),
        "fit": (round_trip.features, "--out", out),
        "predict": (round_trip.run, round_trip.features, "--out", out),
        "evaluate": (round_trip.run,),
        "demo": ("--out", out),
    }[command]
    invoke(command, *args, *options, threads=False).refused(*words, code=USAGE)
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [
        (("--stall-timeout", ""), ("--stall-timeout", "not a duration"), USAGE),
        (("--stall-timeout", " "), ("--stall-timeout", "not a duration"), USAGE),
        (("--max-time", "1e999h"), ("--max-time", "1e999h", "not a duration"), USAGE),
        (("--wait-workers", "1e999"), ("--wait-workers", "not a duration"), USAGE),
        (("--wait-workers", "nan"), ("--wait-workers", "not a duration"), USAGE),
        (("--storage-option", "a=" + "[" * 10**5), ("the value of a is not valid JSON",), USAGE),
        (("--memory-limit", "1e999GB"), ("memory limit", "1e999GB"), REFUSED),
        (("--scheduler", "tcp://[::1"), ("'tcp://[::1' is not an address",), REFUSED),
    ],
)
def test_values_that_are_none(invoke, round_trip, out, options, words, code):
    done = invoke("fit", round_trip.features, "--out", out, *options, threads=False)
    done.refused(*words, code=code)
    assert not out.exists()


@pytest.mark.parametrize("size", ["", " ", "1e999GB", "nan"])
def test_sizes_that_are_none(refused, out, size):
    args = ("--rows", 50, "--features", 4, "--clusters", 2, "--chunk-size", size)
    refused("synth", out, *args, words=("--chunk-size", "like 64MB"), code=USAGE)


class TestOutputThatExists:
    @pytest.fixture
    def commands(self, round_trip):
        """Each command that writes, by name, as a function of its output."""
        features, run = round_trip.features, round_trip.run
        return {
            "synth": lambda out: (*("synth", out, "--rows", 50, "--features", 4, "--clusters", 2),),
            "fit": lambda out: ("fit", features, "--out", out, "--candidates", 50),
            "predict": lambda out: ("predict", run, features, "--out", out),
        }

    @pytest.mark.parametrize("command", ["synth", "fit", "predict"])
    def test_it_is_kept_unless_told_otherwise(self, invoke, commands, files_of, out, command):
        args = commands[command](out)
        invoke(*args).ok()
        before = files_of(out)
        invoke(*args).refused(str(out), "exists", "--overwrite")
        assert files_of(out) == before

    @pytest.mark.parametrize("command", ["synth", "fit", "predict"])
    def test_overwrite_replaces_it(self, invoke, commands, files_of, out, command):
        args = commands[command](out)
        invoke(*args).ok()
        fresh = sorted(files_of(out))
        (out / "left.over").touch()
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
    @pytest.mark.parametrize("kind", ["folder", "file", "zarr of another tool", "run of one"])
    def test_what_others_wrote_survives(
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
            case "run of one":
                out.mkdir()
                (out / "run.json").write_text('{"status": "complete", "epochs": 90}')
                (out / "weights.bin").write_bytes(b"days of work")
        before = out.read_bytes() if kind == "file" else files_of(out)
        done = invoke(*commands[command](out), *overwrite)
        assert (out.read_bytes() if kind == "file" else files_of(out)) == before
        message = done.refused(str(out), "exists", "choose another")
        # no hint at what would not work either
        if overwrite:
            assert "--overwrite to" not in message

    @pytest.mark.parametrize("command", ["synth", "fit", "predict"])
    def test_an_empty_folder_is_no_obstacle(self, invoke, commands, out, command):
        out.mkdir()
        invoke(*commands[command](out)).ok()

    def test_a_refused_fit_keeps_the_run_it_would_have_replaced(
        self, invoke, features, my_run, files_of
    ):
        before = files_of(my_run)
        for bad in (("--candidates", 9999), ("--rho", 0), ("--block-rows", 0)):
            invoke("fit", features, "--out", my_run, "--overwrite", *bad).refused()
        assert files_of(my_run) == before

    def test_overwrite_takes_an_unfinished_run_away(self, invoke, commands, my_run, record_of):
        record = {**record_of(my_run), "status": "running"}
        (my_run / "run.json").write_text(json.dumps(record))
        invoke(*commands["fit"](my_run), "--overwrite").ok()
        assert record_of(my_run)["status"] == "complete"

    @pytest.mark.parametrize("command", ["synth", "fit", "predict"])
    def test_a_path_below_a_file(self, invoke, commands, tmp_path, command):
        (tmp_path / "file").write_text("mine")
        below = tmp_path / "file" / "out"
        done = invoke(*commands[command](below))
        assert done.code in (1, REFUSED)
        done.refused(str(tmp_path / "file"), code=done.code)
        assert (tmp_path / "file").read_text() == "mine"

    @pytest.mark.parametrize("command", ["synth", "fit", "predict"])
    def test_an_output_elsewhere_makes_no_folder_of_that_name(
        self, invoke, commands, tmp_path, monkeypatch, command
    ):
        monkeypatch.chdir(tmp_path)
        done = invoke(*commands[command](f"memory://{command}/out"))
        assert not (tmp_path / "memory:").exists()
        assert done.code in (0, REFUSED)


class TestOutputOnTopOfTheInput:
    """--overwrite must never take away what the command is about to read."""

    def test_predict_onto_its_features(self, invoke, round_trip, my_features, files_of):
        before = files_of(my_features)
        args = ("predict", round_trip.run, my_features, "--out", my_features, "--overwrite")
        done = invoke(*args)
        assert files_of(my_features) == before
        done.refused(str(my_features))

    @pytest.mark.parametrize("part", ["model.zarr", "labels.zarr"])
    def test_predict_onto_a_part_of_its_run(
        self, invoke, store, tmp_path, rows, my_run, files_of, part
    ):
        """A run whose labels are those of other features would be no run of anything."""
        other = store(tmp_path / "other.zarr", rows[:100])
        before = files_of(my_run)
        done = invoke("predict", my_run, other, "--out", my_run / part, "--overwrite")
        assert files_of(my_run) == before
        done.refused(str(my_run / part))

    def test_fit_onto_the_folder_of_its_features(self, invoke, my_run, features, files_of):
        inside = my_run / "features.zarr"
        shutil.copytree(features, inside)
        before = files_of(inside)
        done = invoke("fit", inside, "--out", my_run, "--overwrite", "--candidates", 50)
        assert inside.exists()
        assert files_of(inside) == before
        done.refused(str(my_run))

    def test_fit_onto_its_features(self, invoke, my_features, files_of):
        before = files_of(my_features)
        done = invoke("fit", my_features, "--out", my_features, "--overwrite")
        assert files_of(my_features) == before
        done.refused(str(my_features))


class TestTruth:
    @pytest.fixture
    def evaluate(self, invoke, round_trip):
        def run(truth, *words):
            invoke("evaluate", round_trip.run, "--truth", truth).refused(*words)

        return run

    @pytest.mark.parametrize("suffix", [".npy", ".zarr"])
    def test_of_another_length(self, evaluate, store, tmp_path, truth, suffix):
        path = save(tmp_path / f"truth{suffix}", truth[:-1], store)
        evaluate(path, "3999", "4000", "same rows")

    @pytest.mark.parametrize("suffix", [".npy", ".zarr"])
    def test_of_floats(self, evaluate, store, tmp_path, truth, suffix):
        path = save(tmp_path / f"truth{suffix}", truth + 0.5, store)
        evaluate(path, str(path), "float64", "integer")

    @pytest.mark.parametrize("suffix", [".npy", ".zarr"])
    def test_of_two_columns(self, evaluate, store, tmp_path, truth, suffix):
        path = save(tmp_path / f"truth{suffix}", np.stack([truth, truth], axis=1), store)
        evaluate(path, str(path), "(4000, 2)", "one integer a row")

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
        """Cut off to integers they would give a score, and a wrong one."""
        point_to(my_run, record_of(my_run), my_features)
        group = zarr.open_group(my_features, mode="r+")
        labels = group["labels"][:]
        del group["labels"]
        store(my_features / "labels", labels + 0.5)
        invoke("evaluate", my_run).refused(str(my_features), "float64", "integer")

    def test_none_at_all(self, invoke, store, tmp_path, rows):
        path = store(tmp_path / "features.zarr", rows)
        invoke("fit", path, "--out", tmp_path / "run", "--candidates", 50).ok()
        invoke("evaluate", tmp_path / "run").refused(str(path), "no labels", "--truth")

    def test_none_because_the_features_are_gone(self, invoke, my_run, record_of, tmp_path):
        point_to(my_run, record_of(my_run), tmp_path / "gone.zarr")
        invoke("evaluate", my_run).refused(str(tmp_path / "gone.zarr"), "does not exist", "--truth")


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


class TestRunsThatAreNone:
    @pytest.fixture(params=["evaluate", "predict"])
    def use(self, request, invoke, features, out):
        """Use a run in both ways that there are."""

        def run(path, *words):
            more = (features, "--out", out) if request.param == "predict" else ()
            invoke(request.param, path, *more).refused(*words)
            assert not out.exists()

        return run

    def test_running_still(self, use, my_run, record_of):
        record = {**record_of(my_run), "status": "running"}
        (my_run / "run.json").write_text(json.dumps(record))
        use(my_run, str(my_run), "not complete", "running", "--overwrite")

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
    def test_a_record_of_something_else(self, use, tmp_path, text):
        path = tmp_path / "other"
        path.mkdir()
        (path / "run.json").write_text(text)
        use(path, str(path))

    def test_without_its_parts(self, use, my_run):
        for part in ("labels.zarr", "model.zarr"):
            (my_run / part).rename(my_run / f"moved-{part}")
        use(my_run, str(my_run))

    @pytest.mark.parametrize("damage", DAMAGE)
    def test_damaged_labels(self, invoke, my_run, damage):
        DAMAGE[damage](my_run / "labels.zarr/labels/c/1")
        invoke("evaluate", my_run).refused(str(my_run))

    @pytest.mark.parametrize("array", ["centers/c/0/0", "scale/c/0"])
    @pytest.mark.parametrize("damage", DAMAGE)
    def test_damaged_model(self, invoke, my_run, features, out, damage, array):
        DAMAGE[damage](my_run / "model.zarr" / array)
        invoke("predict", my_run, features, "--out", out).refused(str(my_run))
        assert not out.exists()
