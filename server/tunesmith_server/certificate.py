"""Whether the API's certificate can be served and believed: tried on a connection in memory."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

from tunesmith_schema.tls import tls_context
from tunesmith_schema.unsafe import check_private


def check_certificate(cert: Path, key: Path, host: str) -> None:
    """Raises ValueError when the key is open to other users, or when a client on this machine that
    knows `cert` would refuse it at `host`: unreadable, not the key's, expired, for another name.
    """
    for variable, path in (("TUNESMITH_TLS_CERT", cert), ("TUNESMITH_TLS_KEY", key)):
        if not path.is_file():
            raise ValueError(f"{variable}: there is no file {path}")
    check_private(key, "the TLS key")
    try:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(cert, key, password=_no_passphrase)
        client = tls_context(cert, host)
    except OSError as error:  # ssl.SSLError is one
        why = getattr(error, "reason", None) or error.strerror or error
        raise ValueError(
            f"TUNESMITH_TLS_CERT {cert} and TUNESMITH_TLS_KEY {key} cannot be used as a "
            f"certificate and its key in PEM ({why})"
        ) from None
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname=host)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for side in (asking, answering, asking):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise ValueError(
            f"TUNESMITH_TLS_CERT {cert} would be refused: {error.verify_message}"
        ) from None


def _no_passphrase() -> str:
    # Without this OpenSSL asks the terminal, and a service waits there for ever.
    raise ValueError("TUNESMITH_TLS_KEY needs a passphrase: give a key without one")
