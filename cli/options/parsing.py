"""Parse numbers, sizes, durations and storage options of the command line."""

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
    """Return "auto" or the result of `number(text)`; `expected` describes a number in errors."""
    try:
        return text if text == "auto" else number(text)
    except ValueError as error:
        raise click.BadParameter(f"must be auto or {expected}, got {text!r}") from error


def parse_auto_or_none(
    number: Any, expected: str, context: click.Context, parameter: click.Parameter, text: str | None
) -> float | str | None:
    """Return None if the option is not given, otherwise the result of `parse_auto`."""
    return None if text is None else parse_auto(number, expected, context, parameter, text)


def parse_digits(text: str) -> int:
    """Return an integer; accept digits only, not the signs and spaces that `int` accepts."""
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def parse_size(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Convert a size in Dask's notation, such as 64MB, to bytes."""
    from dask.utils import parse_bytes

    if text is None:
        return None
    option = parameter.opts[0]
    try:
        # Dask inserts a 1 before a text without a number, so an empty text would be 1 byte.
        n_bytes = int(parse_bytes(text)) if text.strip() else 0
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f"must be a size such as 64MB, got {text!r}", param_hint=option
        ) from error
    if n_bytes < 1:
        raise click.BadParameter(
            f"must be at least 1 byte, such as 64MB, got {text!r}", param_hint=option
        )
    return n_bytes


def parse_seconds(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> float | None:
    """Convert a duration in Dask's notation, such as 55m, to seconds."""
    from dask.utils import parse_timedelta

    if text is None:
        return None
    invalid = click.BadParameter(
        f"must be a duration such as 55m, got {text!r}", param_hint=parameter.opts[0]
    )
    try:
        seconds = float(parse_timedelta(text))
    # Dask raises an IndexError for an empty text.
    except (KeyError, ValueError, IndexError, OverflowError) as error:
        raise invalid from error
    if not math.isfinite(seconds):
        raise invalid
    return seconds


def parse_storage(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any] | None:
    """Return the storage options, or None if there are none."""
    return parse_storage_options(texts) if texts else None


def parse_origins(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the origins in their usual form."""
    if not texts:
        return ()
    from scrlm_dask.errors import InputError
    from scrlm_dask.storage.locations import parse_origin

    try:
        return tuple(parse_origin(text) for text in texts)
    except InputError as error:
        raise click.UsageError(str(error)) from error


def parse_storage_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """Merge texts NAME=VALUE into one mapping; a dot in NAME creates a nested mapping.

    Later texts override earlier texts. VALUE is a string, even if it consists of digits (a key or
    password may do so), unless it is true, false or null, or starts like a JSON object, list or
    string. To pass other values, such as numbers, the whole text must be a JSON object.
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
                "must be NAME=VALUE, such as anon=true, or a JSON object; the given value is not "
                "shown because it may be a secret",
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
        raise click.BadParameter(f"{part} must be valid JSON", param_hint=_STORAGE_OPTION) from None
