"""Request of Wan, validated. No JAX: front ends import this module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.dataclasses import dataclass

from models.spec.field_types import Count, Scale, TextTokens
from models.spec.prompt_syntax import PromptSyntax
from models.spec.request import REQUEST, Request, served_fields


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class WanRequest(Request):
    """Parameters of one Wan video, named as in diffusers' Wan and WanImageToVideo pipelines."""

    num_frames: Count
    guidance_scale: Scale
    max_sequence_length: TextTokens
    """UMT5 tokens of each prompt."""
    guidance_scale_2: Scale | None = None
    """Guidance scale of the low-noise expert; None uses `guidance_scale`."""
    conditioning_scale: Sequence[Scale] | None = None
    """Scales of VACE's hints: one for all, or one per hint; None means 1."""
    prompt_syntax: PromptSyntax = "plain"
    scheduler: Mapping[str, Any] | None = None
    """Scheduler `name` and options; None selects the checkpoint's scheduler."""

    @property
    def guided(self) -> bool:
        """Return whether guidance is on; as in diffusers, the first expert's scale decides."""
        return self.guidance_scale > 1

    @property
    def prompts(self) -> dict[str, str]:
        """Prompts by field: the prompt, and with guidance the negative prompt."""
        negative = {"negative_prompt": self.negative_prompt or ""} if self.guided else {}
        return {"prompt": self.prompt, **negative}

    @property
    def size(self) -> str:
        """Width, height and frames, as a part of the bucket key."""
        return f"{self.width}x{self.height}x{self.num_frames}"

    @property
    def text(self) -> str:
        """Text length and number of prompts, as a part of the bucket key."""
        return f"text={self.max_sequence_length},prompts={len(self.prompts)}"

    def scale_of(self, expert: str) -> float:
        """Return the guidance scale of one expert."""
        if expert == "transformer_2" and self.guidance_scale_2 is not None:
            return self.guidance_scale_2
        return self.guidance_scale


VACE_IMAGES = ("reference_images", "control_video", "mask_video")
ANIMATE_VIDEOS = ("pose_video", "face_video", "background_video")
FIELDS = served_fields(WanRequest, "image", "last_image", *VACE_IMAGES, *ANIMATE_VIDEOS) | {"fps"}
"""Request fields of Wan; `fps` affects only the output file."""
