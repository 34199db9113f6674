"""Files of masked images on their way to the processes that work on them, and back."""

from __future__ import annotations

import base64
import io
from dataclasses import asdict, dataclass
from typing import Any

from PIL import Image

from models.spec.image_files import load, on_white
from service.confined.file_packing import packed, unpacked
from service.http.masked_images import Box, Redrawing, masked, pasted

FAST = 1
"""Compression of PNG: the files are read once."""


@dataclass(frozen=True)
class MaskedFiles:
    """An image and its mask as a model is given them: `Masked`, as PNGs in base64."""

    image: str | None
    mask: str | None
    box: Box | None
    soft: str | None

    @classmethod
    def of(cls, answer: dict[str, Any]) -> MaskedFiles:
        """Return them as `prepare` answered."""
        return cls(**{**answer, "box": answer["box"] and tuple(answer["box"])})


def prepare(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Return the fields of `MaskedFiles`, of an image, its mask and a `Redrawing`.

    Raises: ImageFileError.
    """
    about, (image, mask) = unpacked(data)
    how = Redrawing(**{**about, "size": tuple(about["size"]), "blur_px": tuple(about["blur_px"])})
    made = masked(on_white(load(image, max_pixels)), load(mask, max_pixels), how)
    return {
        "image": _in_base64(made.image),
        "mask": _in_base64(made.mask),
        "box": made.box,
        "soft": _in_base64(made.soft),
    }


def paste(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Return an `image` with what was made of its part. Raises: ImageFileError."""
    about, files = unpacked(data)
    image, soft, made = (load(file, max_pixels) for file in files)
    whole = pasted(on_white(image), soft.convert("L"), tuple(about["box"]), made.convert("RGB"))
    return {"image": _in_base64(whole)}


def to_prepare(image: bytes, mask: bytes, how: Redrawing) -> bytes:
    """Return what `prepare` reads."""
    return packed(asdict(how), image, mask)


def to_paste(image: bytes, files: MaskedFiles, made: bytes) -> bytes:
    """Return what `paste` reads, of an image of which a part was given."""
    return packed({"box": files.box}, image, base64.b64decode(files.soft or ""), made)


def _in_base64(image: Image.Image | None) -> str | None:
    if image is None:
        return None
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=FAST)
    return base64.b64encode(file.getvalue()).decode()
