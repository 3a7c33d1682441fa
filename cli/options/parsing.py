"""Callbacks of options that parse numbers, sizes, durations and storage options."""

from __future__ import annotations

import json
import math
from typing import Any

import click

_STORAGE_OPTION = "--storage-option"
_JSON_WORDS = ("true", "false", "null")


def parse_auto(
    number: Any, expected: str, context: click.Context, parameter: click.Parameter, text: str
) -> float | str:
    """Return "auto", or the result of `number`, which raises ValueError, for the text."""
    try:
        return text if text == "auto" else number(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is neither auto nor {expected}") from error


def parse_axes(text: str) -> int:
    """Return a number of axes; digits alone, unlike the texts that `int` accepts."""
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def parse_size(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return the bytes of a size such as 64MB, in Dask's notation."""
    from dask.utils import parse_bytes

    if text is None:
        return None
    option = parameter.opts[0]
    try:
        # Dask reads a unit alone, or an empty text, as one unit
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


def parse_seconds(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> float | None:
    """Return the seconds of a duration such as 55m, in Dask's notation."""
    from dask.utils import parse_timedelta

    if text is None:
        return None
    invalid = click.BadParameter(
        f"{text!r} is not a duration; write it like 55m", param_hint=parameter.opts[0]
    )
    try:
        seconds = float(parse_timedelta(text))
    # an empty text raises an IndexError in Dask
    except (KeyError, ValueError, IndexError, OverflowError) as error:
        raise invalid from error
    if not math.isfinite(seconds):
        raise invalid
    return seconds


def parse_storage(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any] | None:
    """Return the storage options, if there are any."""
    return parse_storage_options(texts) if texts else None


def parse_storage_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return one mapping of NAME=VALUE texts; dots in NAME nest, later texts win.

    VALUE is text, digits included (keys and passwords may be all digits), unless it is true, false
    or null, or begins like a JSON object, list or text. Other values, such as numbers, need a text
    that is a JSON object as a whole.
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
                param_hint=_STORAGE_OPTION,
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


def _json(text: str, part: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise click.BadParameter(f"{part} is not valid JSON", param_hint=_STORAGE_OPTION) from None
