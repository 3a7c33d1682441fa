"""`scrlm inspect`: description, statistics and verification of a features store."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import zarr

ROWS, FEATURES, CLUSTERS, CHUNK_ROWS = 4000, 64, 5, 1024


def test_description_without_reading_rows(invoke, features):
    done = invoke("inspect", features, "--json")
    found = done.json()
    assert found["store"] == str(features)
    assert (found["rows"], found["features"], found["dtype"]) == (ROWS, FEATURES, "float32")
    assert (found["chunks"], found["shards"], found["n_files"]) == ([CHUNK_ROWS, FEATURES], None, 4)
    assert found["codecs"] == ["bytes", "crc32c"]
    assert found["complete"] is True
    assert found["checksums"] is True
    assert found["missing_blocks"] == []
    assert (found["labels"], found["ids"]) == ("int32", None)
    assert found["manifest"]["blocks"] == 4
    assert found["manifest"]["request"]["mixture"]["n_clusters"] == CLUSTERS
    assert "statistics" not in found
    assert done.stderr == ""  # no cluster is started for this


def test_table(invoke, features):
    done = invoke("inspect", features, "--stats", "--rho", 0.5, "--verify").ok()
    for fact in ("1,024 x 64", "outlier share", "axes", "digests", "checksums"):
        assert fact in done.stdout
    assert re.search(r"manifest .*\b4 blocks\b.*\b1,024\b", done.stdout)


def test_statistics(scrlm, features, rows, truth, tmp_path):
    plot = tmp_path / "out.png"
    done = scrlm(
        "inspect", features, "--stats", "--rho", 0.5, "--plot", plot, "--json", "--nworkers", 0
    )
    found = done.json()["statistics"]
    assert found["usable_rows"] == ROWS
    assert found["nan_rows"] == found["infinite_rows"] == found["duplicate_rows"] == 0
    assert found["classes"] == CLUSTERS
    assert found["outlier_share"] == pytest.approx(np.mean(truth == -1))
    assert found["mean_range"][1] == pytest.approx(rows.mean(axis=0, dtype=float).max())
    assert found["std_range"][0] == pytest.approx(rows.std(axis=0, dtype=float).min())
    assert found["norms"]["min"] == pytest.approx(np.linalg.norm(rows, axis=1).min(), rel=1e-6)
    assert found["distances"]["radius"] == pytest.approx(0.5 * (2.5 * FEATURES) ** 0.5)
    assert 0 < found["distances"]["inside_radius_share"] < 0.2
    assert len(found["spectrum"]["variances"]) == FEATURES
    assert found["spectrum"]["axes_for_90_percent"] < FEATURES
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "change", [("--rho", 0.3), ("--F", 3), ("--preprocess", "l2"), ("--preprocess", "none")]
)
def test_every_option_has_an_effect(invoke, features, change):
    base = {"--rho": 0.5}
    one, other = (
        invoke("inspect", features, "--stats", "--json", *(x for p in d.items() for x in p)).json()
        for d in (base, {**base, change[0]: change[1]})
    )
    assert one["statistics"]["distances"] != other["statistics"]["distances"]


def test_nonfinite_rows_are_counted_and_excluded(invoke, store, rows, tmp_path):
    bad = rows.copy()
    bad[[3, 2000]] = np.nan
    bad[77, 5] = -np.inf
    path = store(tmp_path / "bad.zarr", bad)
    done = invoke("inspect", path, "--stats", "--json").json()["statistics"]
    assert (done["nan_rows"], done["infinite_rows"]) == (2, 1)
    assert done["first_unusable_rows"] == [3, 77, 2000]
    assert done["usable_rows"] == ROWS - 3
    assert "3, 77, 2000" in invoke("inspect", path, "--stats").ok().stdout


def test_number_of_rows_is_not_that_of_the_listed_rows(invoke, store, rows, tmp_path):
    bad = rows.copy()
    bad[:12] = np.nan
    shown = invoke("inspect", store(tmp_path / "bad.zarr", bad), "--stats").ok().stdout
    (line,) = (line for line in shown.splitlines() if "0, 1, 2, 3, 4" in line)
    assert re.findall(r"\d+", line) == ["0", "1", "2", "3", "4"]


def test_rows_of_zeros_are_counted_with_a_remedy(invoke, store, rows, tmp_path):
    zeros = rows.copy()
    zeros[[3, 2000]] = 0.0
    path = store(tmp_path / "zeros.zarr", zeros)
    done = invoke("inspect", path, "--stats").ok()
    assert re.search(r"\bzeros\W+2\b", done.stdout)
    assert re.search(rf"\b2 of {ROWS} rows\b.*scrlm ingest --zeros drop", done.stderr)
    assert "--zeros" not in invoke("inspect", store(tmp_path / "x.zarr", rows), "--stats").stderr


def damage(features):
    for chunk, offset in ((1, 500), (3, 9)):
        file = features / f"features/c/{chunk}/0"
        content = bytearray(file.read_bytes())
        content[offset] ^= 4
        file.write_bytes(content)


@pytest.mark.parametrize("as_json", [True, False])
def test_verify_lists_every_damaged_block_and_exits_with_3(invoke, my_features, as_json):
    assert invoke("inspect", my_features, "--verify", "--json").json()["verification"] == {
        "digests": True,
        "checksums": True,
        "damaged_blocks": [],
    }
    damage(my_features)
    done = invoke("inspect", my_features, "--verify", "--stats", *(("--json",) if as_json else ()))
    assert done.code == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert str(my_features) in last
    assert re.search(r"\b2 (damaged )?block", last)
    assert re.search(r"block 1\b.*\b1024\b.*\b2047\b.*block 3\b.*\b3072\b.*\b3999\b", last)
    assert "statistics" in done.stderr  # a note that they are not computed
    assert "Traceback" not in done.stderr
    if as_json:
        content = json.loads(done.stdout)
        assert "statistics" not in content
        found = content["verification"]["damaged_blocks"]
        assert [(d["block"], d["first_row"], d["last_row"]) for d in found] == [
            (1, 1024, 2047),
            (3, 3072, 3999),
        ]
    else:
        assert re.search(r"\b1,024\b.*\b2,047\b", done.stdout)


def test_unfinished_store_is_described_but_not_read(invoke, my_features):
    zarr.open_group(my_features, mode="r+").attrs["complete"] = False
    (my_features / "digests/c/2/0").unlink()
    found = invoke("inspect", my_features, "--json").json()
    assert (found["complete"], found["missing_blocks"]) == (False, [2])
    shown = invoke("inspect", my_features).ok().stdout
    assert re.search(r"complete .*\bno\b.*\b1 block.*\(2\)", shown)
    invoke("inspect", my_features, "--stats").rejected(str(my_features), "1 of 4", "(2)")
    assert invoke("inspect", my_features, "--verify").code == 3


def test_bad_input(invoke, tmp_path, features):
    invoke("inspect", tmp_path / "nowhere.zarr").rejected(str(tmp_path / "nowhere.zarr"))
    invoke("inspect", features, "--stats", "--rho", -1).rejected("rho", "-1.0")
    invoke("inspect", features, "--plot", tmp_path / "out.txt").rejected("out.txt", "png")


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (("--rho", 0.5), ("--rho", "--stats", "--plot")),
        (("--F", 2.5), ("--F", "--stats", "--plot")),
        (("--preprocess", "l2", "--verify"), ("--preprocess", "--stats", "--plot")),
        (("--block-rows", 9, "--rho", 1), ("--rho", "--block-rows", "--stats", "--plot")),
        (("--stats", "--F", 3), ("--F", "--rho")),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_options_without_effect_are_rejected(invoke, features, options, facts):
    invoke("inspect", features, *options).rejected(*facts, code=2)
