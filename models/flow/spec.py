"""Parts of the specs of models that draw images as packed latents."""

from __future__ import annotations

from models.spec.model_spec import Limits

DEFAULT_LATENTS_PX = 128
"""Side of an image in latents where the request names none: 1024 pixels, as in diffusers."""
BUCKET_FIELDS = ("width", "height", "max_sequence_length")


def image_limits(
    token: int,
    longest: int,
    max_sequence_length: int,
    max_pixels: int | None = None,
    **more: int,
) -> Limits:
    """Return the limits of images.

    Args:
        token: pixels of a token's side.
        longest: pixels of the longest side.
        max_pixels: of an image; None: those of a square of that side.
        more: further limits.
    """
    return Limits(
        size_multiple_px=token,
        min_side_px=token,
        max_side_px=longest,
        max_pixels=max_pixels or longest * longest,
        max_steps=1000,
        max_images=16,
        max_sequence_length=max_sequence_length,
        **more,
    )
