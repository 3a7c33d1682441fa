"""Formatting of sizes, counts, lists and errors."""

from __future__ import annotations

import html
import json
import re
from urllib.parse import quote, quote_plus

import pytest
from yarl import URL

from scrlm_dask.text import (
    first_few,
    first_line,
    format_bytes,
    hide_queries,
    hide_values,
    one_line,
    plural,
    printable,
    printable_lines,
    quoted,
    repeated,
    shorten,
)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (64e6, "64.0 MB"),
        (2.3e9, "2.3 GB"),
        (3e12, "3.0 TB"),
        (5e15, "5000.0 TB"),
    ],
)
def test_sizes(n_bytes: float, text: str) -> None:
    assert format_bytes(n_bytes) == text


def test_long_values_are_cut() -> None:
    assert quoted("a\n") == r"'a\n'"
    assert quoted("x" * 78) == repr("x" * 78)
    assert quoted("x" * 1000) == f"'{'x' * 79}..."
    assert shorten("x" * 81) == "x" * 80 + "..."


def test_counts() -> None:
    assert [plural(n, "row") for n in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]
    assert [repeated("step", n) for n in (1, 3)] == ["step", "step x 3"]


def test_lists() -> None:
    assert first_few([], 2) == ""
    assert first_few([1, 2], 2) == "1, 2"
    assert re.fullmatch(r"1, 2, \.\.\. \(3\b.*\)", first_few([1, 2, 3], 2))
    assert first_few([1, 2, 3], 2, total=False) == "1, 2, ..."
    assert re.fullmatch(r"0, 1, 2, 3, 4, \.\.\. \(6\b.*\)", first_few(list(range(6))))


@pytest.mark.parametrize(
    ("error", "whole", "first"),
    [
        (ValueError("a  b\n c"), "ValueError: a b c", "ValueError: a  b"),
        (KeyError(), "KeyError", "KeyError"),
        (OSError("\n"), "OSError", "OSError"),
    ],
)
def test_errors(error: Exception, whole: str, first: str) -> None:
    assert one_line(error) == whole
    assert first_line(error) == first


def test_long_errors_are_truncated() -> None:
    assert first_line(ValueError("abcdef\nghi"), most=3) == "ValueError: abc"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),  # color
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),  # title of the window
        ("\x9b2J", r"\x9b2J"),  # CSI as one C1 character
        ("a\rb\nc\td\x7f", r"a\rb\nc\td\x7f"),
        ("\u202egnp.exe\u2066\u200f", r"\u202egnp.exe\u2066\u200f"),  # direction of text
        ("a\u2028b", r"a\u2028b"),
        ("\udc80", r"\udc80"),  # undecodable byte of a file name
        ("Größe 日本 [red] \\x1b", "Größe 日本 [red] \\x1b"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_lines_stay_lines() -> None:
    assert printable_lines("a\x1b\nb\r\n") == "a\\x1b\nb\\r\n"


@pytest.mark.parametrize(
    "value",
    [
        *("plain-secret", "sv=2020&sig=a+b/c==", "two words", '"it\'s"<&>', "a\\b\\\\c\\"),
        *("line\nbreak\ttab\x0b", "p\u00e4ss-\u8a9e", "pass-\U0001f511-\ud800", "\udcff-byte"),
    ],
)
def test_values_are_hidden_in_every_form(value: str) -> None:
    encoded = value.encode("utf-8", "backslashreplace")
    encodable = encoded.decode(errors="surrogateescape")
    forms = [
        *(value, repr(value), repr([repr(value)]), json.dumps(value), json.dumps([value])),
        *(json.dumps(json.dumps(value)), html.escape(value), printable(value)),
    ]
    if encodable == value:
        url = URL("http://host/x").with_query({"sig": value})
        forms += [quote(value), quote(value, safe=""), quote_plus(value), quote(quote(value))]
        forms += [quote(value).lower(), str(url), repr(url), repr(encoded), str({"k": encoded})]
    for form in forms:
        shown = hide_values(f"before {form} after", ["other", value])
        assert "***" in shown, form
        assert shown.startswith("before ")
        assert shown.endswith(" after")
        for piece in re.findall(r"\w{3,}", value):
            assert piece not in shown.replace("?sig=", "")


def test_decoded_values_are_hidden() -> None:
    signature = "v%2bw%41xyz"
    for url in (URL(f"http://h/?s={signature}"), URL("http://h/").with_query(s=signature)):
        assert hide_values(f"GET {url}", [signature]) == "GET http://h/?s=***"


def test_lines_of_a_value_are_hidden() -> None:
    key = "-----BEGIN KEY-----\n  abcdef \nxyz\n"
    assert hide_values("invalid key 'abcdef' on line xyz", [key]) == (
        "invalid key '***' on line xyz"
    )


def test_short_values_do_not_change_messages() -> None:
    text = "403 Forbidden: a bad request"
    assert hide_values(text, ["a", "", "403", "4031", "***"]) == text
    assert hide_values("longer than long", ["long", "longer"]) == "*** than ***"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GET http://host/x?a=1&b=2 failed", "GET http://host/x?*** failed"),
        ("403, url='http://h/x?token'), then", "403, url='http://h/x?***'), then"),
        ("https://h?a=1\nsecond /x?%41", "https://h?***\nsecond /x?***"),
        ("really? yes, 'x?' is a name", "really? yes, 'x?' is a name"),
    ],
)
def test_queries_are_hidden(text: str, expected: str) -> None:
    assert hide_queries(text) == expected
