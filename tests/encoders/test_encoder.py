"""The output of encoders is checked, and their errors name the encoder."""

from __future__ import annotations

import re

import numpy as np
import pytest

from scrlm_dask.encoders.encoder import Encoder, explain_failure
from scrlm_dask.errors import EncoderError, InputError


def test_invalid_output_and_failures() -> None:
    for given in ([[1.0]], [1.0, 2.0], [["a"], ["b"]], [[], []]):
        shape = re.escape(str(np.shape(given)))
        with pytest.raises(InputError, match=rf"(?=.*\bmine\b)(?=.*{shape})(?=.*\b2\b)"):
            Encoder("mine", "me", lambda items, given=given: given).encode(["a", "b"])
    facts = r"(?=.*\bmine\b)(?=.*\b1\b)(?=.*ZeroDivisionError)(?=.*--batch-size)"
    with pytest.raises(EncoderError, match=facts):
        Encoder("mine", "me", lambda items: 1 / 0).encode(["a"])


def test_errors_of_libraries_have_a_hint() -> None:
    facts = r"(?=.*\bmine\b)(?=.*OSError: a\b)(?=.*do this)"
    with pytest.raises(InputError, match=facts), explain_failure("mine", "do this"):
        raise OSError("a\nb")
    with pytest.raises(InputError, match=r"^unchanged$"), explain_failure("mine", "do this"):
        raise InputError("unchanged")
