"""`[limits]`: what front ends accept at most."""

from __future__ import annotations

from pydantic import Field

from models.spec.video_files import FRAME_PIXELS
from service.settings.section import Section


class LimitSettings(Section):
    """Limits of the front end, whatever the model could do."""

    max_side_px: int = Field(4096, gt=0)
    """Maximum width and height."""
    max_pixels: int = Field(4096 * 4096, gt=0)
    """Maximum of width times height."""
    max_upscaled_pixels: int = Field(8192 * 8192, gt=0)
    """Maximum of width times height behind an upscaler. Workers hold some ten bytes a pixel while
    they draw and encode it."""
    max_frames: int = Field(257, gt=0)
    """Maximum number of frames of a video."""
    max_clip_pixels: int = Field(1280 * 720 * 257, gt=0)
    """Maximum of width times height times frames of a video, also of one that is sent. Workers hold
    three times as many bytes while they encode it, and of one that is sent, in the size of the
    video that is drawn, while its job runs."""
    max_steps: int = Field(200, gt=0)
    """Maximum number of denoising steps; of hires fix's second pass, of those that its strength
    leaves."""
    max_images: int = Field(16, gt=0)
    """Maximum number of images per request."""
    max_prompt_chars: int = Field(10_000, gt=0)
    """Maximum length of a prompt."""
    max_loras: int = Field(8, gt=0)
    """Maximum number of adapters per request."""
    max_lora_rank: int = Field(128, gt=0, le=256)
    """Maximum rank of an uploaded adapter."""
    max_lora_bytes: int = Field(2**30, gt=0)
    """Maximum size of an uploaded adapter's file."""
    max_body_bytes: int = Field(32 * 2**20, gt=0)
    """Maximum size of a request's body."""
    max_inflight_bytes: int = Field(256 * 2**20, gt=0)
    """Bytes of bodies being read or checked and of outputs being sent, over all requests. One
    client (a tenant, or without keys an address) may have half of it, and one request at a time in
    any case."""
    max_image_pixels: int = Field(40_000_000, gt=0)
    """Maximum number of pixels of an input image, checked before it is decoded. A process that
    checks one may use 320 MiB and 24 bytes a pixel."""
    max_frame_pixels: int = Field(FRAME_PIXELS, gt=0)
    """Maximum number of pixels of a frame of an input video, checked before it is decoded. Decoders
    keep up to 17 frames. A process of a pool that decodes one may use 320 MiB and 24 bytes a
    pixel."""
    image_cpu_s: float = Field(5, gt=0)
    """Processor time that decoding an input image may take."""
    video_cpu_s: float = Field(30, gt=0)
    """Processor time that checking an input video may take, by decoding it. Pools, which scale its
    frames too, may take four times as long."""
    max_wait_s: float = Field(600, gt=0)
    """Longest wait that `Prefer: wait=N` or an `Accept` for files can ask for."""
