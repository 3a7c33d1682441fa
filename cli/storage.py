"""Storage options as people write them. They may be credentials: no message shows a value."""

from __future__ import annotations

import json
from typing import Any

import click

_HINT = "--storage-option"
_JSON_WORDS = ("true", "false", "null")


def parse_storage_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """One mapping of NAME=VALUE texts; dots in NAME nest, later ones win.

    VALUE is text, digits included (keys and passwords may be all digits), unless it is true, false
    or null, or begins like a JSON object, list or text. A text that is a JSON object as a whole
    brings anything else, such as numbers.
    """
    from scrlm_dask.storage.locations import merged

    options: dict[str, Any] = {}
    for text in texts:
        if text.startswith("{"):
            options = merged(options, _json(text, "the JSON object"))
            continue
        name, equals, value = text.partition("=")
        names = name.split(".")
        if not equals or not all(names):
            raise click.BadParameter(
                "an option is written NAME=VALUE, such as anon=true, or as a JSON object; "
                "what was given is not shown, since it may be a secret",
                param_hint=_HINT,
            )
        nested: Any = _value(name, value)
        for part in reversed(names):
            nested = {part: nested}
        options = merged(options, nested)
    return options


def _value(name: str, text: str) -> Any:
    if text in _JSON_WORDS or text.startswith(("{", "[", '"')):
        return _json(text, f"the value of {name}")
    return text


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise click.BadParameter(f"{what} is not valid JSON", param_hint=_HINT) from None
