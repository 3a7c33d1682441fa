"""Facts that a message must contain, without the wording around them."""

from __future__ import annotations

import re


def expecting(*facts: object) -> str:
    """Return a pattern for `match=`: a text with all facts as whole words, in any order."""
    return r"(?s)\A" + "".join(rf"(?=.*(?<!\w){re.escape(str(fact))}(?!\w))" for fact in facts)
