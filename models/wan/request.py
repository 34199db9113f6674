"""A resolved request, as Wan reads it: checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from models.interface.request import REQUEST, served_fields
from models.spec.field_types import Count, Pixels, Scale, Seed
from models.spec.prompt_syntax import PromptSyntax

MAX_SEQUENCE_LENGTH = 512
"""UMT5 tokens at most, as in diffusers' Wan pipelines."""


@dataclass(frozen=True, config=REQUEST)
class WanRequest:
    """Video. Names are diffusers' arguments of WanPipeline and WanImageToVideoPipeline."""

    prompt: str
    seed: Seed
    width: Pixels
    height: Pixels
    num_frames: Count
    num_inference_steps: Count
    guidance_scale: Scale
    max_sequence_length: Annotated[Count, Field(le=MAX_SEQUENCE_LENGTH)]
    guidance_scale_2: Scale | None = None
    """Guidance scale of the low-noise expert; None: the other's."""
    conditioning_scale: Sequence[Scale] | None = None
    """Factors of VACE's hints: one for all, or one a hint; None: 1."""
    prompt_syntax: PromptSyntax = "plain"
    negative_prompt: str | None = None
    scheduler: Mapping[str, Any] | None = None
    """`name` and options; None: the checkpoint's own."""

    @property
    def guided(self) -> bool:
        """True if guided. As in diffusers, the first expert's scale decides for both."""
        return self.guidance_scale > 1

    @property
    def prompts(self) -> dict[str, str]:
        """Prompts by field: the prompt, and where it is guided the negative prompt."""
        negative = {"negative_prompt": self.negative_prompt or ""} if self.guided else {}
        return {"prompt": self.prompt, **negative}

    @property
    def size(self) -> str:
        """Size, to tell buckets apart by."""
        return f"{self.width}x{self.height}x{self.num_frames}"

    @property
    def text(self) -> str:
        """Text and prompts, which shape programs besides."""
        return f"text={self.max_sequence_length},prompts={len(self.prompts)}"

    def scale_of(self, expert: str) -> float:
        """The guidance of one expert."""
        if expert == "transformer_2" and self.guidance_scale_2 is not None:
            return self.guidance_scale_2
        return self.guidance_scale


VACE_IMAGES = ("reference_images", "control_video", "mask_video")
ANIMATE_VIDEOS = ("pose_video", "face_video", "background_video")
FIELDS = served_fields(WanRequest, "image", "last_image", *VACE_IMAGES, *ANIMATE_VIDEOS) | {"fps"}
"""Request fields of Wan; `fps` is the file's, not the network's."""
