"""Start workers as batch jobs with dask-jobqueue; the scheduler runs in this process."""

from __future__ import annotations

import logging
import shlex
import shutil
from contextlib import ExitStack
from os.path import expandvars
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scrlm_dask.clusters.local import check_memory_limit, free_dashboard_port
from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.clusters.worker_settings import PRELOAD, worker_environment
from scrlm_dask.errors import ClusterError, InputError
from scrlm_dask.optional import import_optional
from scrlm_dask.settings import read_ahead

CLASSES = {
    "slurm": "SLURMCluster",
    "pbs": "PBSCluster",
    "sge": "SGECluster",
    "lsf": "LSFCluster",
    "htcondor": "HTCondorCluster",
}


def start_job_queue(options: ClusterOptions, config: dict[str, Any], undo: ExitStack) -> Any:
    """Start a scheduler in this process and submit jobs for its workers; `undo` stops them."""
    kind = str(options.cluster)
    library = import_optional("dask_jobqueue", f"the {kind} cluster", "jobqueue")
    cluster_class = getattr(library, CLASSES[kind])
    command = shlex.split(cluster_class.job_cls.submit_command)[0]
    if shutil.which(command) is None:
        raise ClusterError(
            f"the command {command} of {kind} was not found; use a host that can submit jobs"
        )
    given = arguments(options, config)
    given |= security(options, given, undo)
    try:
        job = _collecting_rejections(cluster_class.job_cls)
        cluster = undo.enter_context(cluster_class(job_cls=job, **given))
    except (TypeError, ValueError) as error:
        where = options.cluster_config or "the command line"
        raise InputError(
            f"{cluster_class.__name__} does not accept the arguments of {where}: {error}"
        ) from error
    cluster.scale(options.nworkers or options.min_workers or 1)
    return cluster


def rejections(cluster: Any) -> list[str]:
    """Return the batch system's messages about rejected jobs."""
    rejected: list[str] = getattr(getattr(cluster, "job_cls", None), "rejected", [])
    return rejected


def _collecting_rejections(job: Any) -> Any:
    """Return a subclass of a job class that collects the messages of failed submissions.

    Without this class, Dask would discard the exception and wait for the worker without a timeout.
    """
    rejected: list[str] = []

    async def start(self: Any) -> None:
        try:
            await job.start(self)
        except (OSError, RuntimeError, ValueError) as error:
            rejected.append(" ".join(str(error).split()))
            raise

    return type(job.__name__, (job,), {"start": start, "rejected": rejected})


def arguments(options: ClusterOptions, config: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the cluster class.

    They combine the configuration file (`config`), the command line and the worker settings.
    """
    given = {name.replace("-", "_"): value for name, value in config.items()}
    processes = _setting(options, given, "processes") or 1
    limit = check_memory_limit(options.memory_limit)
    if options.nthreads is not None:
        given["cores"] = options.nthreads * processes
    if limit is not None:
        given["memory"] = str(limit * processes)
    cores = _setting(options, given, "cores")
    if cores is None or _setting(options, given, "memory") is None:
        raise InputError(
            f"{options.cluster} jobs require cores and memory; use --nthreads and "
            "--memory-limit, or set cores and memory in --cluster-config"
        )
    ahead = read_ahead()
    # add the threads that prefetch, which need no cores; Dask uses the last --nthreads
    more = ["--nthreads", str(int(cores) // processes + ahead)] if ahead else []
    extra = [*(_setting(options, given, "worker_extra_args") or []), "--preload", PRELOAD, *more]
    exports = [f"export {name}={value}" for name, value in worker_environment(ahead).items()]
    prologue = [*(_setting(options, given, "job_script_prologue") or []), *exports]
    scheduler = {"dashboard_address": f":{free_dashboard_port()}"}
    return {
        "silence_logs": logging.CRITICAL,
        **given,
        "processes": processes,
        "worker_extra_args": extra,
        "job_script_prologue": prologue,
        "scheduler_options": scheduler | (_setting(options, given, "scheduler_options") or {}),
    }


def _setting(options: ClusterOptions, given: dict[str, Any], name: str) -> Any:
    """Return an argument; if it is not given, return its value in Dask's configuration."""
    import dask

    setting = f"jobqueue.{options.cluster}.{name.replace('_', '-')}"
    return given.get(name, dask.config.get(setting, None))


def security(options: ClusterOptions, given: dict[str, Any], undo: ExitStack) -> dict[str, Any]:
    """Return TLS settings; none if the configuration contains its own.

    TLS is the default because many users share a batch system. If the user gives no certificates,
    temporary ones are created that only the user can read.
    """
    from distributed import Security

    if options.has_tls:
        return {"security": Security()}
    if "security" in given or (given.get("protocol") and not options.require_tls):
        return {}
    folder = _setting(options, given, "shared_temp_directory") or "."
    return {"security": temporary_certificate(Path(expandvars(folder)), undo), "protocol": "tls://"}


def temporary_certificate(shared: Path, undo: ExitStack) -> Any:
    """Write a temporary certificate to `shared`, a folder, in files that only the user can read."""
    from distributed import Security

    temporary = Security.temporary().get_tls_config_for_role("worker")
    name = TemporaryDirectory(prefix=".scrlm-tls-", dir=shared.expanduser().resolve())
    folder = Path(undo.enter_context(name))
    files = {}
    for part in ("ca_file", "cert", "key"):
        files[part] = folder / f"{part}.pem"
        files[part].touch(0o600)
        files[part].write_text(temporary[part])
    pair = [(role, part) for role in ("client", "scheduler", "worker") for part in ("cert", "key")]
    roles = {f"tls_{role}_{part}": str(files[part]) for role, part in pair}
    return Security(tls_ca_file=str(files["ca_file"]), require_encryption=True, **roles)
