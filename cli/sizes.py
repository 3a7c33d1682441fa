"""Sizes as people write them."""

from __future__ import annotations

import click


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
