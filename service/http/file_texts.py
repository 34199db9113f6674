"""Texts in image files of clients: how an image was made, by whoever wrote it.

Runs in the child that checks files: reading and parsing take as long as a file wants.
"""

from __future__ import annotations

from typing import Any

from models.spec.image_files import ImageFileError, check

MAX_TEXT_BYTES = 2**16
"""Maximum size of a text `parameters`, in UTF-8."""


def parameters_in(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Return the `text` by AUTOMATIC1111 in an image file, and the `parameters` in it.

    Raises: ImageFileError: it is no image, or the text is too long.
    """
    check(data, max_pixels)
    # Takes a while, which children without such a file are spared.
    from service.recipes.files import read_parameters
    from service.recipes.parameters import parse_parameters

    text = read_parameters(data) or ""
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        raise ImageFileError(f"holds a text of more than {MAX_TEXT_BYTES} bytes")
    return {"text": text, "parameters": parse_parameters(text) if text else {}}


def recipe_in(packet: bytes, max_pixels: int) -> dict[str, Any]:
    """Return the text of the `recipe` in an XMP packet; None: it has none.

    Raises: ImageFileError: it cannot be read.
    """
    from service.recipes import xmp

    try:
        return {"recipe": xmp.property_of(packet, "recipe")}
    except ValueError as error:
        raise ImageFileError(str(error)) from None
