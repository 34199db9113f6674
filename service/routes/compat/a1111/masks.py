"""Masks as AUTOMATIC1111 applies them: blur, fill, and inpainting of the masked region only.

The endpoint prepares the image and the mask, then submits an ordinary inpainting request. If only a
region was regenerated, the response contains the full image, and the job's output the region.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from models.media.image_files import ImageFileError
from models.spec.model_spec import ModelSpec
from service.admission.input_files import bytes_of
from service.errors.problems import FieldError, Invalid
from service.http.inflight_limits import Hold
from service.http.masked_files import MaskedFiles
from service.http.masked_images import InpaintSettings
from service.recipes.files import embed, read_recipe
from service.responses.wait import while_connected
from service.routes.compat.a1111.bodies import ImageToImage, TextToImage
from service.routes.compat.call import Call
from service.schemas.limits import bounds_of

BLUR_PX = 4.0
FILL, ORIGINAL = 0, 1
"""Values of `inpainting_fill`: the surrounding colours under the mask, or the image."""


@dataclass(frozen=True)
class MaskedRequest:
    """Image of an inpainting request, with the prepared files that the model receives."""

    image: bytes
    size: tuple[int, int]
    files: MaskedFiles

    @property
    def pasted(self) -> MaskedRequest | None:
        """Files for pasting a generated region into the image; None: nothing is pasted."""
        if self.files.box is None:
            return None
        return replace(self, files=replace(self.files, image=None, mask=None))

    @property
    def bytes(self) -> int:
        """Size of the image and the files."""
        texts = (self.files.image, self.files.mask, self.files.soft)
        return len(self.image) + sum(len(text) for text in texts if text)

    @property
    def fields(self) -> dict[str, Any]:
        """Return the request fields that the prepared inpainting files replace."""
        changed = {"image": self.files.image, "mask_image": self.files.mask}
        sides = zip(("width", "height"), self.size, strict=True) if self.files.image else ()
        return {**{name: data for name, data in changed.items() if data}, **dict(sides)}


async def prepare_masked_request(
    call: Call, body: TextToImage, spec: ModelSpec
) -> MaskedRequest | None:
    """Prepare a request's image and mask; None: no mask, or a size that is rejected later.

    Raises: Invalid: a file cannot be read, or the mask is empty.
    """
    if not isinstance(body, ImageToImage) or not body.mask:
        return None
    max_side_px = bounds_of(spec.limits, call.front.settings.limits).max_side_px
    redraw = inpaint_settings(body, spec)
    if not all(0 < side <= max_side_px for side in redraw.size):
        return None
    image = await _file(call, body.init_images[0], "init_images")
    mask = await _file(call, body.mask, "mask")
    try:
        masked = call.front.images.prepare_inpainting(image, mask, redraw, call.client)
        return MaskedRequest(image, redraw.size, await while_connected(call.request, masked))
    except ImageFileError as error:
        raise Invalid([FieldError("mask", str(error))]) from error


def inpaint_settings(body: ImageToImage, spec: ModelSpec) -> InpaintSettings:
    """Convert AUTOMATIC1111's mask options, with its defaults. Raises: Invalid."""
    fill = FILL if body.inpainting_fill is None else body.inpainting_fill
    if fill not in (FILL, ORIGINAL):
        message = (
            "2 (latent noise) and 3 (latent nothing) are not supported; send 0 (fill) or 1"
            " (original)"
        )
        raise Invalid([FieldError("inpainting_fill", message)])
    defaults = spec.defaults_for("inpainting")
    return InpaintSettings(
        size=(
            defaults.get("width", 0) if body.width is None else body.width,
            defaults.get("height", 0) if body.height is None else body.height,
        ),
        blur_px=(
            _blur(body.mask_blur, body.mask_blur_x),
            _blur(body.mask_blur, body.mask_blur_y),
        ),
        fills=fill == FILL,
        inverts=bool(body.inpainting_mask_invert),
        padding_px=None if body.inpaint_full_res is False else body.inpaint_full_res_padding or 0,
    )


def _blur(*values: float | None) -> float:
    """Return the first blur value that is present, else the default."""
    return next((value for value in values if value is not None), BLUR_PX)


async def _file(call: Call, value: str, field: str) -> bytes:
    """Read an image file of a request, and check that it can be decoded. Raises: Invalid."""
    try:
        data = await while_connected(call.request, bytes_of(call.front, value, call.client))
        await while_connected(call.request, call.front.images.check(data, call.client))
    except ImageFileError as error:
        raise Invalid([FieldError(field, str(error))]) from error
    return data


async def paste_region(call: Call, masked: MaskedRequest, region: bytes, hold: Hold) -> bytes:
    """Paste a generated region into its image, with the region's recipe embedded.

    Raises: Invalid: it takes too long.
    """
    try:
        data = await call.front.images.paste(masked.image, masked.files, region, call.client)
    except ImageFileError as error:
        raise Invalid([FieldError("init_images", str(error))]) from error
    hold.add(len(data))
    recipe = read_recipe(region)
    return embed(data, "image/png", recipe) if recipe else data
