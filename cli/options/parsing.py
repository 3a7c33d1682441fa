"""Sizes as people write them."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    pass


def parse_size(option: str, text: str) -> int:
    """Bytes of a size like 64MB, in Dask's notation."""
    from dask.utils import parse_bytes

    try:
        # Dask takes a unit alone, and nothing at all, for one of it
        n_bytes = int(parse_bytes(text)) if text.strip() else 0
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"{text!r} is not a size; write it like 64MB", param_hint=option
        ) from error
    if n_bytes < 1:
        raise click.BadParameter(
            f"{text!r} is no size at all; write it like 64MB", param_hint=option
        )
    return n_bytes


def parse_seconds(option: str, text: str) -> float:
    from dask.utils import parse_timedelta

    refused = click.BadParameter(
        f"{text!r} is not a duration; write it like 55m", param_hint=option
    )
    try:
        seconds = float(parse_timedelta(text))
    # Dask raises an IndexError at nothing at all
    except (KeyError, ValueError, IndexError, OverflowError) as error:
        raise refused from error
    if not math.isfinite(seconds):
        raise refused
    return seconds


_HINT = "--storage-option"


_JSON_WORDS = ("true", "false", "null")


def parse_storage_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """One mapping of NAME=VALUE texts; dots in NAME nest, later ones win.

    VALUE is text, digits included (keys and passwords may be all digits), unless it is true, false
    or null, or begins like a JSON object, list or text. A text that is a JSON object as a whole
    brings anything else, such as numbers.
    """
    from scrlm_dask.storage.locations import merge_options

    options: dict[str, Any] = {}
    for text in texts:
        if text.startswith("{"):
            options = merge_options(options, _json(text, "the JSON object"))
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
        options = merge_options(options, nested)
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
