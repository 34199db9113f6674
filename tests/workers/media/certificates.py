"""Certificate chain for signing, issued by a private test root."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from service.settings.output import OutputSettings

USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True)
class Chain:
    """Files of a key and its certificates, and the root as text."""

    key: Path
    certificates: Path
    root: str

    @property
    def settings(self) -> OutputSettings:
        return OutputSettings(c2pa_key=self.key, c2pa_certificates=self.certificates)


def make(folder: Path, key: Any = None, days: int = 30) -> Chain:
    """Create a root, and a signing certificate of it that is valid for `days` days from now."""
    key, root_key = (
        key or ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    root = certificate("root", root_key, "root", root_key, days, is_root=True)
    leaf = certificate("own", key, "root", root_key, days, is_root=False)
    chain = Chain(folder / "key.pem", folder / "certificates.pem", text(root).decode())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain.key.write_bytes(secret)
    chain.certificates.write_bytes(text(leaf) + text(root))
    return chain


def text(item: x509.Certificate) -> bytes:
    return item.public_bytes(Encoding.PEM)


def certificate(
    name: str, key: Any, issuer: str, issuer_key: Any, days: int, *, is_root: bool
) -> x509.Certificate:
    end = datetime.now(UTC) + timedelta(days=days)
    allowed = {"key_cert_sign", "crl_sign"} if is_root else {"digital_signature"}
    usage = x509.KeyUsage(**{usage: usage in allowed for usage in USAGES})
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    builder = (
        x509.CertificateBuilder(named(issuer), named(name), key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - timedelta(days=60))
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=is_root, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issued_by, critical=False)
    )
    if not is_root:
        mail = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])
        builder = builder.add_extension(mail, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def named(name: str) -> x509.Name:
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Test")
    return x509.Name([organization, x509.NameAttribute(NameOID.COMMON_NAME, name)])
