"""`[output]` and `[store]`: metadata of output files, and where files are stored."""

from __future__ import annotations

from pathlib import Path

from pydantic import model_validator

from service.settings.section import Section


class OutputSettings(Section):
    """Metadata and signatures of image and video files."""

    metadata: bool = True
    """Whether files contain their recipe, AUTOMATIC1111's `parameters` and IPTC's mark of generated
    images. A request may disable them for itself (`output.metadata`), but not enable them."""
    prompts: bool = True
    """Whether recipes contain the prompts."""
    c2pa_key: Path | None = None
    """Private key in PEM, without a password, that signs files as Content Credentials (C2PA):
    P-256, P-384, P-521, Ed25519 or RSA. Needs the extra `c2pa`. Signed files differ in bytes each
    time."""
    c2pa_certificates: Path | None = None
    """Certificate chain of that key in PEM: its own certificate, then those up to a trusted one."""

    @model_validator(mode="after")
    def _has_both(self) -> OutputSettings:
        if (self.c2pa_key is None) != (self.c2pa_certificates is None):
            raise ValueError("c2pa_key and c2pa_certificates go together; set both or none")
        return self


class StoreSettings(Section):
    """Location of the store for inputs, outputs and snapshots."""

    url: str | None = None
    """Folder, `s3://…` or `gs://…`. Default: `outputs/` in the state folder."""
