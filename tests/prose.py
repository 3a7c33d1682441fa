"""Find words that plain technical English does not need, in source, documents and help.

`python tests/prose.py [PATH ...]` lists what it finds; `--pins` lists literals in tests that pin
the wording of a message. `tests/test_prose.py` runs both over the repository.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("scrlm_dask", "cli", "benchmarks", "notebooks")
DOCUMENTS = ("*.md", "docs/*.md", "deploy/*.md", "benchmarks/*.md", "deploy/*/*.md")
OTHER_TEXT = (
    *("pyproject.toml", ".ci/run", ".pre-commit-config.yaml", "scrlm_dask/*/*.html"),
    *(
        "deploy/*/*.yaml",
        "deploy/*/*.yml",
        "deploy/*/*.sh",
        "deploy/*/*.sbatch",
        "deploy/*/Dockerfile",
    ),
)
# These files quote the words themselves.
EXEMPT = ("tests/prose.py", "tests/test_prose.py")

_UNIT = (
    "row|iteration|worker|block|thread|second|minute|hour|pass|task|run|cluster|candidate|machine|"
    "process|file|job|seed|chunk|core|pair|phase|level|step|node"
)
_COUNTED = (
    r"one|two|three|four|eight|\d+|read|number|byte|block|second|row|label|weight|time|value|line|"
    r"file|task|pass|GB|MB|MiB|kB|FLOPs|distance|product|reads|bytes|numbers|seconds|times|rows"
)


@dataclass(frozen=True)
class Rule:
    """A pattern that plain technical English does not need, and the usual word."""

    pattern: re.Pattern[str]
    instead: str


def _rule(pattern: str, instead: str) -> Rule:
    """Compile a pattern of whole words; a line may end between two of them."""
    spaced = pattern.replace(" ", r"\s+")
    return Rule(re.compile(rf"\b(?:{spaced})\b", re.IGNORECASE), instead)


RULES = (
    _rule("whoever|nobody|somebody|everybody", "the user, the worker, no process"),
    _rule("whatever", "any, regardless of"),
    _rule("those (?:that|who|which)", "name the things"),
    _rule("(?:goes|go|going|went|gone) on", "resumes, continues"),
    _rule("anew", "again"),
    _rule("beside", "next to, in addition to"),
    Rule(re.compile(r",\s+too\b", re.IGNORECASE), "also"),
    _rule("(?:is|are|was|be|been) told|tells?|hears?|heard", "reports, prints, receives"),
    _rule("says?|said", "reports, prints, states"),
    _rule("speaks? (?:for|of|as)|spoken of", "suggests, describes"),
    _rule("lies?|lay|lying", "is, is stored"),
    _rule(
        r"(?<!there\s)(?<!where\s)(?:is|are|was|were) no"
        r"(?= (?!longer|more|less|fewer|larger|smaller|greater|better|worse|faster|slower))",
        "is not a",
    ),
    _rule("so many|so long|so much|so few", "N, the given number, this long"),
    _rule("for ever", "without limit"),
    # `--on-error refuse` is a value, shown in quotes or in a list of choices
    _rule(r"(?<![\"'|\[])(?<!default:\s)refus(?:e|es|ed|al|ing)(?![\"'|])", "reject, raise"),
    _rule("f(?:ou|i)nds? out|finding out", "detect"),
    _rule("mend(?:s|ed|ing)?", "fix"),
    _rule(
        "ask(?:s|ed|ing)? (?:for|of)|wants?|wanted|wish(?:es)?|hoped for",
        "requires, expects, requested",
    ),
    _rule("known (?:again )?by|known again|known of", "identified by"),
    _rule("(?:what|all that) (?:is|was|they|it) (?:has |have )?kept|is kept, ", "checkpoint"),
    _rule("no matter|let be|lets? (?:it|them) be|as (?:it|they) pleases?", "does not matter"),
    _rule("all the same(?! \\w)", "regardless"),
    _rule("glanc(?:e|es|ing)", "quick check"),
    _rule("rungs?", "trial bandwidth"),
    _rule("shadows?", "projection"),
    _rule("poison(?:s|ed|ous)?", "block that kills its workers"),
    _rule("stragglers?", "draining task"),
    _rule("keepers?", "checkpoint scope"),
    _rule("rivals?|peers?", "baselines, other libraries"),
    _rule("the house|rooms?", "architecture, folder"),
    _rule("badly served|serves? (?:a |the )?rows?", "far from its center"),
    _rule(rf"(?:{_COUNTED}) an? (?:{_UNIT})(?! of|\w)", "per row, per iteration"),
)
# A docstring, comment or help text that starts like this is a noun, not a statement.
RELATIVE_START = re.compile(
    r"(?:What|Whether|Who|Whose|Where|How|Of (?:the|a|an|all)|That)\b(?!.*\?)"
)


@dataclass(frozen=True)
class Text:
    """A piece of prose and its place."""

    path: str
    line: int
    text: str
    is_statement: bool = False  # docstring, comment or help, which must not start as a noun clause


@dataclass(frozen=True)
class Offence:
    """A piece of prose that breaks a rule."""

    path: str
    line: int
    words: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.words!r}; write: {self.instead}"


def offences(texts: Iterable[Text]) -> Iterator[Offence]:
    """Yield every match of a rule in the texts; code in backquotes does not count."""
    for text in texts:
        prose = re.sub(r"``?[^`]+``?", "`code`", text.text)
        if text.is_statement and (start := RELATIVE_START.match(prose.strip())):
            yield Offence(text.path, text.line, start.group(), "start with a verb or a noun")
        for rule in RULES:
            for match in rule.pattern.finditer(prose):
                line = text.line + prose.count("\n", 0, match.start())
                yield Offence(text.path, line, " ".join(match.group().split()), rule.instead)


# --- where prose is -------------------------------------------------------------------------------


def texts_of(path: Path) -> Iterator[Text]:
    """Yield the prose of a file, by its suffix."""
    name, content = path.relative_to(ROOT).as_posix(), path.read_text()
    if path.suffix == ".py":
        yield from texts_of_code(name, content, literals=not name.startswith("tests/"))
    elif path.suffix == ".ipynb":
        yield from _texts_of_notebook(name, content)
    elif path.suffix == ".md":
        yield from texts_of_markdown(name, content)
    elif path.suffix == ".html":
        visible = re.sub(
            r"<(style|script)\b.*?</\1>|\{[%{].*?[%}]\}|<[^>]*>", _blank, content, flags=re.S
        )
        yield Text(name, 1, visible)
    else:
        for number, line in enumerate(content.splitlines(), 1):
            if "#" in line and not line.startswith("#!"):
                yield Text(name, number, line.partition("#")[2].strip())


def _blank(match: re.Match[str]) -> str:
    """Replace markup by as many empty lines."""
    return "\n" * match.group().count("\n") + " "


def texts_of_code(name: str, code: str, literals: bool = True) -> Iterator[Text]:
    """Yield docstrings, comments and, unless told otherwise, messages of Python code."""
    tree = ast.parse(code)
    docstrings = {id(node) for node in _docstrings(tree)}
    for node in ast.walk(tree):
        if id(node) in docstrings:
            assert isinstance(node, ast.Constant)
            yield Text(name, node.lineno, _without_examples(node.value), is_statement=True)
        elif literals and (text := _message(node)) is not None:
            yield Text(name, node.lineno, text)  # type: ignore[attr-defined]
    yield from _comments(name, code)


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def _without_examples(docstring: str) -> str:
    return "\n".join(
        "" if line.lstrip().startswith((">>>", "...")) else line for line in docstring.splitlines()
    )


def _message(node: ast.AST) -> str | None:
    """Return a string of at least three words; expressions inside an f-string become {}."""
    if isinstance(node, ast.JoinedStr):
        parts = [p.value if isinstance(p, ast.Constant) else "{}" for p in node.values]
        text = "".join(str(part) for part in parts)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    else:
        return None
    return text if len(re.findall(r"[A-Za-z]{2,}", text)) >= 3 else None


def _comments(name: str, code: str) -> Iterator[Text]:
    """Yield comments; comments on successive lines are one text."""
    lines: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type != tokenize.COMMENT:
            continue
        text, row = token.string.lstrip("#: "), token.start[0]
        if text.startswith(("noqa", "type:", "pragma")):
            continue
        if lines and row == last + 1:
            lines.append(text)
        else:
            if lines:
                yield Text(name, first, "\n".join(lines), is_statement=True)
            lines, first = [text], row
        last = row
    if lines:
        yield Text(name, first, "\n".join(lines), is_statement=True)


def texts_of_markdown(name: str, content: str) -> Iterator[Text]:
    """Yield a page without its code, and the comments in its blocks of code."""
    prose: list[str] = []
    kind = None
    for number, line in enumerate(content.splitlines(), 1):
        if line.startswith("```"):
            kind = None if kind is not None else line[3:] or "text"
            prose.append("")
        elif kind is None:
            prose.append(re.sub(r"\]\([^)]*\)|<!--.*?-->", "]", line))
        else:
            prose.append("")
            if kind in ("sh", "python") and "#" in line:
                yield Text(name, number, line.partition("#")[2].strip())
    yield Text(name, 1, "\n".join(prose))


def _texts_of_notebook(name: str, content: str) -> Iterator[Text]:
    for cell in json.loads(content)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield from texts_of_markdown(name, source)
        else:
            code = re.sub(r"^[%!].*$", "", source, flags=re.M)
            yield from texts_of_code(name, code)


def source_files() -> list[Path]:
    """Return all files whose prose is checked."""
    found = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    found += (ROOT / "tests").rglob("*.py")
    found += (ROOT / "notebooks").glob("*.ipynb")
    found += [path for pattern in (*DOCUMENTS, *OTHER_TEXT) for path in ROOT.glob(pattern)]
    return sorted(path for path in found if path.relative_to(ROOT).as_posix() not in EXEMPT)


# --- literals in tests that pin the wording of a message ------------------------------------------

_WORDS = re.compile(r"(?!scrlm )(?<![\w\-./'\"])[a-z]{2,}(?:,? [a-z]{2,})+(?![\w\-./'\"(=])")


@cache
def _messages() -> str:
    """Return all messages of the package and the command line, one per line."""
    lines = []
    for folder in ("scrlm_dask", "cli"):
        for path in (ROOT / folder).rglob("*.py"):
            texts = texts_of_code(path.name, path.read_text())
            lines += [" ".join(text.text.split()) for text in texts if not text.is_statement]
    return "\n".join(lines)


# Calls whose arguments are expected words, and calls that a literal may pass through.
_EXPECTING = re.compile(r"refus|reject|raises|warns|parametrize|expect")
_TRANSPARENT = {
    *("search", "match", "fullmatch", "findall", "count", "index", "startswith", "endswith"),
    *("any", "all", "join", "sorted", "set", "tuple", "list", "dict", "param", "escape", "compile"),
}


def pins_of(path: Path) -> Iterator[Offence]:
    """Yield expected texts of a test file that repeat two or more words of a message in a row.

    Facts are not words in a row: paths, numbers, names of options, parameters and classes.
    """
    name = path.relative_to(ROOT).as_posix()
    for literal in _expected(ast.parse(path.read_text()), at_stake=True):
        for match in _WORDS.finditer(literal.value.replace("\\", "")):
            if re.search(rf"\b{re.escape(match.group())}\b", _messages()):
                yield Offence(name, literal.lineno, match.group(), "the class and the facts")


def _expected(node: ast.AST, at_stake: bool) -> Iterator[ast.Constant]:
    """Yield strings that a test expects: in asserts, `match=`, tables of cases and helpers."""
    if isinstance(node, ast.Constant):
        if at_stake and isinstance(node.value, str):
            yield node
        return
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for decorator in node.decorator_list:
            yield from _expected(decorator, False)
        children = node.body
        at_stake = False
    elif isinstance(node, ast.Assert):
        children = [node.test]  # its message is for the reader of a failure
        at_stake = True
    elif isinstance(node, ast.Call):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        at_stake = bool(_EXPECTING.search(called)) or (at_stake and called in _TRANSPARENT)
    elif isinstance(node, ast.keyword) and node.arg in ("match", "words"):
        at_stake = True
    for child in children:
        yield from _expected(child, at_stake)


def test_files() -> list[Path]:
    """Return the test files whose literals are checked."""
    found = (ROOT / "tests").rglob("*.py")
    return sorted(path for path in found if path.relative_to(ROOT).as_posix() not in EXEMPT)


def _main(arguments: list[str]) -> int:
    pins = "--pins" in arguments
    given = [Path(a).resolve() for a in arguments if a != "--pins"]
    everything = test_files() if pins else source_files()
    paths = [p for p in everything if not given or any(p.is_relative_to(g) for g in given)]
    texts = (text for path in paths for text in texts_of(path))
    listed = [o for path in paths for o in pins_of(path)] if pins else list(offences(texts))
    print("\n".join(str(offence) for offence in listed))
    print(f"{len(listed)} in {len(paths)} files")
    return bool(listed)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
