"""Certificates for tests, self-signed or signed by a test authority."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Two PEM files."""

    cert: Path
    key: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"TUNESMITH_TLS_CERT": str(self.cert), "TUNESMITH_TLS_KEY": str(self.key)}


def issue(
    folder: Path,
    *names: str,
    by: Certificate | None = None,
    days: float = 1.0,
    passphrase: bytes | None = None,
) -> Certificate:
    """Make a certificate for `names` (addresses or host names). It is valid from yesterday until
    `days` from now. It is signed by the authority `by`, or self-signed."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    signing = key
    if by:
        issuer = x509.load_pem_x509_certificate(by.cert.read_bytes()).subject
        loaded = serialization.load_pem_private_key(by.key.read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signing = loaded
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days))
        # openssl also lets a self-signed certificate sign others.
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), True)
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in names]), False)
        .sign(signing, hashes.SHA256())
    )
    made = Certificate(cert=folder / "cert.pem", key=folder / "key.pem")
    made.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    made.key.touch(mode=0o600)
    made.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(passphrase)
            if passphrase
            else serialization.NoEncryption(),
        )
    )
    return made


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
