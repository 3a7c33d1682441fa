"""Print random texts of the project for a reader: messages, help texts, docstrings, paragraphs.

`python tests/sample_texts.py --before REV` shows messages and help texts as they were at a revision
and as they are now; `--docstrings 20 --paragraphs 10` shows present ones only.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
Read = Callable[[str], str]


def read_at(revision: str | None) -> tuple[list[str], Read]:
    """Return the tracked files of a revision, or of the working tree, and how to read one."""

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True
        ).stdout

    if revision is None:
        return git("ls-files").splitlines(), lambda name: (ROOT / name).read_text()
    names = git("ls-tree", "-r", "--name-only", revision).splitlines()
    return names, lambda name: git("show", f"{revision}:{name}")


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield functions with their full names, and the module itself with an empty one."""
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    while stack:
        prefix, node = stack.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}".lstrip(".")
                stack.append((name, child))
                yield name, child
            else:
                stack.append((prefix, child))


def source_of(names: list[str]) -> list[str]:
    return [n for n in names if n.startswith(("scrlm_dask/", "cli/")) and n.endswith(".py")]


def errors_at(revision: str | None) -> dict[str, str]:
    """Return messages of raised errors by file, function and position in the function."""
    names, read = read_at(revision)
    messages = {}
    for path in source_of(names):
        for name, node in functions(ast.parse(read(path))):
            if isinstance(node, ast.ClassDef):
                continue
            raised = [n.exc for n in ast.walk(node) if isinstance(n, ast.Raise)]
            calls = [n for n in raised if isinstance(n, ast.Call) and n.args]
            for position, call in enumerate(calls):
                messages[f"{path} {name} #{position}"] = text_of(call.args[0])
    return {key: text for key, text in messages.items() if len(text.split()) > 3}


def help_at(revision: str | None) -> dict[str, str]:
    """Return help texts of options by the option."""
    names, read = read_at(revision)
    texts = {}
    for path in source_of(names):
        for node in ast.walk(ast.parse(read(path))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            option = text_of(node.args[0])
            (text,) = [k.value for k in node.keywords if k.arg == "help"] or [None]
            if option.startswith("--") and text is not None:
                texts[f"{path} {option}"] = text_of(text)
    return texts


def text_of(node: ast.AST) -> str:
    """Return the text of a literal; expressions in an f-string are shown in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(value) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    return ast.unparse(node)


def docstrings() -> dict[str, str]:
    names, read = read_at(None)
    found = {}
    for path in source_of(names):
        for name, node in functions(ast.parse(read(path))):
            text = ast.get_docstring(node)  # type: ignore[arg-type]
            if text:
                found[f"{path} {name}"] = text
    return found


def paragraphs() -> dict[str, str]:
    names, read = read_at(None)
    pages = [n for n in names if n.endswith(".md") and n != "docs/api.md"]
    found = {}
    for path in pages:
        text = re.sub(r"^```.*?^```$", "", read(path), flags=re.M | re.S)
        for number, part in enumerate(re.split(r"\n\s*\n", text)):
            if len(part.split()) > 15 and not part.lstrip().startswith(("|", "#", "<!--")):
                found[f"{path} paragraph {number}"] = part.strip()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", metavar="REV", help="revision to compare with")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=10, help="messages and help texts each")
    parser.add_argument("--docstrings", type=int, default=0)
    parser.add_argument("--paragraphs", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    if options.before:
        for texts_at in (errors_at, help_at):
            before, now = texts_at(options.before), texts_at(None)
            for key in rng.sample(sorted(before), options.number):
                print(f"{key}\n  before: {before[key]}\n  now:    {now.get(key, '(moved)')}\n")
    for number, texts in ((options.docstrings, docstrings()), (options.paragraphs, paragraphs())):
        for key in rng.sample(sorted(texts), number):
            print(f"{key}\n{texts[key]}\n")


if __name__ == "__main__":
    main()
