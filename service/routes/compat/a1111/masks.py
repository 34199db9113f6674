"""Masks as AUTOMATIC1111 applies them: blurred, filled, and the masked part alone redrawn.

The door prepares the image and the mask, which are then a request like any other. Where a part of
the image was redrawn, the answer has it inside the whole; the job has the part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from models.spec.image_files import ImageFileError
from models.spec.model_spec import ModelSpec
from service.admission.request_images import bytes_of
from service.errors.problems import FieldError, Invalid
from service.http.inflight_limits import Hold
from service.http.masked_files import MaskedFiles
from service.http.masked_images import Redrawing
from service.recipes.files import embed, read_recipe
from service.responses.wait import unless_left
from service.routes.compat.a1111.bodies import ImageToImage, TextToImage
from service.routes.compat.call import Call
from service.schemas.limits import bounds_of

BLUR_PX = 4.0
FILL, ORIGINAL = 0, 1
"""Values of `inpainting_fill`: the colours around the mask are under it, or the image."""


@dataclass(frozen=True)
class MaskedRequest:
    """An image of a request, with what a model is given of it."""

    image: bytes
    size: tuple[int, int]
    files: MaskedFiles

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of ours that change."""
        changed = {"image": self.files.image, "mask_image": self.files.mask}
        sides = zip(("width", "height"), self.size, strict=True) if self.files.image else ()
        return {**{name: file for name, file in changed.items() if file}, **dict(sides)}


async def prepared(call: Call, asked: TextToImage, spec: ModelSpec) -> MaskedRequest | None:
    """Return what a model is given; None: there is no mask, or a size that is refused anyway.

    Raises: Invalid: a file cannot be read, or nothing is masked.
    """
    if not isinstance(asked, ImageToImage) or not asked.mask:
        return None
    most = bounds_of(spec.limits, call.front.settings.limits).max_side_px
    how = redrawing(asked, spec)
    if not all(0 < side <= most for side in how.size):
        return None
    image = await _file(call, asked.init_images[0], "init_images")
    mask = await _file(call, asked.mask, "mask")
    try:
        work = call.front.images.masked(image, mask, how, call.client)
        return MaskedRequest(image, how.size, await unless_left(call.request, work))
    except ImageFileError as error:
        raise Invalid([FieldError("mask", str(error))]) from error


def redrawing(asked: ImageToImage, spec: ModelSpec) -> Redrawing:
    """Return how an image is to be redrawn, by AUTOMATIC1111's defaults. Raises: Invalid."""
    fill = FILL if asked.inpainting_fill is None else asked.inpainting_fill
    if fill not in (FILL, ORIGINAL):
        said = "noise and nothing (2, 3) are not served here; send 0 (fill) or 1 (original)"
        raise Invalid([FieldError("inpainting_fill", said)])
    defaults = spec.defaults_for("inpainting")
    return Redrawing(
        size=(
            defaults.get("width", 0) if asked.width is None else asked.width,
            defaults.get("height", 0) if asked.height is None else asked.height,
        ),
        blur_px=(
            _blur(asked.mask_blur, asked.mask_blur_x),
            _blur(asked.mask_blur, asked.mask_blur_y),
        ),
        fills=fill == FILL,
        inverts=bool(asked.inpainting_mask_invert),
        padding_px=None if asked.inpaint_full_res is False else asked.inpaint_full_res_padding or 0,
    )


def _blur(*given: float | None) -> float:
    """The first that is given."""
    return next((one for one in given if one is not None), BLUR_PX)


async def _file(call: Call, value: str, field: str) -> bytes:
    """An image file that can be decoded. Raises: Invalid."""
    try:
        data = await unless_left(call.request, bytes_of(call.front, value, call.client))
        await unless_left(call.request, call.front.images.check(data, call.client))
    except ImageFileError as error:
        raise Invalid([FieldError(field, str(error))]) from error
    return data


async def whole(call: Call, asked: MaskedRequest, made: bytes, hold: Hold) -> bytes:
    """Return the whole image with what was made of its part, and the recipe of that.

    Raises: Invalid: it takes too long.
    """
    try:
        data = await call.front.images.pasted(asked.image, asked.files, made, call.client)
    except ImageFileError as error:
        raise Invalid([FieldError("init_images", str(error))]) from error
    hold.add(len(data))
    recipe = read_recipe(made)
    return embed(data, "image/png", recipe) if recipe else data
