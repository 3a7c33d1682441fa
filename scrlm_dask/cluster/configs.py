"""The file of --cluster-config: what the cluster's own class, or Kubernetes, is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from scrlm_dask.cluster.options import ClusterOptions
from scrlm_dask.errors import InputError


def read_config(options: ClusterOptions) -> dict[str, Any]:
    """A mapping of arguments, also as Dask's own file `jobqueue.yaml` has them for each kind."""
    import yaml

    file = options.cluster_config
    if file is None:
        return {}
    try:
        content = yaml.safe_load(Path(file).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        # not even -v shows the error itself, which quotes the file: a line may hold a password
        raise InputError(
            f"the cluster's configuration {file} cannot be read: {_problem(error)}"
        ) from None
    if isinstance(content, dict) and "jobqueue" in content:
        kinds = content["jobqueue"]
        content = kinds.get(options.cluster) if isinstance(kinds, dict) else None
    if not isinstance(content, dict):
        raise InputError(
            f"the cluster's configuration {file} has no arguments for {options.cluster}; write "
            "NAME: VALUE lines, see deploy/"
        )
    return content


def _problem(error: Exception) -> str:
    """What is wrong, and where, without words of the file."""
    if isinstance(error, OSError):
        return str(error)
    said = re.sub(r"'[^'<]{2,}'", "'...'", getattr(error, "problem", None) or type(error).__name__)
    mark = getattr(error, "problem_mark", None)
    return said if mark is None else f"{said} (line {mark.line + 1}, column {mark.column + 1})"
