"""`[limits]`: what front ends accept at most."""

from __future__ import annotations

from pydantic import Field

from service.settings.section import Section


class LimitSettings(Section):
    """What the front end takes at most, whatever the model could do."""

    max_side_px: int = Field(4096, gt=0)
    max_pixels: int = Field(4096 * 4096, gt=0)
    max_frames: int = Field(257, gt=0)
    max_clip_pixels: int = Field(1280 * 720 * 257, gt=0)
    """Of all frames of one clip: what a pool holds in memory while it encodes it, times three."""
    max_steps: int = Field(200, gt=0)
    max_images: int = Field(16, gt=0)
    max_prompt_chars: int = Field(10_000, gt=0)
    max_body_bytes: int = Field(32 * 2**20, gt=0)
    max_inflight_bytes: int = Field(256 * 2**20, gt=0)
    """Of bodies that are read or checked and outputs that are sent, all requests together; one
    client (a tenant, or without keys an address) may have half of it, and one request at a time
    in any case."""
    max_image_pixels: int = Field(40_000_000, gt=0)
    """Of a picture sent as input, before it is decoded. A process that checks one may use 256 MiB
    and 24 bytes a pixel."""
    image_cpu_s: float = Field(5, gt=0)
    """Processor time that a picture sent as input may take to be decoded."""
    max_wait_s: float = Field(600, gt=0)
    """The longest `Prefer: wait=N` or waiting `Accept` that is honoured."""
