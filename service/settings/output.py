"""`[output]`: what files say of themselves."""

from __future__ import annotations

from pathlib import Path

from pydantic import model_validator

from service.settings.section import Section


class OutputSettings(Section):
    """Files of images and videos."""

    metadata: bool = True
    """Whether files hold their recipe, AUTOMATIC1111's `parameters` and IPTC's mark of made images.
    A request may switch them off for itself (`output.metadata`), and not on."""
    prompts: bool = True
    """Whether recipes hold the prompts. False: whoever sees a file does not see what was asked."""
    c2pa_key: Path | None = None
    """Private key in PEM, without a password, that signs files as Content Credentials (C2PA): of
    P-256, P-384, P-521, Ed25519 or RSA. Needs the extra `c2pa`. Signed files have other bytes every
    time."""
    c2pa_certificates: Path | None = None
    """Certificates of that key in PEM: its own, then those between it and a trusted one."""

    @model_validator(mode="after")
    def _has_both(self) -> OutputSettings:
        if (self.c2pa_key is None) != (self.c2pa_certificates is None):
            raise ValueError("c2pa_key and c2pa_certificates go together; set both or none")
        return self
