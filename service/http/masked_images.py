"""Images that are redrawn where a mask is white: what a model is given, and its result in them.

Nothing of it needs more than Pillow: it runs in the processes that check images.

Source: AUTOMATIC1111 stable-diffusion-webui, modules/masking.py and modules/processing.py,
`StableDiffusionProcessingImg2Img` (which part is given, and how a hole is filled).
"""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image, ImageFilter, ImageOps

from models.spec.image_files import ImageFileError

Box = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels."""
OPAQUE = 255
HALF = 128
LAYERS = ((256, 1), (64, 1), (16, 2), (4, 4), (2, 2), (0, 1))
"""Blurs that fill a hole, wide ones below: radius in pixels, and how often each is laid on."""


@dataclass(frozen=True)
class Redrawing:
    """Settings of how an image is redrawn.

    Args:
        size: width and height that the model makes, in pixels.
        blur_px: standard deviation of the mask's blur, across and down.
        fills: fill what is masked with the colours around it, and redraw that.
        inverts: redraw where the mask is black.
        padding_px: margin around what is masked: that part alone is given to the model. None: the
            whole image is.
    """

    size: tuple[int, int]
    blur_px: tuple[float, float] = (0.0, 0.0)
    fills: bool = False
    inverts: bool = False
    padding_px: int | None = None


@dataclass(frozen=True)
class Masked:
    """An image and its mask as a model is given them.

    Args:
        image: None: as it was sent.
        mask: None: as it was sent.
        box: the part of the image that they are; None: all of it.
        soft: mask of the whole image, by which that part comes back into it.
    """

    image: Image.Image | None = None
    mask: Image.Image | None = None
    box: Box | None = None
    soft: Image.Image | None = None


def masked(image: Image.Image, mask: Image.Image, how: Redrawing) -> Masked:
    """Return what a model is given. Raises: ImageFileError: nothing is masked."""
    soft = soft_mask(mask, how)
    if how.padding_px is not None:
        return _part(image, soft.resize(image.size, Image.Resampling.LANCZOS), how)
    is_as_sent = not (has_holes(mask) or how.inverts or any(how.blur_px))
    whole = None
    if how.fills:
        sides = (one.resize(how.size, Image.Resampling.LANCZOS) for one in (image, soft))
        whole = filled(*sides)
    return Masked(whole, None if is_as_sent else soft)


def _part(image: Image.Image, soft: Image.Image, how: Redrawing) -> Masked:
    """The part around what is masked, enlarged to the size that the model makes."""
    box = box_of(soft, how)
    part, hole = (one.resize(how.size, Image.Resampling.LANCZOS, box=box) for one in (image, soft))
    return Masked(filled(part, hole) if how.fills else part, hole, box, soft)


def soft_mask(mask: Image.Image, how: Redrawing) -> Image.Image:
    """Return the mask in grey: of a file with holes, white where it is not one; then blurred."""
    if has_holes(mask):
        levels = mask.getchannel("A").point(lambda level: OPAQUE if level > HALF else 0)
    else:
        levels = mask.convert("L")
    if how.inverts:
        levels = ImageOps.invert(levels)
    return levels.filter(ImageFilter.GaussianBlur(how.blur_px)) if any(how.blur_px) else levels


def has_holes(mask: Image.Image) -> bool:
    """Return whether a file is transparent anywhere, which is then its mask."""
    return mask.mode == "RGBA" and mask.getchannel("A").getextrema() != (OPAQUE, OPAQUE)


def box_of(soft: Image.Image, how: Redrawing) -> Box:
    """Return the part with all that is masked, in the shape of what the model makes.

    At the edges of the image it may have another shape, which the model's is stretched to.

    Raises: ImageFileError: nothing is masked.
    """
    found = soft.getbbox()
    if found is None:
        raise ImageFileError("has nothing to redraw; leave it out to redraw the whole image")
    margin, ratio = how.padding_px or 0, how.size[0] / how.size[1]
    left, right = max(found[0] - margin, 0), min(found[2] + margin, soft.width)
    top, bottom = max(found[1] - margin, 0), min(found[3] + margin, soft.height)
    width, height = right - left, bottom - top
    left, right = _grown(left, right, int(height * ratio), soft.width)
    top, bottom = _grown(top, bottom, int(width / ratio), soft.height)
    return left, top, right, bottom


def _grown(low: int, high: int, length: int, end: int) -> tuple[int, int]:
    """An interval of at least that length around another one, inside of 0 to `end`."""
    length = max(length, high - low)
    low = max(0, min(low - (length - (high - low)) // 2, end - length))
    return low, min(low + length, end)


def filled(image: Image.Image, mask: Image.Image) -> Image.Image:
    """Return an image whose masked part has the colours around it, blurred into it."""
    kept = image.convert("RGBA")
    kept.putalpha(ImageOps.invert(mask))
    around = kept.convert("RGBa")  # premultiplied, so that no colour of the hole is blurred
    laid = Image.new("RGBA", image.size)
    for radius, times in LAYERS:
        layer = around.filter(ImageFilter.GaussianBlur(radius)).convert("RGBA")
        for _ in range(times):
            laid.alpha_composite(layer)
    return laid.convert("RGB")


def pasted(image: Image.Image, soft: Image.Image, box: Box, made: Image.Image) -> Image.Image:
    """Return an image with what was made of its part, as far as the mask is white."""
    redrawn = image.copy()
    size = (box[2] - box[0], box[3] - box[1])
    redrawn.paste(made.resize(size, Image.Resampling.LANCZOS), box)
    return Image.composite(redrawn, image, soft)
