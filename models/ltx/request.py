"""Request of LTX-2, validated. No JAX: front ends import this module."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from models.spec.field_types import Count, Fraction, FramesPerSecond, Scale
from models.spec.request import REQUEST, FlowRequest, served_fields


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class LTX2Request(FlowRequest):
    """Parameters of a video with audio, named as in LTX2Pipeline; `fps` is its `frame_rate`."""

    SCALES = (
        *("guidance_scale", "audio_guidance_scale", "stg_scale", "modality_scale"),
        "guidance_rescale",
    )

    num_frames: Count
    fps: FramesPerSecond
    guidance_scale: Scale
    audio_guidance_scale: Scale
    modality_scale: Scale
    """Scale of guidance away from predictions without attention between streams."""
    guidance_rescale: Fraction
    stg_scale: Scale = 0.0
    """Scale of guidance away from predictions without a block's self-attention; unavailable in
    LTX-2.0."""

    @property
    def guided(self) -> bool:
        """True if either stream is guided by the negative prompt."""
        return self.guidance_scale > 1 or self.audio_guidance_scale > 1

    @property
    def perturbed(self) -> tuple[str, ...]:
        """Perturbations that guidance uses, by their leaf names."""
        enabled = {"skip_self": self.stg_scale > 0, "skip_cross": self.modality_scale > 1}
        return tuple(name for name, is_enabled in enabled.items() if is_enabled)


FIELDS = served_fields(LTX2Request, "image") - {"scheduler"}
"""Request fields of LTX-2."""
