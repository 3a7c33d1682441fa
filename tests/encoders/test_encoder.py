"""The output of encoders is checked, and their errors are named."""

from __future__ import annotations

import pytest

from scrlm_dask.encoders.encoder import Encoder, explain_failure
from scrlm_dask.errors import EncoderError, InputError


def test_what_encoders_give() -> None:
    for given in ([[1.0]], [1.0, 2.0], [["a"], ["b"]], [[], []]):
        with pytest.raises(InputError, match=r"mine gave .* shape .* for 2 item\(s\)"):
            Encoder("mine", "me", lambda items, given=given: given).encode(["a", "b"])
    with pytest.raises(EncoderError, match=r"mine failed at a batch of 1 \(ZeroDivision"):
        Encoder("mine", "me", lambda items: 1 / 0).encode(["a"])


def test_errors_of_libraries_come_with_a_remedy() -> None:
    words = r"encoder mine cannot be loaded \(OSError: a\); do this"
    with pytest.raises(InputError, match=words), explain_failure("mine", "do this"):
        raise OSError("a\nb")
    with pytest.raises(InputError, match=r"^ours$"), explain_failure("mine", "do this"):
        raise InputError("ours")
