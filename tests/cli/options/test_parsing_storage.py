"""--storage-option: nested names, text and JSON values, and messages without the values."""

from __future__ import annotations

from typing import Any

import click
import pytest
from scrlm_cli.options.parsing import parse_storage_options

SECRET = "do-not-print-me"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("key=abc",), {"key": "abc"}),
        (("secret=a=b==",), {"secret": "a=b=="}),
        (("key=",), {"key": ""}),
        (("secret=12345678", "token=1e5"), {"secret": "12345678", "token": "1e5"}),
        (("anon=true", "a=false", "b=null"), {"anon": True, "a": False, "b": None}),
        (("anon=True",), {"anon": "True"}),
        (('secret="true"',), {"secret": "true"}),
        (("a=[1, 2]",), {"a": [1, 2]}),
        (
            ("client_kwargs.endpoint_url=http://host:1", "client_kwargs.region_name=here"),
            {"client_kwargs": {"endpoint_url": "http://host:1", "region_name": "here"}},
        ),
        (
            ('client_kwargs={"verify": false}', "client_kwargs.region_name=here"),
            {"client_kwargs": {"verify": False, "region_name": "here"}},
        ),
        (('{"default_block_size": 1000, "a": {"b": 1}}', "a.c=2"), None),
        (("key=a", "key=b"), {"key": "b"}),
    ],
)
def test_valid_options(texts: tuple[str, ...], expected: Any) -> None:
    if expected is None:
        expected = {"default_block_size": 1000, "a": {"b": 1, "c": "2"}}
    assert parse_storage_options(texts) == expected


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        f"={SECRET}",
        f".={SECRET}",
        f"a..b={SECRET}",
        f'a={{"{SECRET}',
        f'{{"{SECRET}": ',
        f'a="{SECRET}',
    ],
)
def test_invalid_options_are_rejected_without_printing_them(text: str, invoke: Any) -> None:
    with pytest.raises(click.BadParameter) as caught:
        parse_storage_options((text,))
    assert SECRET not in str(caught.value)
    outcome = invoke("fit", "x.zarr", "--out", "run", "--storage-option", text)
    assert outcome.code == 2
    assert "--storage-option" in outcome.stderr
    assert SECRET not in outcome.stdout + outcome.stderr


@pytest.mark.parametrize("command", ["synth", "fit", "predict", "evaluate", "demo"])
def test_every_command_that_uses_stores_has_the_option(command: str, invoke: Any) -> None:
    assert "--storage-option NAME=VALUE" in invoke(command, "--help", threads=False).ok().stdout


def test_options_are_ignored_for_local_paths(invoke: Any, tmp_path: Any) -> None:
    options = ("--storage-option", f"secret={SECRET}")
    args = ("synth", tmp_path / "x.zarr", "--rows", 20, "--features", 4, "--clusters", 2)
    invoke(*args, *options).ok()
    assert SECRET not in (tmp_path / "x.zarr/zarr.json").read_text()
