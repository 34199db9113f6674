"""`[limits]`: the largest requests that front ends accept."""

from __future__ import annotations

from pydantic import Field

from models.media.video_files import FRAME_PIXELS
from service.settings.section import Section


class LimitSettings(Section):
    """Limits of the front end, in addition to each model's own."""

    max_side_px: int = Field(4096, gt=0)
    """Maximum width and height."""
    max_pixels: int = Field(4096 * 4096, gt=0)
    """Maximum of width times height."""
    max_upscaled_pixels: int = Field(8192 * 8192, gt=0)
    """Maximum of width times height after an upscaler. Workers need about ten bytes per pixel while
    they generate and encode the image."""
    max_frames: int = Field(257, gt=0)
    """Maximum number of frames of a video."""
    max_clip_pixels: int = Field(1280 * 720 * 257, gt=0)
    """Maximum of width times height times frames of a video, including input videos. Workers need
    three bytes for each while they encode it. An input video, scaled to the output's size, needs
    them while its job runs."""
    max_steps: int = Field(200, gt=0)
    """Maximum number of denoising steps. For hires fix: of the second pass's steps, after its
    strength is applied."""
    max_images: int = Field(16, gt=0)
    """Maximum number of images per request."""
    max_prompt_chars: int = Field(10_000, gt=0)
    """Maximum length of a prompt."""
    max_loras: int = Field(8, gt=0)
    """Maximum number of adapters per request."""
    max_lora_rank: int = Field(128, gt=0, le=512)
    """Maximum rank of an uploaded adapter."""
    max_lora_bytes: int = Field(2**30, gt=0)
    """Maximum size of an uploaded adapter's file."""
    max_body_bytes: int = Field(32 * 2**20, gt=0)
    """Maximum size of a request's body."""
    max_inflight_bytes: int = Field(256 * 2**20, gt=0)
    """Maximum total bytes of bodies being read or checked and of outputs being sent. One client (a
    tenant, or without keys an address) may use half of it, and can always have one request. If the
    total is reached, bodies of other clients that arrive at less than 1 MiB/s are ended."""
    max_image_pixels: int = Field(40_000_000, gt=0)
    """Maximum number of pixels of an input image, checked before decoding. The checking process may
    use 320 MiB and 24 bytes per pixel."""
    max_frame_pixels: int = Field(FRAME_PIXELS, gt=0)
    """Maximum number of pixels per frame of an input video, checked before decoding. Decoders keep
    up to 17 frames. A worker's decoding process may use 320 MiB and 24 bytes per pixel."""
    image_cpu_s: float = Field(5, gt=0)
    """Processor time that decoding an input image may take."""
    video_cpu_s: float = Field(30, gt=0)
    """Processor time that checking an input video, by decoding it, may take. Workers, which also
    scale its frames, may take four times as long."""
    max_wait_s: float = Field(600, gt=0)
    """Longest wait that `Prefer: wait=N` or an `Accept` for files may request."""
