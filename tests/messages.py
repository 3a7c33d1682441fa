"""Facts that a message must contain, without the wording around them."""

from __future__ import annotations

import re


def expecting(*facts: object) -> str:
    """Return a pattern for `match=`: a text with all facts as whole words, in any order.

    Numbers are not searched in names of folders, which may contain any number.
    """
    return r"(?s)\A" + "".join(f"(?=.*{_whole(str(fact))})" for fact in facts)


def _whole(fact: str) -> str:
    before, after = (r"(?<![\w/-])", r"(?![\w/])") if fact.isdigit() else (r"(?<!\w)", r"(?!\w)")
    return before + re.escape(fact) + after
