"""What Hugging Face's `save_to_disk` writes: Arrow streams, and `state.json` to name them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.arrow import open_arrow
from scrlm_dask.sources.base import Source
from scrlm_dask.sources.joined import join

STATE, SPLITS = "state.json", "dataset_dict.json"


def looks_like_dataset(folder: str) -> bool:
    return any((Path(folder) / name).is_file() for name in (STATE, SPLITS))


def open_dataset(folder: str, asked: Sequence[str], apart: Sequence[str]) -> Source:
    if (Path(folder) / SPLITS).is_file():
        splits = _read_json(Path(folder) / SPLITS).get("splits", [])
        raise InputError(
            f"{folder} holds several splits ({', '.join(splits)}); give one of them, such as "
            f"{Path(folder) / splits[0] if splits else folder}"
        )
    state = _read_json(Path(folder) / STATE)
    if state.get("_indices_data_files"):
        raise InputError(
            f"{folder} was saved with a selection of rows; save it again after flatten_indices()"
        )
    names = [entry["filename"] for entry in state.get("_data_files") or []]
    if not names:
        raise StoreError(f"{folder}/{STATE} names no data files; save the dataset again")
    paths = [str(Path(folder) / name) for name in names]
    for path in paths:
        if not Path(path).is_file():
            raise StoreError(f"{path} is missing, which {STATE} names; restore it")
    # dataset_info.json is not asked: its numbers are of the split as it was once loaded, not saved
    return join([open_arrow(path, asked, apart) for path in paths])


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read ({error}); save the dataset again") from error
    if not isinstance(content, dict):
        raise StoreError(f"{path} is not the record of a dataset; save it again")
    return content
