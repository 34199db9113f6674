"""Encoding of masked images for the check processes, and of their results."""

from __future__ import annotations

import base64
import io
from dataclasses import asdict, dataclass
from typing import Any

from PIL import Image

from models.media.image_files import load, on_white
from service.confined.file_packing import packed, unpacked
from service.http.masked_images import Box, InpaintSettings, paste_result, prepare_inputs

FAST = 1
"""PNG compression level: the files are read once."""


@dataclass(frozen=True)
class MaskedFiles:
    """Model's input image and mask (`InpaintInputs`), as PNGs in base64."""

    image: str | None
    mask: str | None
    box: Box | None
    soft: str | None

    @classmethod
    def of(cls, answer: dict[str, Any]) -> MaskedFiles:
        """Build the inpainting files from the result of `prepare`."""
        return cls(**{**answer, "box": answer["box"] and tuple(answer["box"])})


def prepare(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Prepare an image and its mask for inpainting; return the fields of `MaskedFiles`.

    Raises: ImageFileError.
    """
    about, (image, mask) = unpacked(data)
    redrawing = InpaintSettings(
        **{**about, "size": tuple(about["size"]), "blur_px": tuple(about["blur_px"])}
    )
    prepared = prepare_inputs(on_white(load(image, max_pixels)), load(mask, max_pixels), redrawing)
    return {
        "image": _in_base64(prepared.image),
        "mask": _in_base64(prepared.mask),
        "box": prepared.box,
        "soft": _in_base64(prepared.soft),
    }


def paste(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Paste an inpainted region into its `image`. Raises: ImageFileError."""
    about, files = unpacked(data)
    image, soft, part = (load(file, max_pixels) for file in files)
    result = paste_result(
        on_white(image), soft.convert("L"), tuple(about["box"]), part.convert("RGB")
    )
    return {"image": _in_base64(result)}


def pack_prepare(image: bytes, mask: bytes, settings: InpaintSettings) -> bytes:
    """Encode an image, its mask and the inpainting settings as input of `prepare`."""
    return packed(asdict(settings), image, mask)


def pack_paste(image: bytes, files: MaskedFiles, result: bytes) -> bytes:
    """Encode the input of `paste`, for an image of which the model received a part."""
    return packed({"box": files.box}, image, base64.b64decode(files.soft or ""), result)


def _in_base64(image: Image.Image | None) -> str | None:
    if image is None:
        return None
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=FAST)
    return base64.b64encode(file.getvalue()).decode()
