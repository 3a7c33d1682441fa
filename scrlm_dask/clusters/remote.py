"""Connect to a running cluster and check its version and its workers."""

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
_FILE_SECONDS, _FILE_POLL_SECONDS = 10.0, 0.1
_SHOWN_WORKERS = 3


@contextmanager
def remote_cluster(options: ClusterOptions, listener: Listener) -> Iterator[Connection]:
    """Connect to the scheduler at the given address, or at the one in the scheduler file."""
    file = options.scheduler_file
    address = read_address(file) if file else str(options.address)
    where = f"{address} (from {file})" if file else address  # for messages
    check_encrypted(address, options, listener)
    check_certificate(address)
    check_scheduler(address, where)
    with _client(address) as client, client.as_current():
        seconds = workers_timeout()
        try:
            client.wait_for_workers(1, timeout=seconds)
        except TimeoutError as error:
            raise ClusterError(
                f"the scheduler at {where} has had no workers for {seconds:.0f} s; start some with "
                f"`dask worker`, or wait longer with {WAIT_LONGER}"
            ) from error
        check_workers(client)
        workers = plural(len(client.nthreads()), "worker")
        yield describe_connection(f"{workers} of the scheduler at {where}", client)


def read_address(scheduler_file: str) -> str:
    """Return the address in a scheduler file; Dask itself waits for the file without a timeout."""
    try:
        return str(_read_json(Path(scheduler_file))["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"no scheduler's address in the file {scheduler_file} ({error!r}); start one with "
            "`dask scheduler --scheduler-file`"
        ) from error


def _read_json(file: Path) -> Any:
    """Read a file that a starting scheduler may not have written completely yet."""
    deadline = time.monotonic() + _FILE_SECONDS
    while True:
        try:
            return json.loads(file.read_text())
        except (FileNotFoundError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_FILE_POLL_SECONDS)


def check_scheduler(address: str, where: str) -> None:
    """Raise unless a scheduler of our major version answers.

    A client that fails to connect would hang at the end of the process.
    """
    from distributed.utils import LoopRunner

    runner = LoopRunner()
    runner.start()
    try:
        theirs = runner.run_sync(_version_at, address)
    # no server, no TLS, no certificate, or a server of another kind
    except Exception as error:
        raise ClusterError(
            f"no Dask scheduler answers at {where} ({str(error) or type(error).__name__}); "
            f"{_advice(address)}, or leave it out for a local cluster"
        ) from error
    finally:
        runner.stop()
    ours = version("distributed")
    if _major(theirs) != _major(ours):
        raise ClusterError(
            f"the scheduler at {where} runs distributed {theirs} and this is distributed {ours}; "
            "install the same version at both ends"
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

    # Dask logs a lost scheduler in addition to the error
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        # major versions are checked already
        warnings.simplefilter("ignore", VersionMismatchWarning)
        # not the default yet: a client that fails to start would stay the default
        return Client(address, timeout=_CONNECT_TIMEOUT, set_as_default=False)


def _advice(address: str) -> str:
    """Return what to check: schedulers drop clients whose TLS setting differs without a reason."""
    if not _listens(address):
        return "check the address"
    if address.startswith("tls://"):
        return (
            "something listens there: check that it has TLS, and that it trusts the certificates "
            "given here (--tls-ca-file, --tls-cert, --tls-key)"
        )
    return "something listens there: check the address, which may have to begin with tls://"


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
    """Reject workers that lack this package, or have another version of it.

    The function comes from the standard library: one of ours could not be unpickled there.
    """
    ours = version("scrlm-dask")
    answers = client.run(pkgutil.resolve_name, "scrlm_dask:__version__", on_error="return")
    lacking = {name: answer for name, answer in answers.items() if answer != ours}
    if not lacking:
        return
    names = first_few(list(lacking), _SHOWN_WORKERS, total=False)
    answer = next(iter(lacking.values()))
    found = answer if isinstance(answer, str) else one_line(answer)
    raise ClusterError(
        f"{len(lacking)} of {plural(len(answers), 'worker')} ({names}) cannot use scrlm_dask "
        f"{ours} ({found}); install it there, in the environment that `dask worker` runs in"
    )
