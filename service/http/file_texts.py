"""Generation parameters in clients' files: AUTOMATIC1111's text, and the recipe of an XMP packet.

Runs in the child process that checks files, because a hostile file is slow to read and parse.
"""

from __future__ import annotations

from typing import Any

from models.spec.image_files import ImageFileError, check

MAX_TEXT_BYTES = 2**16
"""Maximum size of a text `parameters`, in UTF-8."""


def parameters_in(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Return AUTOMATIC1111's `text` in an image file, and the `parameters` parsed from it.

    Raises: ImageFileError: it is no image, or the text is too long.
    """
    check(data, max_pixels)
    # Imported late: most children never read such a file.
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
