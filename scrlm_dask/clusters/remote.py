"""A cluster that runs already: reached, of our version, with workers that can do the work."""

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

from scrlm_dask.clusters.describe import count, describe_connection
from scrlm_dask.clusters.options import ClusterOptions, Connection
from scrlm_dask.clusters.security import check_certificate, check_encrypted
from scrlm_dask.errors import ClusterError
from scrlm_dask.events import Listener
from scrlm_dask.settings import WAIT_LONGER, workers_timeout

_CONNECT_TIMEOUT = 20
_FILE_SECONDS, _FILE_AGAIN_SECONDS = 10.0, 0.1
_NAMED = 3  # workers in a message


@contextmanager
def remote_cluster(
    address: str, where: str, options: ClusterOptions, listener: Listener
) -> Iterator[Connection]:
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
        workers = count(len(client.nthreads()), "worker")
        yield describe_connection(f"{workers} of the scheduler at {where}", client)


def address_in(scheduler_file: str) -> str:
    """The address in a scheduler's file; Dask itself would wait for the file for ever."""
    try:
        return str(_json_in(Path(scheduler_file))["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"no scheduler's address in the file {scheduler_file} ({error!r}); start one with "
            "`dask scheduler --scheduler-file`"
        ) from error


def _json_in(file: Path) -> Any:
    """What the file holds; a scheduler that was just started is about to write it.

    It is there for a moment before all of it is.
    """
    deadline = time.monotonic() + _FILE_SECONDS
    while True:
        try:
            return json.loads(file.read_text())
        except (FileNotFoundError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_FILE_AGAIN_SECONDS)


def check_scheduler(address: str, where: str) -> None:
    """See that a scheduler answers, and is of our major version: before a client goes there, which
    would be left behind half made, and hang at the end of the process.
    """
    from distributed.utils import LoopRunner

    runner = LoopRunner()
    runner.start()
    try:
        theirs = runner.run_sync(_version_at, address)
    # nobody there, no TLS, no certificate, or something else that speaks as it pleases
    except Exception as error:
        raise ClusterError(
            f"no Dask scheduler answers at {where} ({str(error) or type(error).__name__}); "
            f"{_advice(address)}, or leave it out "
            "for a local cluster"
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

    # what Dask logs of a scheduler that is gone, the error says in one sentence
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        # what matters of it was refused, in words
        warnings.simplefilter("ignore", VersionMismatchWarning)
        # not the default yet: one that fails to start would stay it
        return Client(address, timeout=_CONNECT_TIMEOUT, set_as_default=False)


def _advice(address: str) -> str:
    """A scheduler with TLS simply hangs up on those without, and the other way round."""
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
    """Refuse workers that lack this package, or have another version of it.

    They are asked by a function of Python's own: one of ours could not even be told to them.
    """
    ours = version("scrlm-dask")
    answers = client.run(pkgutil.resolve_name, "scrlm_dask:__version__", on_error="return")
    lacking = {name: said for name, said in answers.items() if said != ours}
    if not lacking:
        return
    names = ", ".join(list(lacking)[:_NAMED]) + (", ..." if len(lacking) > _NAMED else "")
    said = next(iter(lacking.values()))
    found = said if isinstance(said, str) else f"{type(said).__name__}: {said}"
    raise ClusterError(
        f"{len(lacking)} of {count(len(answers), 'worker')} ({names}) cannot use scrlm_dask {ours} "
        f"({found}); install it there, in the environment that `dask worker` runs in"
    )
