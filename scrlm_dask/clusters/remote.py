"""Connect to a running cluster; check its version of Dask and its workers."""

from __future__ import annotations

import json
import logging
import pkgutil
import socket
import time
import warnings
from asyncio import wait_for
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scrlm_dask.clusters.options import ClusterOptions, Connection
from scrlm_dask.clusters.security import check_certificate, check_encrypted, describe_connection
from scrlm_dask.errors import ClusterError
from scrlm_dask.events import Listener
from scrlm_dask.settings import WAIT_LONGER, workers_timeout
from scrlm_dask.text import first_few, one_line, plural

_CONNECT_TIMEOUT = 20
_FILE_SECONDS, _POLL_SECONDS = 10.0, 0.1
_SHOWN_WORKERS = 3


@contextmanager
def remote_cluster(options: ClusterOptions, listener: Listener) -> Iterator[Connection]:
    """Connect to the scheduler at the given address, or at the address in the scheduler file."""
    file = options.scheduler_file
    address = read_address(file) if file else str(options.address)
    where = f"{address} (from {file})" if file else address  # for messages
    check_encrypted(address, options, listener)
    check_certificate(address)
    check_scheduler(address, where)
    with _client(address) as client, client.as_current():
        _wait_for_worker(client, where)
        check_workers(client)
        workers = plural(len(client.nthreads()), "worker")
        yield describe_connection(f"{workers} of the scheduler at {where}", client)


def _wait_for_worker(client: Any, where: str) -> None:
    """Wait for the first worker; Dask's own timeout depends on changes of the system clock."""
    seconds = workers_timeout()
    deadline = time.monotonic() + seconds
    while not client.nthreads():
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the scheduler at {where} has had no workers for {seconds:.0f} s; start workers "
                f"with `dask worker`, or wait longer with {WAIT_LONGER}"
            )
        time.sleep(_POLL_SECONDS)


def read_address(scheduler_file: str) -> str:
    """Return the address in a scheduler file; unlike Dask, wait for it only for a limited time."""
    try:
        return str(_read_json(Path(scheduler_file))["address"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ClusterError(
            f"no scheduler address found in {scheduler_file} ({error!r}); start a scheduler with "
            "`dask scheduler --scheduler-file`"
        ) from error


def _read_json(file: Path) -> Any:
    """Return the content of a file that a starting scheduler may not have written yet."""
    deadline = time.monotonic() + _FILE_SECONDS
    while True:
        try:
            return json.loads(file.read_text())
        except (FileNotFoundError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


def check_scheduler(address: str, where: str) -> None:
    """Raise unless a Dask scheduler of the same major version responds.

    This is checked before a client is created: a client that cannot connect hangs at exit.
    """
    from distributed.utils import LoopRunner

    runner = LoopRunner()
    runner.start()
    try:
        theirs = runner.run_sync(_version_at, address)
    # no server, a TLS problem, or a service other than Dask
    except Exception as error:
        raise ClusterError(
            f"no Dask scheduler responds at {where} ({str(error) or type(error).__name__}); "
            f"{_advice(address)}, or leave it out to use a local cluster"
        ) from error
    finally:
        runner.stop()
    ours = version("distributed")
    if _major(theirs) != _major(ours):
        raise ClusterError(
            f"the scheduler at {where} runs distributed {theirs}, but this process runs "
            f"distributed {ours}; install the same version on both sides"
        )


async def _version_at(address: str) -> str:
    from distributed import Security
    from distributed.core import rpc

    tls = Security().get_connection_args("client")
    async with rpc(address, timeout=_CONNECT_TIMEOUT, connection_args=tls) as scheduler:
        answer = await wait_for(scheduler.versions(), _CONNECT_TIMEOUT)
    return str(answer["packages"]["distributed"])


def _client(address: str) -> Any:
    from distributed import Client
    from distributed.versions import VersionMismatchWarning

    # the command reports a lost scheduler; Dask would also log it
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        # `check_scheduler` has compared the major versions
        warnings.simplefilter("ignore", VersionMismatchWarning)
        # not as default: a client that fails to start would remain the default client
        return Client(address, timeout=_CONNECT_TIMEOUT, set_as_default=False)


def _advice(address: str) -> str:
    """Return a hint why a scheduler does not respond.

    If TLS settings differ, the scheduler closes the connection without giving a reason.
    """
    if not _listens(address):
        return "check the address"
    if address.startswith("tls://"):
        return (
            "a service listens there: check that it uses TLS and trusts the certificates given by "
            "--tls-ca-file, --tls-cert and --tls-key"
        )
    return "a service listens there: check the address, which may have to start with tls://"


def _listens(address: str) -> bool:
    from distributed.comm import parse_address, parse_host_port

    try:
        host, port = parse_host_port(parse_address(address)[1])
        with socket.create_connection((host, port), timeout=1):
            return True
    except (OSError, ValueError, TypeError):
        return False


def _major(text: str) -> str:
    return text.partition(".")[0]


def check_workers(client: Any) -> None:
    """Raise if a worker lacks this package or has another version of it.

    The workers run a function of the standard library, because they could not unpickle a function
    of a missing package.
    """
    ours = version("scrlm-dask")
    answers = client.run(pkgutil.resolve_name, "scrlm_dask:__version__", on_error="return")
    lacking = {name: answer for name, answer in answers.items() if answer != ours}
    if not lacking:
        return
    names = first_few(list(lacking), _SHOWN_WORKERS, total=False)
    answer = next(iter(lacking.values()))
    problem = answer if isinstance(answer, str) else one_line(answer)
    raise ClusterError(
        f"{len(lacking)} of {plural(len(answers), 'worker')} ({names}) cannot use scrlm_dask "
        f"{ours} ({problem}); install it in the environment in which `dask worker` runs"
    )
