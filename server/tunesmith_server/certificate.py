"""Check of the API's TLS certificate by a handshake in memory."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

from tunesmith_schema.tls import tls_context
from tunesmith_schema.unsafe import check_private


def check_certificate(cert: Path, key: Path, host: str) -> None:
    """Raise ValueError if other users can read the key, or if clients of `host` would refuse the
    certificate. Clients that trust `cert` refuse the certificate if it is unreadable, has expired,
    or does not fit the key or the name `host`."""
    for variable, path in (("TUNESMITH_TLS_CERT", cert), ("TUNESMITH_TLS_KEY", key)):
        if not path.is_file():
            raise ValueError(f"{variable}: file not found: {path}")
    check_private(key, "the TLS key")
    try:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(cert, key, password=_no_passphrase)
        client = tls_context(cert, host)
    except OSError as error:  # includes ssl.SSLError
        reason = getattr(error, "reason", None) or error.strerror or error
        raise ValueError(
            f"TUNESMITH_TLS_CERT {cert} and TUNESMITH_TLS_KEY {key} are not a certificate and its "
            f"key in PEM ({reason})"
        ) from None
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server, server_hostname=host)
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for side in (client_side, server_side, client_side):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise ValueError(
            f"clients would refuse TUNESMITH_TLS_CERT {cert}: {error.verify_message}"
        ) from None


def _no_passphrase() -> str:
    # Without a callback OpenSSL would prompt on the terminal, and a service would hang.
    raise ValueError("TUNESMITH_TLS_KEY needs a passphrase: use a key without a passphrase")
