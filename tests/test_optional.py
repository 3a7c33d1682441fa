"""Optional dependencies are imported, or named with the extra that installs them."""

from __future__ import annotations

import json
import os.path

import pytest

from scrlm_dask.errors import InputError
from scrlm_dask.optional import import_optional


def test_modules_and_submodules() -> None:
    assert import_optional("json", "reading it") is json
    assert import_optional("os.path", "reading it") is os.path


def test_what_is_missing_and_how_to_install_it() -> None:
    with pytest.raises(InputError) as caught:
        import_optional("no_such_package.inner", "reading HDF5", extra="s3")
    message = str(caught.value)
    assert message.startswith("reading HDF5 needs no_such_package,")
    assert message.endswith("install scrlm-dask[s3]")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    with pytest.raises(InputError, match=r"scrlm-dask\[formats\]"):
        import_optional("no_such_package", "reading it")
