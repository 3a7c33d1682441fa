"""Reports: content, items, rejected input, and display in a browser."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from browser import browsing, needs_browser
from PIL import Image
from reporting.level_records import LEVEL_SCAN, LEVELS, NO_LEVELS

import scrlm_dask
from scrlm_dask.errors import InputError, StoreError, UnusableRowsError
from scrlm_dask.kernels.bandwidth.modularity import Levels
from scrlm_dask.reporting.report import write_report
from scrlm_dask.reporting.report_data import PlaneMap, ReportData
from scrlm_dask.runs.lifecycle import load_fit
from scrlm_dask.storage.locations import Location

NASTY = "<script>alert('x')</script> & \"quotes\""
SIDE = 8  # rows are square images with this side in pixels


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fit two runs to small images: four clusters of 60 rows, and 20 outliers."""
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    centers = rng.normal(0, 10, (4, SIDE * SIDE))
    rows = np.repeat(centers, 60, axis=0) + rng.normal(0, 0.3, (240, SIDE * SIDE))
    x = np.concatenate([rows, rng.normal(0, 40, (20, SIDE * SIDE))]).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "ids.npy", np.array([f"{NASTY} {i}" for i in range(len(x))]))
    config = scrlm_dask.IngestConfig(ids=str(folder / "ids.npy"))
    scrlm_dask.ingest([folder / "x.npy"], folder / "x.zarr", config)
    fit = scrlm_dask.FitConfig(rho=0.5, preprocess="none", n_clusters=10, n_candidates=200)
    scrlm_dask.fit(folder / "x.zarr", fit, out=folder / "scrlm", block_rows=50)
    kmeans = scrlm_dask.KMeansConfig(n_clusters=4)
    scrlm_dask.kmeans(folder / "x.zarr", kmeans, out=folder / "kmeans")
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return Path(write_report([folder / "scrlm"]).page).read_text()


class _Tags(HTMLParser):
    """Collects open tags, all tags, and URLs of resources."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.sources += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_and_self_contained(page: str) -> None:
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert "script" not in tags.seen
    assert len(tags.sources) >= 7
    assert all(source.startswith("data:image/png;base64,") for source in tags.sources)
    assert not re.search(r"https?://", page)


def test_page_shows_numbers_and_figures(folder: Path, page: str) -> None:
    text = unescape(re.sub(r"<[^>]*>", " ", page))
    record = json.loads((folder / "scrlm" / "run.json").read_text())
    for fact in ("SCRLM", "4 clusters", "260 rows", "64 features", "20 rows", "7.69 %", "60 rows"):
        assert fact in text
    assert str(folder / "x.zarr") in text
    assert f"{record['radius']:.6g}" in text
    names = ("phases", "sizes", "sigmas", "outliers", "distances", "margins", "losses", "map")
    assert {path.stem for path in (folder / "scrlm" / "report").glob("*.png")} == set(names)
    assert page.count("<h3>") == page.count("<figure") == len(names)


def test_names_are_escaped(page: str) -> None:
    assert NASTY not in page
    assert "&lt;script&gt;alert(" in page


def test_nearest_rows(folder: Path, page: str) -> None:
    labels = zarr.open_array(folder / "scrlm/labels.zarr/labels", mode="r")[:]
    distances = zarr.open_array(folder / "scrlm/labels.zarr/distances", mode="r")[:]
    mine = np.flatnonzero(labels == 0)
    nearest = mine[np.argsort(distances[mine], kind="stable")[:8]]
    blocks = page.split('class="cluster"')[1:]
    block = next(b for b in blocks if re.search(r"<b>[^<]*\b0</b>", b))
    numbers = [int(n) for n in re.findall(r"quotes&#34; (\d+)</div>", block)]
    assert numbers == nearest.tolist()


def _shown_rows(page: str) -> list[str]:
    """Return the captions of the example rows in a report."""
    rows = re.findall(r'<div class="item">(.*?)</div>', page)
    return [unescape(re.sub(r"<[^>]*>", " ", row)) for row in rows]


@pytest.mark.parametrize("n_files", [1, 2])
def test_rows_without_ids_are_named_by_store_and_source(tmp_path: Path, n_files: int) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)) + 50 * (np.arange(60) % 3)[:, None]
    files = [tmp_path / f"in/{part}/x,<b>.npy" for part in range(n_files)]
    for file, rows in zip(files, np.split(x, n_files), strict=True):
        file.parent.mkdir(parents=True)
        np.save(file, rows)
    store, run = tmp_path / "x.zarr", tmp_path / "run"
    scrlm_dask.ingest(files, store, scrlm_dask.IngestConfig(shuffle=True))
    scrlm_dask.kmeans(store, scrlm_dask.KMeansConfig(n_clusters=3), out=run)
    page = Path(write_report([run], listener=lambda event: None).page).read_text()
    source_row, source_file = (
        zarr.open_array(store / name, mode="r")[:] for name in ("source_row", "source_file")
    )
    shown = _shown_rows(page)
    assert len(shown) == 24
    for text in shown:
        row = int(re.findall(r"store row (\d+)", text)[0])
        assert int(re.findall(r"source row (\d+)", text)[0]) == source_row[row]
        assert (f"{source_file[row]}/x,<b>.npy" in text) == (n_files == 2)
        assert str(tmp_path) not in text
    facts = unescape(re.sub(r"<[^>]*>", " ", page[page.index('class="card facts"') :]))
    assert (str(files[0]) if n_files == 1 else f"{tmp_path}/in/") in facts


def test_rows_of_a_store_without_sources_are_named_by_its_rows(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    scrlm_dask.FeatureStore.write(rows, tmp_path / "x.zarr")
    scrlm_dask.kmeans(
        tmp_path / "x.zarr", scrlm_dask.KMeansConfig(n_clusters=1), out=tmp_path / "run"
    )
    shown = _shown_rows(Path(write_report([tmp_path / "run"]).page).read_text())
    assert all(re.fullmatch(r"\W*store row \d+\W*", text) for text in shown)
    assert len(shown) == 8


@pytest.mark.slow
def test_figure_of_rho_is_shown_if_rho_was_chosen(folder: Path, page: str) -> None:
    config = scrlm_dask.FitConfig(preprocess="none")
    scrlm_dask.fit(folder / "x.zarr", config, out=folder / "chosen", block_rows=50)
    done = write_report([folder / "chosen"])
    assert "rho.png" in {Path(name).name for name in done.figures}
    assert Path(done.page).read_text().count("<figure") == len(done.figures)
    figures_of_given_rho = list((folder / "scrlm" / "report").glob("*.png"))
    assert len(figures_of_given_rho) == page.count("<figure")
    assert "rho.png" not in {path.name for path in figures_of_given_rho}
    record = json.loads((folder / "chosen" / "run.json").read_text())
    record["scan"]["rungs"][0]["shell"] = None  # a file may have been edited
    (folder / "chosen" / "run.json").write_text(json.dumps(record))
    done = write_report([folder / "chosen"])
    assert "rho.png" not in {Path(name).name for name in done.figures}


@pytest.mark.parametrize("levels", [LEVELS, NO_LEVELS], ids=["clear", "none"])
def test_page_of_a_run_whose_number_of_clusters_was_chosen(
    folder: Path, tmp_path: Path, levels: Levels
) -> None:
    run = Path(shutil.copytree(folder / "scrlm", tmp_path / "run"))
    record = json.loads((run / "run.json").read_text())
    record["scan"] = replace(LEVEL_SCAN, levels=levels).to_json()
    record["asked"]["config"]["preprocess"] = "auto"
    (run / "run.json").write_text(json.dumps(record))
    done = write_report([run], tmp_path / "r.html")
    names = {Path(name).name for name in done.figures}
    assert "modularity.png" in names
    assert "rho.png" not in names
    text = unescape(re.sub(r"<[^>]*>", " ", Path(done.page).read_text()))
    for fact in (levels.structure, f"{levels.gap:.2f}", f"{levels.agreement:.2f}", "none (chosen"):
        assert fact in text
    assert ("arbitrary" in text) == (levels.structure == "none")
    assert ("SCRLM found" in text) == (levels.structure != "none")


def test_figures_are_saved_next_to_the_page(folder: Path) -> None:
    done = write_report([folder / "kmeans"], folder / "other.html")
    assert {Path(name).name for name in done.figures} >= {"phases.png", "sizes.png", "inertia.png"}
    for name in done.figures:
        assert Path(name).parent == folder / "other"
        with Image.open(name) as image:
            assert image.width > 800
    text = Path(done.page).read_text()
    sentence = re.search(r'class="card words"><p>(.*?)</p>', text)
    assert sentence is not None
    for fact in ("k-means", "4 clusters", "260 rows"):
        assert fact in sentence[1]
    assert "%" not in sentence[1]  # k-means labels all rows, so there is no share of outliers


@pytest.mark.slow
def test_runs_are_compared(folder: Path) -> None:
    runs = [folder / "scrlm", folder / "kmeans"]
    page = Path(write_report(runs, folder / "both.html").page).read_text()
    assert re.search(r"<title>[^<]*\b2\b", page)
    assert "<td>method</td><td>SCRLM</td><td>k-means</td>" in page
    labels = [zarr.open_array(run / "labels.zarr/labels", mode="r")[:] for run in runs]
    from sklearn.metrics import adjusted_rand_score

    assert f"<td>{adjusted_rand_score(*labels):.4f}</td>" in page


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["npy", "texts", "parquet", "pictures in parquet", "folder"])
def test_items_of_every_kind(folder: Path, tmp_path: Path, kind: str) -> None:
    x = np.load(folder / "x.npy").reshape(-1, SIDE, SIDE)
    column, words = None, [f"{NASTY} text {i}" for i in range(len(x))]
    items = tmp_path / "items.npy"
    if kind == "npy":
        np.save(items, x)
    elif kind == "texts":
        np.save(items, np.array(words))
    elif kind == "folder":
        items = tmp_path / "items"
        items.mkdir()
        for i in range(len(x)):
            Image.new("L", (SIDE, SIDE), i % 256).save(items / f"{i}.png")
    else:
        items, column = tmp_path / "items.parquet", "item"
        content: list[str] | list[bytes] = words
        if kind != "parquet":
            Image.new("RGB", (300, 200), (9, 99, 199)).save(tmp_path / "one.png")
            content = [(tmp_path / "one.png").read_bytes()] * (len(x) - 1) + [b"no picture"]
        pq.write_table(pa.table({"n": range(len(x)), "item": content}), items, row_group_size=50)
    page = Path(
        write_report(
            [folder / "scrlm"], tmp_path / "r.html", items=items, items_column=column, rows_each=3
        ).page
    ).read_text()
    shown = page[page.index('class="cluster"') :]
    assert shown.count('class="item"') == 12
    if kind in ("texts", "parquet"):
        found = [int(n) for n in re.findall(r"text (\d+)</span>", shown)]
        ids = [int(n) for n in re.findall(r"quotes&#34; (\d+)</div>", shown)]
        assert found == ids
        assert NASTY not in page
    else:
        # centers are shown as images if rows have the shape of the items
        assert shown.count("<img") == (16 if kind == "npy" else 12)


def test_rejected_input(folder: Path, tmp_path: Path) -> None:
    run = folder / "scrlm"
    (tmp_path / "thesis.html").write_text("<h1>precious</h1>")
    with pytest.raises(StoreError, match=rf"(?=.*{tmp_path}/thesis\.html)(?=.*--out)"):
        write_report([run], tmp_path / "thesis.html")
    assert (tmp_path / "thesis.html").read_text() == "<h1>precious</h1>"
    with pytest.raises(InputError, match=rf"(?=.*{tmp_path}/thesis\b)(?=.*\.html)"):
        write_report([run], tmp_path / "thesis")
    with pytest.raises(StoreError, match=rf"(?=.*{tmp_path})(?=.*run\.json)"):
        write_report([tmp_path])
    np.save(tmp_path / "few.npy", np.zeros((5, 4, 4)))
    with pytest.raises(InputError, match=r"(?=.*few\.npy)(?=.*\b5\b)(?=.*\b260\b)"):
        write_report([run], tmp_path / "r.html", items=tmp_path / "few.npy")
    np.save(tmp_path / "flat.npy", np.zeros((260, 4)))
    with pytest.raises(InputError, match=r"(?=.*flat\.npy)(?=.*\(260, 4\))(?=.*float64)"):
        write_report([run], tmp_path / "r.html", items=tmp_path / "flat.npy")
    np.save(tmp_path / "code.npy", np.array([print] * 260, object), allow_pickle=True)
    with pytest.raises(StoreError, match=r"(?=.*code\.npy)(?=.*\bobject\b)"):
        write_report([run], tmp_path / "r.html", items=tmp_path / "code.npy")
    config = scrlm_dask.IngestConfig(shuffle=True)
    scrlm_dask.ingest([folder / "x.npy"], tmp_path / "s.zarr", config)
    scrlm_dask.kmeans(
        tmp_path / "s.zarr", scrlm_dask.KMeansConfig(n_clusters=2), out=tmp_path / "s"
    )
    with pytest.raises(InputError, match=rf"(?=.*{tmp_path}/s\.zarr)(?=.*x\.npy)(?=.*--shuffle)"):
        write_report([tmp_path / "s"], items=folder / "x.npy")
    assert not (tmp_path / "s" / "report.html").exists()


@pytest.mark.parametrize("change", ["removed", "ingested again"])
def test_items_are_rejected_if_the_labelled_rows_were_shuffled(
    folder: Path, tmp_path: Path, change: str
) -> None:
    store, run, items = tmp_path / "x.zarr", tmp_path / "run", tmp_path / "items.npy"
    np.save(items, np.array(["word"] * 260))
    scrlm_dask.ingest(folder / "x.npy", store, scrlm_dask.IngestConfig(shuffle=True))
    scrlm_dask.kmeans(store, scrlm_dask.KMeansConfig(n_clusters=2), out=run)
    if change == "removed":
        shutil.rmtree(store)
    else:
        scrlm_dask.ingest(folder / "x.npy", store, overwrite=True)
    with pytest.raises(InputError, match=rf"(?=.*{store})(?=.*{items})(?=.*--shuffle)"):
        write_report([run], items=items, listener=lambda event: None)
    assert not (run / "report.html").exists()


def test_runs_on_a_store_that_was_ingested_again(folder: Path, tmp_path: Path) -> None:
    store, runs = tmp_path / "x.zarr", [tmp_path / "a", tmp_path / "b"]
    for run, shuffle in zip(runs, (True, False), strict=True):
        config = scrlm_dask.IngestConfig(shuffle=shuffle)
        scrlm_dask.ingest([folder / "x.npy"], store, config, overwrite=True)
        scrlm_dask.kmeans(store, scrlm_dask.KMeansConfig(n_clusters=2), out=run)
    texts = tmp_path / "texts.npy"
    np.save(texts, np.array(["word"] * 260))
    table = "<th>ARI</th>"  # of the agreement of runs on the same rows
    with pytest.warns(scrlm_dask.ScrlmWarning, match=str(store)):
        page = Path(write_report(runs, tmp_path / "other.html").page).read_text()
    assert table not in page
    page = Path(write_report([runs[1]] * 2, tmp_path / "same.html").page).read_text()
    assert table in page
    write_report([runs[1]], items=texts)
    changed = scrlm_dask.IngestConfig(dtype="float16")
    scrlm_dask.ingest([folder / "x.npy"], store, changed, overwrite=True)
    with pytest.raises(StoreError, match=rf"(?=.*{store})(?=.*texts\.npy)(?=.*--items)"):
        write_report([runs[1]], items=texts, listener=lambda event: None)


@pytest.mark.parametrize("name", ["items", "labels", "model"])
def test_input_that_changes_during_the_report(
    folder: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(folder / "kmeans", tmp_path / "run"))
    items, page = tmp_path / "items.npy", tmp_path / "r.html"
    np.save(items, np.array(["before"] * 260))

    def change(data: ReportData, plane: PlaneMap | None) -> Iterator[tuple[str, str, bytes]]:
        if name == "items":
            np.save(items, np.array(["after!"] * 260))
        else:
            array = "labels.zarr/labels" if name == "labels" else "model.zarr/weights"
            zarr.open_array(run / array, mode="r+")[0] = 1
        return iter(())

    monkeypatch.setattr("scrlm_dask.reporting.report.run_figures", change)
    changed = items if name == "items" else run / f"{name}.zarr"
    with pytest.raises(UnusableRowsError, match=str(changed)):
        write_report([run], page, items=items)
    assert not page.exists()
    assert not page.with_suffix("").exists()


def test_invalid_events_are_ignored(folder: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(folder / "scrlm", tmp_path / "run"))
    odd = [
        b'{"event": "Note", "warning": true, "text": "\xff"}',
        b'{"event": "Note", "warning": true}',
        b'{"event": "CandidatesJudged"}',
        b'{"event": "CandidatesJudged", "ranks": [1, 2], "losses": ["x", 1]}',
        b'{"event": "Note", "warning": true, "text": "valid note"}',
        b"[" * 100_000,
    ]
    with (run / "events.jsonl").open("ab") as file:
        file.write(b"\n".join(odd) + b"\n")
    done = write_report([run], tmp_path / "r.html")
    assert "valid note" in Path(done.page).read_text()
    assert "losses.png" in {Path(name).name for name in done.figures}  # from the valid event


@pytest.mark.parametrize("name", ["phases", "outlier_share", "features", "peak_worker_bytes"])
def test_incomplete_records_are_rejected(folder: Path, tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree(folder / "scrlm", tmp_path / "run"))
    record = json.loads((run / "run.json").read_text())
    del (record["phases"][0] if name.startswith("peak") else record)[name]
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(StoreError, match=rf"(?=.*run\.json)(?=.*'{name}')"):
        write_report([run])
    with pytest.raises(StoreError, match=rf"(?=.*run\.json)(?=.*'{name}')"):
        load_fit(run)  # used by `fit --resume`


@pytest.mark.slow
def test_foreign_files_are_not_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "pics").mkdir()
    (tmp_path / "pics" / "sizes.png").write_text("precious")
    with pytest.raises(StoreError, match=rf"(?=.*{tmp_path}/pics\b)(?=.*--out)"):
        write_report([folder / "scrlm"], tmp_path / "pics.html")
    assert (tmp_path / "pics" / "sizes.png").read_text() == "precious"
    (tmp_path / "odd.html").write_bytes(b"\xff\xfe")
    with pytest.raises(StoreError, match=rf"(?=.*{tmp_path}/odd\.html)(?=.*--out)"):
        write_report([folder / "scrlm"], tmp_path / "odd.html")
    for _ in range(2):  # our own report is replaced
        write_report([folder / "kmeans"], tmp_path / "mine.html")


def test_new_report_replaces_all_figures_of_the_old_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, figures = tmp_path / "r.html", tmp_path / "r"
    several = write_report([folder / "scrlm", folder / "kmeans"], page)
    old = {path.name: path.read_bytes() for path in figures.iterdir()}
    assert {Path(name).name for name in several.figures} | {"report.json"} == old.keys()

    def fail(place: Location, text: str) -> None:
        if place.url == str(page):
            raise OSError(28, "No space left on device")
        Path(place.url).write_text(text)

    with monkeypatch.context() as patched:
        patched.setattr(Location, "write_text", fail)
        with pytest.raises(OSError, match="No space"):
            write_report([folder / "kmeans"], page)
    assert {path.name: path.read_bytes() for path in figures.iterdir()} == old
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "r.html"]
    (figures / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match=rf"(?=.*{figures})(?=.*notes\.txt)"):
        write_report([folder / "kmeans"], page)
    (figures / "notes.txt").unlink()
    one = write_report([folder / "kmeans"], page)
    names = {Path(name).name for name in one.figures}
    assert {path.name for path in figures.iterdir()} == names | {"report.json"}
    assert not names & old.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "r.html"]


def test_damaged_items_are_named(folder: Path, tmp_path: Path) -> None:
    items = tmp_path / "items.parquet"
    texts = pa.table({"item": [f"text {i}" for i in range(260)]})
    pq.write_table(texts, items, write_page_checksum=True, use_dictionary=False)
    content = bytearray(items.read_bytes())
    content[400] ^= 1
    items.write_bytes(content)
    with pytest.raises(StoreError, match=str(items)):
        write_report([folder / "scrlm"], tmp_path / "r.html", items=items)


def test_report_of_a_run_without_clusters(folder: Path, tmp_path: Path) -> None:
    fit = scrlm_dask.FitConfig(rho=1e-6, preprocess="none", n_candidates=50)
    with pytest.warns(scrlm_dask.ScrlmWarning, match="min_neighbors") as caught:
        scrlm_dask.fit(folder / "x.zarr", fit, out=tmp_path / "none")
    page = unescape(Path(write_report([tmp_path / "none"]).page).read_text())
    assert "0 clusters" in page
    assert str(caught[0].message) in page


@pytest.mark.slow
@needs_browser
def test_browser_shows_and_prints_the_report(folder: Path, tmp_path: Path) -> None:
    items = folder / "pictures.npy"
    np.save(items, np.load(folder / "x.npy").reshape(-1, SIDE, SIDE))
    runs = [folder / "scrlm", folder / "kmeans"]
    done = write_report(runs, tmp_path / "r.html", items=items)
    with browsing(tmp_path) as page:
        page.open(f"file://{done.page}")
        broken = "[...document.images].filter(i => !i.complete || !i.naturalWidth).length"
        assert page.ask(broken) == 0
        assert page.ask("document.images.length") > 40
        wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        assert page.ask(wide)  # no horizontal scrolling
        assert "4 clusters" in page.text()
        page.screenshot(tmp_path / "report.png")
        assert page.pdf().startswith(b"%PDF")
        assert page.complaints == []
        assert {url.split(":")[0] for url in page.requested} <= {"file", "data"}


HOSTILE = (
    "<script>window.hacked = 1</script>",
    "\"><img src=x onerror='window.hacked = 1'>",
    "</script></style></title><svg onload=window.hacked=1>",
    "<a href='javascript:window.hacked=1'>x</a>",
    r"$\bad{$",
)


@pytest.mark.slow
@needs_browser
def test_hostile_texts_of_a_run_stay_text_in_a_browser(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / HOSTILE[1].replace("/", "")
    shutil.copytree(folder / "scrlm", run)
    with (run / "events.jsonl").open("a") as events:
        for text in HOSTILE:
            note = {"time": 0, "event": "Note", "text": text, "warning": True}
            events.write(json.dumps(note) + "\n")
    items = tmp_path / "items.npy"
    np.save(
        items, np.array([HOSTILE[i % len(HOSTILE)] for i in range(len(np.load(folder / "x.npy")))])
    )
    other = tmp_path / HOSTILE[-1]
    shutil.copytree(folder / "kmeans", other)
    done = write_report([run, other], tmp_path / "r.html", items=items)
    with browsing(tmp_path) as page:
        page.open(f"file://{done.page}")
        text = page.text()
        assert all(hostile in text for hostile in HOSTILE)
        assert page.ask("window.hacked") is None
        assert page.ask("document.querySelectorAll('[onerror], [onload]').length") == 0
        assert page.ask("document.querySelectorAll('a[href^=javascript]').length") == 0
        assert page.complaints == []
        assert {url.split(":")[0] for url in page.requested} <= {"file", "data"}
