"""A missing optional dependency is reported with the extra that installs it."""

from __future__ import annotations

import json
import os.path

import pytest
from messages import expecting

from scrlm_dask.errors import InputError
from scrlm_dask.optional import import_optional


def test_modules_and_submodules() -> None:
    assert import_optional("json", "reading it") is json
    assert import_optional("os.path", "reading it") is os.path


def test_missing_package_is_reported_with_its_extra() -> None:
    facts = ("reading HDF5", "no_such_package", "scrlm-dask[s3]")
    with pytest.raises(InputError, match=expecting(*facts)) as caught:
        import_optional("no_such_package.inner", "reading HDF5", extra="s3")
    assert "inner" not in str(caught.value)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    with pytest.raises(InputError, match=r"scrlm-dask\[formats\]"):
        import_optional("no_such_package", "reading it")
