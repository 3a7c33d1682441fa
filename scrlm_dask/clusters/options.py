"""Options of a cluster, its configuration file, and the resulting connection."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scrlm_dask.choices import CLUSTER_KINDS, LOCAL, SSH
from scrlm_dask.errors import InputError

_ADDRESS_VARIABLE = "DASK_SCHEDULER_ADDRESS"
_REMOTE = ("scheduler", "scheduler_file")
# options that start a new cluster
_OWN = ("nworkers", "nthreads", "memory_limit", "min_workers", "max_workers")
_TLS = ("tls_ca_file", "tls_cert", "tls_key")


@dataclass(frozen=True)
class ClusterOptions:
    """Options of the cluster to use, named as in Dask; None: the value is chosen automatically."""

    scheduler: str | None = None
    scheduler_file: str | None = None
    nworkers: int | None = None  # 0: no cluster, threads of this process
    nthreads: int | None = None
    memory_limit: str | None = None
    cluster: str | None = None  # system that starts the workers, one of CLUSTER_KINDS
    cluster_config: str | None = None  # YAML file with the arguments of that cluster
    min_workers: int | None = None  # with max_workers: the number of workers adapts to the work
    max_workers: int | None = None
    tls_ca_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None  # None: the key is in the certificate file
    require_tls: bool = False  # reject connections without TLS, except on loopback

    @property
    def is_managed(self) -> bool:
        """Return whether a batch system, ssh or Kubernetes starts the workers."""
        return self.cluster not in (None, LOCAL)

    @property
    def has_tls(self) -> bool:
        """Return whether TLS certificates are given."""
        return self.tls_ca_file is not None

    @property
    def address(self) -> str | None:
        """Return the scheduler address; options for new workers override DASK_SCHEDULER_ADDRESS."""
        if self.scheduler or any(getattr(self, name) is not None for name in ("cluster", *_OWN)):
            return self.scheduler or None
        return os.environ.get(_ADDRESS_VARIABLE) or None

    @property
    def is_local(self) -> bool:
        """Return whether workers are started on this machine."""
        return not self.is_managed and self.scheduler_file is None and self.address is None

    def for_little_work(self) -> ClusterOptions:
        """Return options that use threads of this process, unless the user selected a cluster.

        Threads start immediately, which matters if there is little work.
        """
        starts_workers = any(getattr(self, name) is not None for name in ("cluster", *_OWN))
        return replace(self, nworkers=0) if self.is_local and not starts_workers else self


@dataclass(frozen=True)
class Connection:
    """A cluster that code is connected to.

    Attributes
    ----------
    description : str
        Description for the user.
    dashboard : str or None
        URL of the dashboard.
    nthreads : int or None
        Threads of all workers.
    memory : int or None
        Bytes of memory of all workers; None if a worker has no limit.
    tunnel : str or None
        ssh command that forwards the dashboard.
    """

    description: str
    dashboard: str | None
    nthreads: int | None = None
    memory: int | None = None
    tunnel: str | None = None


def check_options(options: ClusterOptions, spell: Callable[[str], str] = str) -> None:
    """Raise if options contradict each other or have no effect.

    `spell` converts the name of an option for messages, for example to `--nworkers`.
    """
    for problem in _problems(options, spell):
        raise InputError(problem)


def _problems(options: ClusterOptions, spell: Callable[[str], str]) -> Iterator[str]:
    remote, own, tls = (
        " and ".join(spell(name) for name in names if getattr(options, name) is not None)
        for names in (_REMOTE, _OWN, _TLS)
    )
    least, most, none = spell("min_workers"), spell("max_workers"), f"{spell('nworkers')} 0"
    if options.scheduler and options.scheduler_file:
        yield f"use {spell('scheduler')} or {spell('scheduler_file')}, not both"
    if remote and (own or options.cluster):
        yield (
            f"{own or spell('cluster')} starts a new cluster and cannot be combined with {remote}, "
            "which connects to a running one"
        )
    if options.cluster is not None and options.cluster not in CLUSTER_KINDS:
        known = ", ".join(CLUSTER_KINDS)
        yield f"{spell('cluster')} must be one of {known}, got {options.cluster!r}"
    if options.cluster_config is not None and not options.is_managed:
        managed = ", ".join(kind for kind in CLUSTER_KINDS if kind != LOCAL)
        yield f"{spell('cluster_config')} requires {spell('cluster')}, one of {managed}"
    if options.nworkers == 0 and options.memory_limit is not None:
        yield f"{spell('memory_limit')} requires workers; it cannot be combined with {none}"
    if options.nworkers == 0 and (options.is_managed or options.has_tls):
        yield (
            f"{none} runs in threads of this process; it cannot be combined with "
            f"{spell('cluster')} or TLS certificates"
        )
    if options.min_workers is not None and options.max_workers is None:
        yield f"{least} requires {most}"
    if options.max_workers is not None and options.nworkers is not None:
        yield f"use {spell('nworkers')}, or {least} and {most}, not both"
    if (options.min_workers or 1) > (options.max_workers or options.min_workers or 1):
        yield f"{least} {options.min_workers} is greater than {most} {options.max_workers}"
    if options.cluster == SSH and (options.nworkers, options.max_workers) != (None, None):
        yield (
            f"{spell('nworkers')} and {most} are not supported by an ssh cluster; set its hosts in "
            f"{spell('cluster_config')}"
        )
    key_alone = options.tls_key is not None and not options.has_tls
    if options.has_tls != (options.tls_cert is not None) or key_alone:
        yield f"TLS requires {spell('tls_ca_file')} and {spell('tls_cert')}, got only {tls}"


def read_config(options: ClusterOptions) -> dict[str, Any]:
    """Return the arguments in the configuration file, which may be a Dask `jobqueue.yaml`."""
    import yaml

    file = options.cluster_config
    if file is None:
        return {}
    try:
        content = yaml.safe_load(Path(file).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        # drop the traceback, also with -v: it quotes the file, which may contain a password
        raise InputError(
            f"cannot read the cluster configuration {file}: {_problem(error)}"
        ) from None
    if isinstance(content, dict) and "jobqueue" in content:
        kinds = content["jobqueue"]
        content = kinds.get(options.cluster) if isinstance(kinds, dict) else None
    if not isinstance(content, dict):
        raise InputError(
            f"the cluster configuration {file} has no arguments for {options.cluster}; write lines "
            "NAME: VALUE as in the examples in deploy/"
        )
    return content


def _problem(error: Exception) -> str:
    """Describe an error and its position without quoting the file."""
    if isinstance(error, OSError):
        return str(error)
    text = re.sub(r"'[^'<]{2,}'", "'...'", getattr(error, "problem", None) or type(error).__name__)
    mark = getattr(error, "problem_mark", None)
    return text if mark is None else f"{text} (line {mark.line + 1}, column {mark.column + 1})"
