"""`[loras.NAME]`: operator's adapters that requests may name."""

from __future__ import annotations

from models.spec.lora import Expert
from service.settings.section import Section


class LoraSettings(Section):
    """Adapter of the operator's, loaded by the workers of its model."""

    source: str
    """Safetensors file, folder that contains only this file, or `hub-id@revision:file`. The
    revision and the file's name may be omitted if unambiguous."""
    model: str
    """Name of the model that the adapter is for; without `@version` for all its versions. Or a
    prefix of that model's fingerprint."""
    expert: Expert | None = None
    """Expert of Wan 2.2 that the file is for. Default: `high`, as in diffusers."""
    trigger: str = ""
    """Trigger words that prompts should contain."""
    preview: str | None = None
    """PNG, JPEG or WebP file with an example image. Default: none."""
    tenants: tuple[str, ...] = ()
    """Tenants that may use it. Default: all."""
