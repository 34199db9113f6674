"""Embedding of recipes in output files, and reading them back."""

from __future__ import annotations

import io

from PIL import Image, PngImagePlugin

from service.recipes import xmp
from service.recipes.formats import EMBED, EXIF_IFD, IN_PACKET, UNICODE, USER_COMMENT, Metadata
from service.recipes.parameters import parameters_of
from service.recipes.recipe import Recipe

READ = ("PNG", "JPEG", "WEBP", "GIF")
"""Formats from which other programs' `parameters` are read, by Pillow's name."""


class BrokenRecipe(ValueError):
    """File with an unreadable recipe. The message states the reason."""


def embed(data: bytes, content_type: str, recipe: Recipe) -> bytes:
    """Add recipe, `parameters` and IPTC mark to a file, without changing its pixels.

    Args:
        data: an encoded file without metadata.
        content_type: types not in `EMBED` are returned unchanged.
    """
    if content_type not in EMBED:
        return data
    parameters = parameters_of(recipe)
    inside = parameters if content_type in IN_PACKET else None
    full = xmp.packet(recipe, parameters=inside)
    metadata = Metadata(full, xmp.packet(recipe, is_whole=False), parameters)
    return EMBED[content_type](data, metadata)


def read_recipe(data: bytes) -> Recipe | None:
    """Read the recipe from a file of any format; None if absent.

    Raises: BrokenRecipe.
    """
    try:
        text = xmp.find(data, "recipe")
        return None if text is None else Recipe.model_validate_json(text)
    except ValueError as error:
        raise BrokenRecipe(f"the file's recipe cannot be read: {error}") from None


def read_parameters(data: bytes) -> str | None:
    """Read AUTOMATIC1111's `parameters` from a file of any program; None if absent."""
    try:
        return _of_image(data) or xmp.find(data, "parameters")
    except Exception:  # decoders raise arbitrary errors for hostile files
        return None


def _of_image(data: bytes) -> str | None:
    try:
        with Image.open(io.BytesIO(data), formats=READ) as image:
            return _text(image)
    except Image.UnidentifiedImageError:
        return None


def _text(image: Image.Image) -> str | None:
    """Read the text that AUTOMATIC1111 writes for this format."""
    if isinstance(image, PngImagePlugin.PngImageFile):
        return image.text.get("parameters")
    if image.format == "GIF":
        comment = image.info.get("comment", b"")
        return comment.decode(errors="replace") if isinstance(comment, bytes) else str(comment)
    return _comment(image.getexif().get_ifd(EXIF_IFD).get(USER_COMMENT, b""))


def _comment(value: bytes | str) -> str | None:
    """Decode an EXIF UserComment: UTF-16 if marked as Unicode, else ASCII.

    UTF-16 may have either byte order. In the right one, the high bytes of most characters are zero,
    since the names of settings are English.
    """
    if isinstance(value, str):
        return value
    if value.startswith(UNICODE):
        text = value[len(UNICODE) :]
        order = "le" if text[1::2].count(0) > text[::2].count(0) else "be"
        return text.decode(f"utf-16-{order}", errors="replace")
    return value[8:].decode("utf-8", errors="replace").strip("\0 ") or None
