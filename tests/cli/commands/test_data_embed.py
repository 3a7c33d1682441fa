"""`scrlm embed`: the store contains the output of the encoder in order, also after a failure."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from PIL import Image

import scrlm_dask
from scrlm_dask.encoders.catalog import open_encoder
from scrlm_dask.reporting.report_data import read_report_data
from scrlm_dask.reporting.summary import run_facts

N = 24
TEXTS = [f"text {i}: {'red cat' if i % 2 else 'blue dog'}" for i in range(N)]
WORDS = open_encoder("hashing:16", "texts", None).encode(TEXTS)
SMALL = ("--chunk-size", "320B")  # 5 rows of 16 features


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.zarr"


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "x.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """12 images in the folders owl2 and owl10, sorted naturally: 2.png before 10.png."""
    rng = np.random.default_rng(0)
    for name, grey in (("owl2", 60), ("owl10", 180)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in (1, 2, 3, 9, 10, 11):
            pixels = np.clip(rng.normal(grey, 10, (9, 7, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{i}.png")
    return tmp_path / "images"


@pytest.fixture
def embed(invoke, out):
    def run(source: Path, encoder: Any, *args: Any) -> Any:
        return invoke("embed", source, out, "--encoder", encoder, *args, threads=False)

    return run


@pytest.fixture
def mine(tmp_path: Path):
    """Write an encoder with the given body, a function of `items`; return its name."""

    def write(body: str) -> str:
        path = tmp_path / "mine.py"
        indented = "\n".join(f"    {line}" for line in body.splitlines())
        path.write_text(f"import numpy as np\nimport time\n\ndef encode(items):\n{indented}\n")
        return f"{path}:encode"

    return write


def stored(path: Path, name: str = "features") -> np.ndarray:
    return zarr.open_array(path / name, mode="r")[:]


class TestTexts:
    @pytest.mark.parametrize("batch", [1, 7, 32])
    def test_store_does_not_depend_on_the_batch_size(self, embed, lines, out, batch):
        found = embed(lines, "hashing:16", "--batch-size", batch, *SMALL, "--json").json()
        assert found == {
            "path": str(out),
            "encoder": "hashing:16",
            "input": str(lines),
            "rows": N,
            "features": 16,
            "dtype": "float32",
            "blocks": 5,
            "kept_blocks": 0,
            "skipped_items": 0,
            "bytes": WORDS.nbytes,
            "label_names": None,
        }
        np.testing.assert_array_equal(stored(out), WORDS)
        np.testing.assert_array_equal(stored(out, "ids"), np.arange(N))

    def test_parquet_column_with_ids_and_labels(self, embed, invoke, tmp_path, out):
        kinds = ["dog", "cat"] * (N // 2)
        table = pa.table({"name": [f"r{i}" for i in range(N)], "kind": kinds, "text": TEXTS})
        pq.write_table(table, tmp_path / "x.parquet", row_group_size=7)
        args = ("--column", "text", "--ids", "name", "--labels", "kind", *SMALL)
        found = embed(tmp_path / "x.parquet", "hashing:16", *args, "--limit", 20, "--json").json()
        assert (found["rows"], found["label_names"]) == (20, ["cat", "dog"])
        np.testing.assert_array_equal(stored(out), WORDS[:20])
        assert stored(out, "ids").tolist() == [f"r{i}" for i in range(20)]
        assert stored(out, "labels").tolist() == [1, 0] * 10
        assert invoke("inspect", out, "--verify", "--json").json()["complete"]

    def test_json_lines_as_float16(self, embed, tmp_path, out):
        rows = [json.dumps({"t": text, "y": i}) for i, text in enumerate(TEXTS)]
        (tmp_path / "x.jsonl").write_text("\n".join(rows))
        args = ("--column", "t", "--labels", "y", "--dtype", "float16")
        embed(tmp_path / "x.jsonl", "hashing:16", *args).ok()
        np.testing.assert_array_equal(stored(out), WORDS.astype(np.float16))
        assert stored(out, "labels").tolist() == list(range(N))

    def test_empty_texts(self, embed, tmp_path, out):
        path = tmp_path / "x.txt"
        path.write_text("\n".join(["", *TEXTS[:6], "  ", *TEXTS[6:]]))
        embed(path, "hashing:16").rejected("line 1", str(path), "--on-error skip")
        assert not out.exists()
        done = embed(path, "hashing:16", "--on-error", "skip", "--batch-size", 4, *SMALL, "--json")
        assert (done.json()["rows"], done.json()["skipped_items"]) == (N, 2)
        assert re.search(rf"\b2\b.*\bline 1\b.*{path}", done.stderr)
        np.testing.assert_array_equal(stored(out), WORDS)
        kept = [i for i in range(N + 2) if i not in (0, 7)]
        np.testing.assert_array_equal(stored(out, "ids"), kept)

    def test_no_item_can_be_read(self, embed, tmp_path):
        (tmp_path / "x.csv").write_text("t,u\n ,a\n ,b\n")
        done = embed(tmp_path / "x.csv", "hashing", "--column", "t", "--on-error", "skip")
        done.rejected(str(tmp_path / "x.csv"), "2")


class TestImages:
    def test_folder_names_as_labels(self, embed, invoke, folder, out, tmp_path):
        (folder / "readme.md").write_text("x")
        found = embed(folder, "pixels:4", "--labels", "folder", "--batch-size", 5, "--json")
        assert found.json()["label_names"] == ["owl10", "owl2"]
        assert re.search(r"\b1\b.*\bimage", found.stderr)
        names = [f"{kind}/{i}.png" for kind in ("owl2", "owl10") for i in (1, 2, 3, 9, 10, 11)]
        assert stored(out, "ids").tolist() == names
        assert stored(out, "labels").tolist() == [1] * 6 + [0] * 6
        images = [Image.open(folder / name).convert("RGB") for name in names]
        expected = open_encoder("pixels:4", "images", None).encode(images)
        np.testing.assert_array_equal(stored(out), expected)
        run = tmp_path / "run"
        invoke("fit", out, "--out", run, "--rho", 0.5, "--clusters", 2).ok()
        assert invoke("evaluate", run, "--json").json()["accuracy"] == 1
        assert "pixels:4" in invoke("inspect", out).ok().stdout
        encoded = dict(run_facts(read_report_data(run, rows_each=1)))["Encoded"]
        assert all(fact in encoded for fact in ("images", str(folder), "pixels:4"))

    def test_damaged_image(self, embed, folder, out):
        path = folder / "owl2" / "9.png"
        path.write_bytes(path.read_bytes()[:60])
        facts = (str(path), "OSError", "--on-error skip")
        embed(folder, "pixels:4", "--chunk-size", "192B").rejected(*facts)
        assert not out.exists()
        args = ("--on-error", "skip", "--labels", "folder", "--chunk-size", "576B", "--json")
        assert embed(folder, "pixels:4", *args).json()["skipped_items"] == 1
        assert "owl2/9.png" not in stored(out, "ids").tolist()
        assert stored(out, "labels").tolist() == [1] * 5 + [0] * 6
        one = open_encoder("pixels:4", "images", None).encode([Image.open(folder / "owl10/1.png")])
        np.testing.assert_array_equal(stored(out)[5:6], one)  # still at the position of its id
        assert stored(out, "ids")[5] == "owl10/1.png"

    def test_number_of_open_images_is_bounded(self, embed, folder, mine, out):
        body = """
import weakref
seen = globals().setdefault("seen", [])
seen += [weakref.ref(item) for item in items]
live = sum(reference() is not None for reference in seen)
assert live <= 6, live
return np.full((len(items), 2), len(items))"""
        embed(folder, mine(body), "--batch-size", 3).ok()
        assert stored(out).max() == 3


class TestEncoders:
    @pytest.mark.parametrize(
        ("body", "facts"),
        [
            ("return np.ones((len(items) // 2 + 1, 3))", ("(3, 3)", "4")),
            ("return np.ones((len(items), len(items)))", ("4", "1", "line 1")),
            ("return np.ones((2, 3)) if len(items) > 1 else np.ones(3)", ("(3,)", "1")),
            (
                "x = np.ones((len(items), 3))\nx[[t == 'text 6: blue dog' for t in items]]"
                " = np.nan\nreturn x",
                ("NaN", "line 7"),
            ),
            ("return [[1e6]] * len(items)", ("float16", "line 1")),
        ],
    )
    def test_invalid_output_is_rejected(self, embed, lines, mine, out, body, facts):
        args = ("--batch-size", 4, "--dtype", "float16")
        embed(lines, mine(body), *args).rejected("mine.py:encode", *facts)
        assert not out.exists()

    def test_failed_embed_resumes_with_smaller_batches(self, embed, lines, mine, out):
        body = "assert len(items) < 4, 'CUDA-OOM'\nreturn [[len(t)] * 16 for t in items]"
        args = (*SMALL, "--batch-size")
        embed(lines, mine(body), *args, 4).rejected("4", "CUDA-OOM", "--batch-size")
        assert embed(lines, mine(body), *args, 3, "--json").json()["kept_blocks"] == 0
        assert stored(out)[:, 0].tolist() == [len(text) for text in TEXTS]

    def test_resuming_with_another_encoder_is_rejected(self, embed, lines, mine, out):
        body = "assert 'text 8' not in items[0]\nreturn [[len(t)] * 16 for t in items]"
        embed(lines, mine(body), *SMALL, "--batch-size", 1).rejected("1", "AssertionError")
        embed(lines, mine(f"{body}  # now"), *SMALL).rejected("SHA-256", "--overwrite")
        embed(lines, "hashing:16", *SMALL).rejected("mine.py:encode", "hashing:16", "--overwrite")
        embed(lines, "hashing:16", *SMALL, "--overwrite").ok()
        np.testing.assert_array_equal(stored(out), WORDS)

    def test_store_records_encoder_and_input(self, embed, lines, out):
        embed(lines, "hashing:16").ok()
        attributes = json.loads((out / "zarr.json").read_text())["attributes"]
        assert attributes["encoded"]["encoder"] == "hashing:16"
        assert attributes["encoded"]["made_by"].startswith("scikit-learn ")
        assert attributes["encoded"]["input"] == str(lines)
        assert attributes["encoded"]["items"] == "texts"
        assert attributes["manifest"]["request"]["embed"]["encoder"] == "hashing:16"
        embed(lines, "hashing:16").rejected(str(out), "--overwrite")

    def test_usage(self, invoke, lines, out):
        for args in ((), ("--encoder", "hashing", "--batch-size", 0)):
            assert invoke("embed", lines, out, *args, threads=False).code == 2
        for encoder, fact in (("pixels", "images"), ("nothing", "torchvision:MODEL")):
            done = invoke("embed", lines, out, "--encoder", encoder, threads=False)
            done.rejected(encoder, fact)


def done_blocks(out: Path) -> set[Path]:
    return set((out / "digests" / "c").glob("*/0"))


@pytest.mark.slow
def test_resumes_after_being_killed(start, embed, files_of, without_times, tmp_path, mine, out):
    path = tmp_path / "many.txt"
    path.write_text("".join(f"{i} {i * i}\n" for i in range(600)))
    name = mine("time.sleep(0.03)\nreturn [[float(t.split()[1])] * 16 for t in items]")
    args = ("--batch-size", 4, *SMALL)
    running = start("embed", path, out, "--encoder", name, *args)
    running.until(lambda: len(done_blocks(out)) >= 10)
    os.killpg(running.process.pid, signal.SIGKILL)
    running.process.wait()
    kept = len(done_blocks(out))
    assert 10 <= kept < 120
    embed(path, name, *args, "--limit", 9).rejected("limit", "None", "9")
    assert embed(path, name, *args, "--json").json()["kept_blocks"] == kept
    assert stored(out)[:, 3].tolist() == [i * i for i in range(600)]
    found = {k: v for k, v in files_of(out).items() if not k.endswith(".partial")}
    embed(path, name, *args, "--overwrite").ok()
    assert without_times(found) == without_times(files_of(out))


def test_encoder_runs_in_this_thread_with_any_client(lines, mine, out):
    from distributed import Client

    config = scrlm_dask.EmbedConfig(
        encoder=mine("import threading\nreturn [[threading.get_ident()]] * len(items)"),
        on_error="skip",
    )
    with Client(processes=False, n_workers=1, dashboard_address="127.0.0.1:0"):
        found = scrlm_dask.embed(str(lines), out, config, listener=lambda event: None)
    assert found.n_rows == N
    assert np.unique(stored(out)).tolist() == [np.float32(threading.get_ident())]
