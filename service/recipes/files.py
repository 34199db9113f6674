"""Files that say what they are: metadata written into them, and read again."""

from __future__ import annotations

import io

from PIL import Image, PngImagePlugin

from service.recipes import xmp
from service.recipes.formats import EMBED, EXIF_IFD, IN_PACKET, UNICODE, USER_COMMENT, Metadata
from service.recipes.parameters import parameters_of
from service.recipes.recipe import Recipe

READ = ("PNG", "JPEG", "WEBP", "GIF")
"""Formats that `parameters` of other programs are read from, by Pillow's name."""


class BrokenRecipe(ValueError):
    """A file has a recipe that cannot be read; the message says why."""


def embed(data: bytes, content_type: str, recipe: Recipe) -> bytes:
    """Return a file with its recipe, `parameters` and IPTC mark; its pixels are untouched.

    Args:
        data: an encoded file without metadata.
        content_type: one of another format than `EMBED` has comes back as it is.
    """
    if content_type not in EMBED:
        return data
    parameters = parameters_of(recipe)
    inside = parameters if content_type in IN_PACKET else None
    whole = xmp.packet(recipe, parameters=inside)
    metadata = Metadata(whole, xmp.packet(recipe, is_whole=False), parameters)
    return EMBED[content_type](data, metadata)


def read_recipe(data: bytes) -> Recipe | None:
    """Return the recipe in a file of any format; None: it has none.

    Raises: BrokenRecipe.
    """
    try:
        text = xmp.find(data, "recipe")
        return None if text is None else Recipe.model_validate_json(text)
    except ValueError as error:
        raise BrokenRecipe(f"the file's recipe cannot be read: {error}") from None


def read_parameters(data: bytes) -> str | None:
    """Return the `parameters` of AUTOMATIC1111 in a file, whoever wrote it; None: it has none."""
    try:
        return _of_image(data) or xmp.find(data, "parameters")
    except Exception:  # decoders raise what they like on a hostile file
        return None


def _of_image(data: bytes) -> str | None:
    try:
        with Image.open(io.BytesIO(data), formats=READ) as image:
            return _text(image)
    except Image.UnidentifiedImageError:
        return None


def _text(image: Image.Image) -> str | None:
    """Text that a file has where AUTOMATIC1111 puts it, by its format."""
    if isinstance(image, PngImagePlugin.PngImageFile):
        return image.text.get("parameters")
    if image.format == "GIF":
        comment = image.info.get("comment", b"")
        return comment.decode(errors="replace") if isinstance(comment, bytes) else str(comment)
    return _comment(image.getexif().get_ifd(EXIF_IFD).get(USER_COMMENT, b""))


def _comment(value: bytes | str) -> str | None:
    """Return a user's comment: in UTF-16 by the name of Unicode, else in ASCII.

    UTF-16 is of either byte order, whichever the file's is: in the right one, the first bytes of
    most characters are zero, since the names of settings are English.
    """
    if isinstance(value, str):
        return value
    if value.startswith(UNICODE):
        text = value[len(UNICODE) :]
        order = "le" if text[1::2].count(0) > text[::2].count(0) else "be"
        return text.decode(f"utf-16-{order}", errors="replace")
    return value[8:].decode("utf-8", errors="replace").strip("\0 ") or None
