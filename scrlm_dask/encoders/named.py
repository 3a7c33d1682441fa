"""An encoder of the user's: a function, by the name of its module or by its file.

Naming it runs it: this is the user's code, with the user's rights.
"""

from __future__ import annotations

import hashlib
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from scrlm_dask.encoders.base import Encoder, loading, version_of
from scrlm_dask.errors import InputError


def open_named(name: str) -> Encoder:
    """`package.module:function`, or `path/to/file.py:function`."""
    where, _, what = name.rpartition(":")
    way_out = "give package.module:function, or file.py:function for a file"
    with loading(name, way_out):
        module = _from_file(Path(where)) if where.endswith(".py") else import_module(where)
    function: Any = module
    for part in what.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise InputError(f"the encoder {name} is no function: {where} has no {what!r} to be called")
    return Encoder(name, _made_by(module), function)


def _made_by(module: ModuleType) -> str:
    """Code without a version is known by its digest: going on with other code is noticed."""
    package = module.__name__.partition(".")[0]
    made_by, file = version_of(package), getattr(module, "__file__", None)
    if made_by != package or file is None:
        return made_by
    return f"{package} (SHA-256 {hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16]})"


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"the encoder's file {path} does not exist; check the path")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickles ask for it there
    spec.loader.exec_module(module)
    return module
