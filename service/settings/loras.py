"""`[loras.NAME]` and `[embeddings.NAME]`: operator's adapters and embeddings for requests."""

from __future__ import annotations

from models.spec.lora import Expert
from service.settings.section import Section


class LoraSettings(Section):
    """Adapter of the operator, loaded by the workers of its model."""

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


class EmbeddingSettings(Section):
    """Embedding (textual inversion) of the operator, whose name prompts may contain."""

    source: str
    """Safetensors file with `clip_l` and `clip_g` (SDXL) or `t5` (Flux), folder that contains only
    this file, or `hub-id@revision:file`. The revision and the file's name may be omitted if
    unambiguous."""
    model: str
    """Name of the model that the embedding is for, as for an adapter."""
    tenants: tuple[str, ...] = ()
    """Tenants that may use it. Default: all."""

    def as_adapter(self) -> LoraSettings:
        """Return an embedding's settings in the form of an adapter's."""
        return LoraSettings(source=self.source, model=self.model, tenants=self.tenants)
