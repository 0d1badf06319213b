"""How a process of ours trusts a server of ours: by a file of certificates and nothing else."""

from __future__ import annotations

import ssl
from pathlib import Path

from .unsafe import is_loopback


def trusting(ca_file: Path, host: str) -> ssl.SSLContext:
    """For connections to `host`, whose certificate is in `ca_file` or was signed by one in it.

    On this machine's own addresses the name in it is not compared: a certificate is for the name
    under which others reach the server. Raises OSError when the file cannot be read or has no
    certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca_file)
    # The server's own certificate is enough, without the chain to its authority.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = not is_loopback(host)
    return context
