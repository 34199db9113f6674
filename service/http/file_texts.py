"""Generation parameters in clients' files: AUTOMATIC1111's text, and the recipe of an XMP packet.

Runs in the child process that checks files, because hostile files can be slow to read and parse.
"""

from __future__ import annotations

from typing import Any

from models.media.image_files import ImageFileError, check
from models.media.png_chunks import has_long_text

MAX_TEXT_BYTES = 2**16
"""Maximum size of a text `parameters`, in UTF-8."""


def parameters_in(data: bytes, max_pixels: int) -> dict[str, Any]:
    """Read AUTOMATIC1111's `text` from an image file, and parse its `parameters`.

    Raises: ImageFileError: not an image, or the text is too long.
    """
    check(data, max_pixels)
    # Imported late: most children do not read these files.
    from service.recipes.files import read_parameters
    from service.recipes.parameters import parse_parameters

    text = read_parameters(data) or ""
    is_long = len(text.encode(errors="replace")) > MAX_TEXT_BYTES
    if is_long or has_long_text(data, b"parameters"):
        raise ImageFileError(f"contains a text of more than {MAX_TEXT_BYTES} bytes")
    return {"text": text, "parameters": parse_parameters(text) if text else {}}


def recipe_in(packet: bytes, max_pixels: int) -> dict[str, Any]:
    """Read the `recipe` text of an XMP packet; None if absent.

    Raises: ImageFileError: unreadable packet.
    """
    from service.recipes import xmp

    try:
        return {"recipe": xmp.property_of(packet, "recipe")}
    except ValueError as error:
        raise ImageFileError(str(error)) from None
