"""Who may talk to whom. Whoever reaches a Dask port without TLS can run code as its user."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.errors import ClusterError, InputError
from scrlm_dask.events import Listener, Note

_ENCRYPTED = ("tls", "wss")
_WAY_OUT = (
    "start scheduler and workers with --tls-ca-file, --tls-cert and --tls-key and give these here, "
    "too"
)


@contextmanager
def certificates(options: ClusterOptions) -> Iterator[None]:
    """Dask's own TLS settings for the block: client, scheduler and workers all read them."""
    import dask

    if not options.has_tls:
        yield
        return
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
    """Load them once: Dask would only say that nobody answers."""
    for file in (ca_file, cert, key):
        if not Path(file).is_file():
            raise InputError(f"the certificate or key {file} is not there; check the --tls options")
    try:
        context = ssl.create_default_context(cafile=ca_file)
        context.load_cert_chain(cert, key)
    except (ssl.SSLError, OSError) as error:
        raise InputError(
            f"{ca_file}, {cert} and {key} are not a certificate authority, a certificate and its "
            f"key as PEM files ({error}); check the --tls options"
        ) from error


def check_certificate(address: str) -> None:
    """Refuse a scheduler with TLS where we have no certificate: Dask would hang at the end."""
    from distributed import Security

    if scheme_of(address) not in _ENCRYPTED:
        return
    if Security().get_connection_args("client")["ssl_context"] is None:
        raise ClusterError(
            f"the scheduler at {address} lets nobody in without a certificate; give --tls-ca-file, "
            "--tls-cert and --tls-key"
        )


def check_encrypted(address: str, options: ClusterOptions, listener: Listener) -> None:
    """Warn of a scheduler that anybody on the network may command, or refuse it."""
    if scheme_of(address) in _ENCRYPTED or is_loopback(host_of(address)):
        return
    said = f"the scheduler at {address} talks without TLS: whoever reaches it can run code as you"
    if options.require_tls:
        raise ClusterError(f"{said}; {_WAY_OUT}, or leave out --require-tls")
    listener(Note(f"{said}; {_WAY_OUT}", warning=True))


def scheme_of(address: str) -> str:
    return address.rpartition("://")[0]


def host_of(address: str) -> str:
    """Of a scheduler, or of a page that it serves."""
    try:
        return urlsplit(address if "//" in address else f"//{address}").hostname or ""
    except ValueError as error:  # half of an IPv6 address
        raise InputError(f"{address!r} is not an address ({error}); check it") from error


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
