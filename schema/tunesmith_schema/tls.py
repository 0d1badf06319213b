"""TLS contexts for connections between our own processes; each trusts only the certificates in one
file."""

from __future__ import annotations

import ssl
from pathlib import Path

from .unsafe import is_loopback


def tls_context(ca_file: Path, host: str) -> ssl.SSLContext:
    """Return a TLS context for connections to `host` that trusts only the certificates in
    `ca_file`.

    The file holds the certificate of the server or of its issuer. For loopback addresses the host
    name is not checked, because the certificate has the server's public name. Raises OSError if the
    file cannot be read or holds no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca_file)
    # Accept the server's own certificate without the chain to its issuer.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = not is_loopback(host)
    return context
