"""Content Credentials (C2PA): outputs signed with the operator's key. Needs the extra `c2pa`.

The manifest states that a model generated the file and which program ran it, without the prompt.
Signatures are random: equal requests give equal pixels but different bytes.

Source: C2PA Technical Specification 2.2, 11 (manifests), 14.5 (certificates), 18.15 (actions).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from service.recipes.recipe import generator
from service.settings.installation import how_to_install
from service.settings.output import OutputSettings
from service.settings.section import ConfigError

TYPES = frozenset({"image/png", "image/jpeg", "image/webp", "image/gif", "video/mp4"})
"""Content types that are signed; C2PA does not define WebM."""
MISSING = (
    f"output.c2pa_key: signing needs the extra c2pa: {how_to_install('c2pa')}, or leave the key out"
)
OPTIONS = {"builder": {"thumbnail": {"enabled": False}}, "verify": {"verify_after_sign": False}}
"""Options of the library. A thumbnail would be larger than most outputs and slower than their
encoding. A fresh signature needs no verification."""

Sign = Callable[[bytes, str, str], bytes]
"""Signs a file, given its content type and IPTC's digital source type."""


def signer_of(settings: OutputSettings) -> Sign | None:
    """Return the signer of the settings, or None if they have no key.

    Raises: ConfigError: the extra is missing, or the key or certificates are unusable.
    """
    if settings.c2pa_key is None or settings.c2pa_certificates is None:
        return None
    try:
        import c2pa
    except ImportError:
        raise ConfigError(MISSING) from None
    certificates = _bytes("c2pa_certificates", settings.c2pa_certificates)
    key = _bytes("c2pa_key", settings.c2pa_key)
    algorithm = _algorithm(key, certificates)
    try:
        info = c2pa.C2paSignerInfo(algorithm, certificates, key, None)
        return _Signer(c2pa, c2pa.Signer.from_info(info))
    except c2pa.C2paError as error:
        raise ConfigError(f"output.c2pa_certificates: they cannot sign: {error}") from None


def _bytes(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"output.{name}: can't read {str(path)!r}: {error.strerror}") from None


def _algorithm(key: bytes, certificates: bytes) -> str:
    """Return the name of a signing key's algorithm.

    Raises: ConfigError: the key does not match the certificates, or either is unusable.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(key, None)
    except (ValueError, TypeError) as error:
        text = f"it is no private key in PEM without a password: {error}"
        raise ConfigError(f"output.c2pa_key: {text}") from None
    try:
        cert, *_ = x509.load_pem_x509_certificates(certificates)
    except ValueError as error:
        text = f"they are no chain in PEM, that of the key first: {error}"
        raise ConfigError(f"output.c2pa_certificates: {text}") from None
    if cert.public_key() != private.public_key():
        raise ConfigError("output.c2pa_certificates: the first one is not that of output.c2pa_key")
    if not cert.not_valid_before_utc <= datetime.now(UTC) <= cert.not_valid_after_utc:
        text = f"valid from {cert.not_valid_before_utc} to {cert.not_valid_after_utc}, and not now"
        raise ConfigError(f"output.c2pa_certificates: the first one is {text}")
    return _name_of(private)


def _name_of(key: Any) -> str:
    """Return C2PA's name of a signing key's algorithm. Raises: ConfigError: unsupported."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if isinstance(key, ec.EllipticCurvePrivateKey):
        names = {"secp256r1": "es256", "secp384r1": "es384", "secp521r1": "es512"}
        if key.curve.name in names:
            return names[key.curve.name]
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return "ed25519"
    if isinstance(key, rsa.RSAPrivateKey):
        return "ps256"
    raise ConfigError("output.c2pa_key: C2PA knows keys of P-256, P-384, P-521, Ed25519 and RSA")


class _Signer:
    """Signer of files with Content Credentials, one at a time: the library is not thread-safe."""

    def __init__(self, c2pa: Any, signer: Any) -> None:
        self._c2pa = c2pa
        self._signer = signer
        self._context = c2pa.Context.from_dict(OPTIONS)
        self._lock = Lock()

    def __call__(self, data: bytes, content_type: str, source: str) -> bytes:
        """Return the file with a signed manifest; unsupported types are returned unchanged."""
        if content_type not in TYPES:
            return data
        signed = io.BytesIO()
        with self._lock, self._c2pa.Builder(manifest(source), context=self._context) as builder:
            builder.sign(self._signer, content_type, io.BytesIO(data), signed)
        return signed.getvalue()


def manifest(source: str) -> dict[str, Any]:
    """Return the C2PA manifest of a file with this digital source type."""
    name, _, version = generator().partition(" ")
    program = {"name": name} | ({"version": version} if version else {})
    action = {"action": "c2pa.created", "digitalSourceType": source, "softwareAgent": program}
    created = {"label": "c2pa.actions.v2", "data": {"actions": [action]}}
    return {"claim_generator_info": [program], "assertions": [created]}
