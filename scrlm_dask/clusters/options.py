"""Options that choose a cluster, the file with its arguments, and the connection made."""

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
    """Where to run, in Dask's names; options that are None are chosen automatically."""

    scheduler: str | None = None
    scheduler_file: str | None = None
    nworkers: int | None = None  # 0: no cluster, the threads of this process
    nthreads: int | None = None
    memory_limit: str | None = None
    cluster: str | None = None  # one of CLUSTER_KINDS: what starts the workers
    cluster_config: str | None = None  # file with the arguments of that cluster
    min_workers: int | None = None  # with max_workers: as many as there is work for
    max_workers: int | None = None
    tls_ca_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None  # None: in the file of the certificate
    require_tls: bool = False  # reject connections without TLS, except on loopback

    @property
    def is_managed(self) -> bool:
        """Return whether a batch system, ssh or Kubernetes starts the workers."""
        return self.cluster not in (None, LOCAL)

    @property
    def has_tls(self) -> bool:
        return self.tls_ca_file is not None

    @property
    def address(self) -> str | None:
        """Return the scheduler's address; new workers win over the environment variable."""
        if self.scheduler or any(getattr(self, name) is not None for name in ("cluster", *_OWN)):
            return self.scheduler or None
        return os.environ.get(_ADDRESS_VARIABLE) or None

    @property
    def is_local(self) -> bool:
        return not self.is_managed and self.scheduler_file is None and self.address is None

    def for_little_work(self) -> ClusterOptions:
        """Return the options with threads of this process as the default: they start at once."""
        starts_workers = any(getattr(self, name) is not None for name in ("cluster", *_OWN))
        return replace(self, nworkers=0) if self.is_local and not starts_workers else self


@dataclass(frozen=True)
class Connection:
    """A cluster that is connected, in words and numbers."""

    description: str
    dashboard: str | None
    nthreads: int | None = None  # of all workers together
    memory: int | None = None  # bytes, likewise; None if one has no limit
    tunnel: str | None = None  # the ssh command that forwards the dashboard


def check_options(options: ClusterOptions, spell: Callable[[str], str] = str) -> None:
    """Reject options that contradict each other or have no effect; `spell` formats their names."""
    for problem in _problems(options, spell):
        raise InputError(problem)


def _problems(options: ClusterOptions, spell: Callable[[str], str]) -> Iterator[str]:
    remote, own, tls = (
        " and ".join(spell(name) for name in names if getattr(options, name) is not None)
        for names in (_REMOTE, _OWN, _TLS)
    )
    least, most, none = spell("min_workers"), spell("max_workers"), f"{spell('nworkers')} 0"
    if options.scheduler and options.scheduler_file:
        yield f"give {spell('scheduler')} or {spell('scheduler_file')}, not both"
    if remote and (own or options.cluster):
        yield (
            f"{own or spell('cluster')} starts a cluster of its own and does not go with {remote}, "
            "whose workers run already"
        )
    if options.cluster is not None and options.cluster not in CLUSTER_KINDS:
        known = ", ".join(CLUSTER_KINDS)
        yield f"the cluster {options.cluster!r} is not known; give one of {known}"
    if options.cluster_config is not None and not options.is_managed:
        managed = ", ".join(kind for kind in CLUSTER_KINDS if kind != LOCAL)
        yield f"{spell('cluster_config')} needs {spell('cluster')}, one of {managed}"
    if options.nworkers == 0 and options.memory_limit is not None:
        yield f"{spell('memory_limit')} needs workers; it does not go with {none}"
    if options.nworkers == 0 and (options.is_managed or options.has_tls):
        yield f"{none} works in this process and needs neither another cluster nor certificates"
    if options.min_workers is not None and options.max_workers is None:
        yield f"{least} without {most} would do nothing; give {most}, too"
    if options.max_workers is not None and options.nworkers is not None:
        yield f"give {spell('nworkers')}, or {least} and {most}, not both"
    if (options.min_workers or 1) > (options.max_workers or options.min_workers or 1):
        yield f"{least} {options.min_workers} is more than {most} {options.max_workers}"
    if options.cluster == SSH and (options.nworkers, options.max_workers) != (None, None):
        yield f"the hosts of an ssh cluster stand in {spell('cluster_config')}; change them there"
    key_alone = options.tls_key is not None and not options.has_tls
    if options.has_tls != (options.tls_cert is not None) or key_alone:
        yield f"{tls} alone is no use; give {spell('tls_ca_file')} and {spell('tls_cert')}"


def read_config(options: ClusterOptions) -> dict[str, Any]:
    """Return the arguments in the file, which may have the layout of Dask's `jobqueue.yaml`."""
    import yaml

    file = options.cluster_config
    if file is None:
        return {}
    try:
        content = yaml.safe_load(Path(file).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        # no traceback, not even with -v: the error quotes the file, which may contain a password
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
    """Return what is wrong, and where, without quoting the file."""
    if isinstance(error, OSError):
        return str(error)
    text = re.sub(r"'[^'<]{2,}'", "'...'", getattr(error, "problem", None) or type(error).__name__)
    mark = getattr(error, "problem_mark", None)
    return text if mark is None else f"{text} (line {mark.line + 1}, column {mark.column + 1})"
