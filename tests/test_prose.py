"""Source, documents and help are in plain English, and tests do not pin the wording of messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import prose
import pytest
from click.testing import CliRunner
from scrlm_cli.main import main

# Texts that are hard to read. Each must be found by a rule.
HARD_TO_READ = (
    "whoever expects more of them keeps that",
    "What is known before the first row is read, and all that a run is known again by.",
    "Where centers and weights come from, and what they are known again by.",
    "what is not compared yet is not what the rows were known by",
    "Who may compute: as many tasks of a worker as it has threads that do not read ahead. "
    "Nobody who has a permit waits for another task, so everybody gets one.",
    "NumPy's .npy files: their header, and one number a row in one, local or remote, of which "
    "whoever needs a piece reads it.",
    "Counts of positive numbers whose range nobody knows before the last one is seen.",
    "who loses a worker or the scheduler meanwhile, or whose points cannot be prepared, hears of "
    "it from the blocks",
    "The names of what is kept, in the order in which a run comes to it; or nothing is kept.",
    "files of the features were written while an attempt read them, or nobody can tell that they "
    "were not, so what it kept is not trusted: everything is computed again",
    "the scheduler at tls://host:8786 lets nobody in without a certificate",
    "has the mode F, of which nobody knows what is white; convert it to 8 bits",
    "Of processes of other machines nobody knows here; whoever lost its directory to another "
    "leaves the other's files alone.",
    "Say which bandwidth the Zarr store FEATURES speaks for, and how clearly.",
    "At most so many; without it, as many as are there.",
    "End with code 4 when no block was finished for so long; 0 waits for ever.",
    "Default: found out.",
    "The listener of those who do not watch: they still hear warnings.",
    "A result that is an answer but perhaps not the one that was hoped for.",
    "Raised inside a callback of C code, where nobody hears it: again, a little later.",
)
PLAIN = (
    "Keep a higher limit if the user has configured one.",
    "Maximum number of clusters (default: determined from the data).",
    "there is no run at PATH; the value is no longer used",
    "Return one label per row.",
    "`beside` and `nobody` are code here",
)


def found_in(text: str) -> list[prose.Offence]:
    return list(prose.offences([prose.Text("text", 1, text, is_statement=True)]))


@pytest.mark.parametrize("text", HARD_TO_READ)
def test_texts_that_are_hard_to_read_are_found(text: str) -> None:
    """In a message, without the rule on how docstrings start."""
    assert list(prose.offences([prose.Text("text", 1, text)]))


@pytest.mark.parametrize("text", PLAIN)
def test_plain_texts_pass(text: str) -> None:
    assert found_in(text) == []


def test_prose_is_found_where_it_is() -> None:
    code = '"""Whoever."""\n\n# nobody\nx = f"somebody {y} is here"  # noqa\n'
    texts = list(prose.texts_of_code("x.py", code))
    assert [(o.line, o.words.lower()) for o in prose.offences(texts)] == [
        (1, "whoever"),
        (4, "somebody"),
        (3, "nobody"),
    ]
    page = "# Anew\n\n```sh\nscrlm fit  # so many\n```\nGoes\non `anew`\n"
    texts = list(prose.texts_of_markdown("x.md", page))
    assert sorted((o.line, o.words) for o in prose.offences(texts)) == [
        (1, "Anew"),
        (4, "so many"),
        (6, "Goes on"),
    ]


@pytest.mark.parametrize("path", prose.source_files(), ids=lambda p: str(p.relative_to(prose.ROOT)))
def test_files_are_in_plain_english(path: Path) -> None:
    listed = "\n".join(str(offence) for offence in prose.offences(prose.texts_of(path)))
    assert listed == ""


def commands(group: click.Group, name: str = "scrlm") -> Iterator[tuple[str, click.Command]]:
    yield name, group
    for child, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {child}")
        else:
            yield f"{name} {child}", command


COMMANDS = dict(commands(main))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_in_plain_english(name: str) -> None:
    shown = CliRunner().invoke(main, [*name.split()[1:], "--help"])
    assert shown.exit_code == 0
    options = [
        prose.Text(f"{name} {parameter.name}", 1, parameter.help or "", is_statement=True)
        for parameter in COMMANDS[name].params
        if isinstance(parameter, click.Option)
    ]
    texts = [prose.Text(name, 1, shown.output), *options]
    assert [str(offence) for offence in prose.offences(texts)] == []


@pytest.mark.parametrize("path", prose.test_files(), ids=lambda p: str(p.relative_to(prose.ROOT)))
def test_tests_assert_facts(path: Path) -> None:
    assert [str(offence) for offence in prose.pins_of(path)] == []


def test_pinned_messages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(prose, "_messages", lambda: "the file {} does not exist; check the path")
    test = tmp_path / "test_x.py"
    test.write_text(
        "@pytest.mark.parametrize('words', ['file x.npy does not exist'])\n"
        "def test(words):\n"
        "    '''The file does not exist.'''\n"
        "    open_file('does not exist')\n"
        "    with pytest.raises(OSError, match='check the path'):\n"
        "        assert 'does not exist' in text\n"
        "    assert '--overwrite' in text and 'x.npy' in text\n"
    )
    listed = sorted((offence.line, offence.words) for offence in prose.pins_of(test))
    assert listed == [(1, "does not exist"), (5, "check the path"), (6, "does not exist")]
