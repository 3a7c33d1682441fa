"""README and docs/ are correct: their code runs at a small size, and their links have targets.

A block of Python or shell is run in the order of its page, in a folder with some files, unless the
line before it is `<!-- not run: why -->`. Commands that are not run are parsed.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from itertools import groupby
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from scrlm_cli.main import main

import scrlm_dask

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# all that people read; links of notebooks are checked with them
LINKING = [*ROOT.glob("*.md"), *ROOT.glob("[!.]*/*.md"), *ROOT.glob("notebooks/*.ipynb")]
BLOCK = re.compile(r"^(?P<before>[^\n]*)\n```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
NOT_RUN = re.compile(r"<!-- (not run: \S.*|demo command|test command) -->")
LINK = re.compile(r"\]\((?!https?://)([^)\s]*)\)")
SEPARATORS = ("&&", "&", ";", "|")

# numbers of the pages that would take long, by command and option
SMALL = {
    ("synth", "--rows"): "3000",
    ("synth", "--features"): "32",
    ("synth", "--clusters"): "6",
    ("kmeans", "--clusters"): "10",
    ("cut", "--clusters"): "3",
}
# take long even so, and are run by the notebook on the paper
ELSEWHERE = {"bounds", "bandwidth", "methods", "images"}
CLUSTER = {"--nworkers", "--scheduler", "--scheduler-file", "--cluster"}


@dataclass(frozen=True)
class Block:
    line: int
    kind: str
    text: str
    runs: bool


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            text.count("\n", 0, match.start("text")) + 1,
            match["kind"],
            match["text"],
            NOT_RUN.fullmatch(match["before"]) is None,
        )
        for match in BLOCK.finditer(text)
    ]


def commands_in(block: Block) -> Iterator[list[str]]:
    """Yield the arguments of every `scrlm` in a block of shell."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        for separates, group in groupby(words, lambda word: word in SEPARATORS):
            program, *arguments = list(group)
            if not separates and Path(program).name == "scrlm":
                yield arguments


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files that pages use: stores, shards, a table, pictures of the rows."""
    folder = tmp_path_factory.mktemp("prepared")
    rng = np.random.default_rng(0)
    mixture = scrlm_dask.MixtureSpec(n_features=32, n_clusters=6, outliers=0.2)
    for name, rows in (("features", 2000), ("new", 500)):
        scrlm_dask.synth(folder / f"{name}.zarr", rows, mixture, chunk_bytes=2**16)
    (folder / "embeddings").mkdir()
    for shard in range(2):
        np.save(folder / "embeddings" / f"{shard}.npy", rng.normal(size=(300, 8)).astype("float32"))
    np.save(folder / "pictures.npy", rng.integers(0, 255, (2000, 4, 4), np.uint8))
    (folder / "photos").mkdir()
    for number in range(3):
        Image.fromarray(rng.integers(0, 255, (9, 9, 3), np.uint8)).save(
            folder / "photos" / f"{number}.png"
        )
    table = "x,y,kind,comment\n1.5,2,cat,a\n2.5,1,dog,b\n0,0,cat,c\n"
    (folder / "table.csv").write_text(table)
    return folder


def command_in(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command, or the subcommand of a group, and its own arguments."""
    command, *rest = main.commands[words[0]], *words[1:]
    if isinstance(command, click.Group):
        command, *rest = command.commands[rest[0]], *rest[1:]
    return command, rest


def small(arguments: list[str]) -> list[str]:
    """Return the command for few rows, in threads of this process unless it names a cluster."""
    command, _ = command_in(arguments)
    before = zip(["", *arguments], arguments, strict=False)
    shrunk = [SMALL.get((arguments[0], option), value) for option, value in before]
    local = any("--nworkers" in parameter.opts for parameter in command.params)
    return shrunk + ["--nworkers", "0"] * (local and not CLUSTER & set(arguments))


def run_command(arguments: list[str], where: str) -> None:
    result = CliRunner(env={"DASK_SCHEDULER_ADDRESS": None}).invoke(main, small(arguments))
    assert result.exit_code == 0, f"{where}: scrlm {shlex.join(arguments)}\n{result.output}"


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_run(
    page: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warnings about the few rows are ignored."""
    blocks = [block for block in blocks_of(page) if block.runs]
    if any(block.kind in ("python", "sh") for block in blocks):
        shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scrlm_dask.ScrlmWarning)
        for block in blocks:
            where = f"{name_of(page)}:{block.line}"
            if block.kind == "python":
                exec(compile(block.text, where, "exec"), names)
            elif block.kind == "sh":
                for arguments in commands_in(block):
                    if command_in(arguments)[0].name not in ELSEWHERE:
                        run_command(arguments, where)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_have_these_options(page: Path) -> None:
    for block in blocks_of(page):
        if block.kind != "sh":
            continue
        for words in commands_in(block):
            command, arguments = command_in(words)
            try:
                with command.make_context(words[0], arguments, **main.context_settings):
                    pass
            except click.UsageError as error:
                pytest.fail(f"{name_of(page)}:{block.line}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_are_of_a_known_kind(page: Path) -> None:
    """Python blocks compile even if they are not run; shell blocks that run contain only scrlm."""
    assert page.read_text().count("\n```") == 2 * len(blocks_of(page))
    for block in blocks_of(page):
        where = f"{name_of(page)}:{block.line}"
        assert block.kind in ("python", "sh", "text", "pycon"), where
        if block.kind == "python":
            compile(block.text, where, "exec")
        if block.kind == "sh" and block.runs:
            lines = [line for line in block.text.splitlines() if not line.startswith("#")]
            assert len(list(commands_in(block))) == len(lines), where


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def prose_of(page: Path) -> str:
    if page.suffix == ".md":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("page", sorted(LINKING), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose_of(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        if anchor:
            assert anchor in anchors_of(target), f"{name_of(page)} links to {link}"


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    names = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
    names += [page.name for page in (ROOT / "notebooks").glob("*.ipynb")]
    assert [name for name in names if name not in index] == []


def test_the_reference_is_that_of_the_docstrings() -> None:
    spec = spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    shown = {name for names in module.GROUPS.values() for name in names}
    assert shown == set(scrlm_dask.__all__) - {"errors", "events", "results"}
    assert module.PAGE.read_text() == module.render(), "run `python docs/make_api.py`"
