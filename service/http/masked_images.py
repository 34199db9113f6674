"""Inpainting: prepares an image and its mask for a model, and pastes the result back.

Needs only Pillow, because it runs in the processes that check images.

Source: AUTOMATIC1111 stable-diffusion-webui, modules/masking.py and modules/processing.py,
`StableDiffusionProcessingImg2Img` (the part passed to the model, and how a hole is filled).
"""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image, ImageFilter, ImageOps

from models.media.image_files import ImageFileError

Box = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels."""
OPAQUE = 255
HALF = 128
LAYERS = ((256, 1), (64, 1), (16, 2), (4, 4), (2, 2), (0, 1))
"""Blurs that fill a hole, widest first: radius in pixels, and number of compositions."""


@dataclass(frozen=True)
class InpaintSettings:
    """Inpainting settings of one request: size, blur, fill and margin.

    Args:
        size: width and height of the model's output, in pixels.
        blur_px: standard deviation of the mask's blur, horizontal and vertical.
        fills: fill the masked area with surrounding colours before generation.
        inverts: redraw black areas of the mask instead of white.
        padding_px: margin around the masked area if the model receives only that part. None: it
            receives the whole image.
    """

    size: tuple[int, int]
    blur_px: tuple[float, float] = (0.0, 0.0)
    fills: bool = False
    inverts: bool = False
    padding_px: int | None = None


@dataclass(frozen=True)
class InpaintInputs:
    """Inpainting inputs of a model: image and mask.

    Args:
        image: None: as the client sent it.
        mask: None: as the client sent it.
        box: the part of the image that both show; None: all of it.
        soft: mask of the whole image, for pasting that part back.
    """

    image: Image.Image | None = None
    mask: Image.Image | None = None
    box: Box | None = None
    soft: Image.Image | None = None


def prepare_inputs(
    image: Image.Image, mask: Image.Image, settings: InpaintSettings
) -> InpaintInputs:
    """Prepare image and mask as a model's inpainting inputs.

    Raises: ImageFileError: nothing is masked.
    """
    soft = soft_mask(mask, settings)
    if settings.padding_px is not None:
        return _crop_masked(image, soft.resize(image.size, Image.Resampling.LANCZOS), settings)
    is_as_sent = not (has_holes(mask) or settings.inverts or any(settings.blur_px))
    prepared = None
    if settings.fills:
        sides = (layer.resize(settings.size, Image.Resampling.LANCZOS) for layer in (image, soft))
        prepared = fill_masked(*sides)
    return InpaintInputs(prepared, None if is_as_sent else soft)


def _crop_masked(image: Image.Image, soft: Image.Image, settings: InpaintSettings) -> InpaintInputs:
    """Crop the area around the mask of an image, enlarged to the model's size."""
    box = box_of(soft, settings)
    part, hole = (
        layer.resize(settings.size, Image.Resampling.LANCZOS, box=box) for layer in (image, soft)
    )
    return InpaintInputs(fill_masked(part, hole) if settings.fills else part, hole, box, soft)


def soft_mask(mask: Image.Image, settings: InpaintSettings) -> Image.Image:
    """Convert a mask to grey, from its transparency if any, then apply inversion and blur."""
    if has_holes(mask):
        levels = mask.getchannel("A").point(lambda level: OPAQUE if level > HALF else 0)
    else:
        levels = mask.convert("L")
    if settings.inverts:
        levels = ImageOps.invert(levels)
    return (
        levels.filter(ImageFilter.GaussianBlur(settings.blur_px))
        if any(settings.blur_px)
        else levels
    )


def has_holes(mask: Image.Image) -> bool:
    """Return whether an image has transparent pixels, which then serve as its mask."""
    return mask.mode == "RGBA" and mask.getchannel("A").getextrema() != (OPAQUE, OPAQUE)


def box_of(soft: Image.Image, settings: InpaintSettings) -> Box:
    """Compute the masked area with its margin, in the aspect ratio of the model's output.

    At the edges of the image the ratio may differ; the result is then stretched.

    Raises: ImageFileError: nothing is masked.
    """
    bounds = soft.getbbox()
    if bounds is None:
        raise ImageFileError("masks nothing; leave it out to regenerate the whole image")
    margin, ratio = settings.padding_px or 0, settings.size[0] / settings.size[1]
    left, right = max(bounds[0] - margin, 0), min(bounds[2] + margin, soft.width)
    top, bottom = max(bounds[1] - margin, 0), min(bounds[3] + margin, soft.height)
    width, height = right - left, bottom - top
    left, right = _grow(left, right, int(height * ratio), soft.width)
    top, bottom = _grow(top, bottom, int(width / ratio), soft.height)
    return left, top, right, bottom


def _grow(low: int, high: int, length: int, end: int) -> tuple[int, int]:
    """Enlarge an interval of pixels to at least that length, within 0 to `end`."""
    length = max(length, high - low)
    low = max(0, min(low - (length - (high - low)) // 2, end - length))
    return low, min(low + length, end)


def fill_masked(image: Image.Image, mask: Image.Image) -> Image.Image:
    """Fill an image's masked area by blurring surrounding colours into it."""
    unmasked = image.convert("RGBA")
    unmasked.putalpha(ImageOps.invert(mask))
    surroundings = unmasked.convert(
        "RGBa"
    )  # premultiplied, so that the hole's colours do not bleed in
    canvas = Image.new("RGBA", image.size)
    for radius, times in LAYERS:
        layer = surroundings.filter(ImageFilter.GaussianBlur(radius)).convert("RGBA")
        for _ in range(times):
            canvas.alpha_composite(layer)
    return canvas.convert("RGB")


def paste_result(
    image: Image.Image, soft: Image.Image, box: Box, result: Image.Image
) -> Image.Image:
    """Paste a generated region into its image, blended by the mask."""
    redrawn = image.copy()
    size = (box[2] - box[0], box[3] - box[1])
    redrawn.paste(result.resize(size, Image.Resampling.LANCZOS), box)
    return Image.composite(redrawn, image, soft)
