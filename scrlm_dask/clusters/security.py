"""TLS certificates, checks of scheduler addresses, and the tunnel to a dashboard.

Any process that can connect to a Dask port without TLS can run code as the user.
"""

from __future__ import annotations

import getpass
import ipaddress
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scrlm_dask.clusters.options import ClusterOptions, Connection
from scrlm_dask.errors import ClusterError, InputError
from scrlm_dask.events import Listener, Note

_SSH_LOGIN = "SSH_CONNECTION"  # set by sshd: client address and port, server address and port
_ENCRYPTED = ("tls", "wss")
_WAY_OUT = (
    "start scheduler and workers with --tls-ca-file, --tls-cert and --tls-key, and use the same "
    "options here"
)


@contextmanager
def certificates(options: ClusterOptions) -> Iterator[None]:
    """Set Dask's TLS configuration of client, scheduler and workers in a `with` block."""
    import dask

    ca_file, cert = str(options.tls_ca_file), str(options.tls_cert)
    key = options.tls_key or cert
    _check_files(ca_file, cert, key)
    both = {"cert": cert, "key": key}
    with dask.config.set(
        {
            "distributed.comm.tls.ca-file": ca_file,
            **{f"distributed.comm.tls.{role}": both for role in ("client", "scheduler", "worker")},
            "distributed.comm.require-encryption": True,
        }
    ):
        yield


def _check_files(ca_file: str, cert: str, key: str) -> None:
    """Raise if a file is missing or invalid; Dask would only report a timeout."""
    for file in (ca_file, cert, key):
        if not Path(file).is_file():
            raise InputError(f"certificate or key file {file} not found; check the --tls options")
    try:
        context = ssl.create_default_context(cafile=ca_file)
        context.load_cert_chain(cert, key)
    except (ssl.SSLError, OSError) as error:
        raise InputError(
            f"{ca_file}, {cert} and {key} must be PEM files of a certificate authority, a "
            f"certificate and its key ({error}); check the --tls options"
        ) from error


def check_certificate(address: str) -> None:
    """Raise if a TLS scheduler is used without a client certificate: Dask would hang at exit."""
    from distributed import Security

    if scheme_of(address) not in _ENCRYPTED:
        return
    if Security().get_connection_args("client")["ssl_context"] is None:
        raise ClusterError(
            f"the scheduler at {address} requires a TLS client certificate; use --tls-ca-file, "
            "--tls-cert and --tls-key"
        )


def check_encrypted(address: str, options: ClusterOptions, listener: Listener) -> None:
    """Warn, or raise with `require_tls`, if a scheduler on the network does not use TLS."""
    if scheme_of(address) in _ENCRYPTED or is_loopback(host_of(address)):
        return
    text = (
        f"the scheduler at {address} does not use TLS: any process that can connect to it can run "
        "code as you"
    )
    if options.require_tls:
        raise ClusterError(f"{text}; {_WAY_OUT}, or leave out --require-tls")
    listener(Note(f"{text}; {_WAY_OUT}", warning=True))


def scheme_of(address: str) -> str:
    """Return the protocol of an address, such as `tls`; empty if it has none."""
    return address.rpartition("://")[0]


def host_of(address: str) -> str:
    """Return the host in the address of a scheduler or of its dashboard."""
    try:
        return urlsplit(address if "//" in address else f"//{address}").hostname or ""
    except ValueError as error:  # such as an incomplete IPv6 address
        raise InputError(f"{address!r} is not a valid address ({error})") from error


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address is this machine's loopback interface."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def describe_connection(description: str, client: Any, nthreads: int | None = None) -> Connection:
    """Describe a cluster.

    `nthreads` is the number of compute threads per worker; None: all threads compute.
    """
    # `client.scheduler_info` may have no workers, because the client refreshes it without them
    workers = client.sync(client.scheduler.identity, n_workers=-1)["workers"].values()
    limits = [worker["memory_limit"] for worker in workers]
    return Connection(
        description,
        client.dashboard_link,
        sum(nthreads or worker["nthreads"] for worker in workers),
        sum(limits) if all(limits) else None,
        tunnel_command(client.dashboard_link),
    )


def tunnel_command(dashboard: str | None) -> str | None:
    """Return the ssh command that forwards the dashboard port to the user's machine.

    Return None if there is no dashboard, or if it is on the loopback interface and the user is not
    logged in by ssh.
    """
    if dashboard is None:
        return None
    page = urlsplit(dashboard)
    login = os.environ.get(_SSH_LOGIN, "").split()
    if page.hostname is None or (is_loopback(page.hostname) and not login):
        return None
    port = page.port or (443 if page.scheme == "https" else 80)
    here = login[2] if len(login) == 4 else socket.gethostname()
    return f"ssh -N -L {port}:{page.hostname}:{port} {_user()}@{here}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, for example in a container
        return "USER"
