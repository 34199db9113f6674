"""`[loras.NAME]`: adapters that requests may name."""

from __future__ import annotations

from models.spec.lora import Expert
from service.settings.section import Section


class LoraSettings(Section):
    """Adapter of the operator's, read by the workers of its model."""

    source: str
    """Safetensors file; folder with a single one; or `hub-id@revision:file`, the revision and the
    file's name left out where there is but one."""
    model: str
    """Name of the model that it is for, without an `@version` of all its versions; or the beginning
    of that model's fingerprint."""
    expert: Expert | None = None
    """Expert of Wan 2.2 that the file is for. Left out: `high`, as in diffusers."""
    trigger: str = ""
    """Words that prompts should hold for it."""
    preview: str | None = None
    """PNG, JPEG or WebP file that shows it. Left out: none."""
    tenants: tuple[str, ...] = ()
    """Tenants that may use it. Left out: all."""
