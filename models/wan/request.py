"""A resolved request, as Wan reads it: checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.interface.pipeline import Fields, RequestError

MAX_SEQUENCE_LENGTH = 512
"""UMT5 tokens at most, as in diffusers' Wan pipelines."""


@dataclass(frozen=True)
class WanRequest:
    """One clip. Names are diffusers' arguments of WanPipeline and WanImageToVideoPipeline."""

    prompt: str
    seed: int
    width: int
    height: int
    num_frames: int
    num_inference_steps: int
    guidance_scale: float
    max_sequence_length: int
    guidance_scale_2: float | None = None
    """Of the low-noise expert; None: as the other's."""
    negative_prompt: str | None = None
    scheduler: Mapping[str, Any] | None = None
    """`name` and options; None: the checkpoint's own."""

    @classmethod
    def from_fields(cls, fields: Fields) -> WanRequest:
        """Raises: RequestError for a value out of range, by the field's name."""
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        for name in ("guidance_scale", "guidance_scale_2"):
            if known.get(name) is not None:
                known[name] = float(known[name])
        missing = [name for name in ("prompt", "seed") if known.get(name) is None]
        if missing:
            raise RequestError(missing[0], "is needed")
        request = cls(**known)
        request._check()
        return request

    def _check(self) -> None:
        if not 1 <= self.max_sequence_length <= MAX_SEQUENCE_LENGTH:
            raise RequestError("max_sequence_length", f"must be 1 to {MAX_SEQUENCE_LENGTH}")
        if self.num_inference_steps < 1:
            raise RequestError("num_inference_steps", "must be at least 1")

    @property
    def guided(self) -> bool:
        """As in diffusers: the first expert's scale decides for both."""
        return self.guidance_scale > 1

    @property
    def prompts(self) -> dict[str, str]:
        """By field: the prompt, and where it is guided the negative prompt."""
        negative = {"negative_prompt": self.negative_prompt or ""} if self.guided else {}
        return {"prompt": self.prompt, **negative}

    @property
    def shape(self) -> str:
        """What of it shapes programs, to tell buckets apart by."""
        size = f"{self.width}x{self.height}x{self.num_frames}"
        return f"{size},text={self.max_sequence_length},prompts={len(self.prompts)}"

    def scale_of(self, expert: str) -> float:
        """The guidance of one expert."""
        if expert == "transformer_2" and self.guidance_scale_2 is not None:
            return self.guidance_scale_2
        return self.guidance_scale
