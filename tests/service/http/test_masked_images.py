"""Inpainting with a mask: the crop that a model gets, and pasting its result back."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from models.media.image_files import ImageFileError
from service.http import masked_files
from service.http.masked_images import (
    Box,
    InpaintSettings,
    box_of,
    fill_masked,
    paste_result,
    prepare_inputs,
    soft_mask,
)

SIZE = (64, 64)
RED, BLUE = (255, 0, 0), (0, 0, 255)


def mask_of(box: Box, size: tuple[int, int] = (100, 80)) -> Image.Image:
    mask = Image.new("L", size)
    mask.paste(255, box)
    return mask


def halves(size: tuple[int, int] = (100, 80)) -> Image.Image:
    """An image: red on the left, blue on the right."""
    image = Image.new("RGB", size, RED)
    image.paste(BLUE, (size[0] // 2, 0, *size))
    return image


@pytest.mark.parametrize(
    ("masks", "size", "padding", "box"),
    [
        ((40, 30, 60, 50), (64, 64), 0, (40, 30, 60, 50)),
        ((40, 30, 60, 50), (64, 64), 5, (35, 25, 65, 55)),
        ((40, 30, 60, 50), (128, 64), 0, (30, 30, 70, 50)),
        ((40, 30, 60, 50), (64, 128), 0, (40, 20, 60, 60)),
        ((0, 0, 20, 10), (64, 64), 0, (0, 0, 20, 20)),
        ((90, 70, 100, 80), (128, 64), 10, (60, 60, 100, 80)),
        ((0, 0, 100, 80), (64, 64), 32, (0, 0, 100, 80)),
    ],
    ids=["as it is", "margin", "wider", "higher", "corner", "shifted inside", "whole"],
)
def test_crop_box_covers_the_mask_in_the_models_aspect_ratio(
    masks: Box, size: tuple[int, int], padding: int, box: Box
) -> None:
    assert box_of(mask_of(masks), InpaintSettings(size, padding_px=padding)) == box


def test_a_mask_without_white_has_no_part() -> None:
    with pytest.raises(ImageFileError, match="masks nothing"):
        prepare_inputs(halves(), Image.new("RGB", (100, 80)), InpaintSettings(SIZE, padding_px=0))


def test_a_mask_is_grey_or_where_a_file_has_no_holes() -> None:
    levels = mask_of((10, 10, 20, 20))
    holes = Image.new("RGBA", (100, 80), "white")
    holes.putalpha(levels)
    for mask in (levels.convert("RGB"), holes, levels.convert("RGBA")):
        assert soft_mask(mask, InpaintSettings(SIZE)).tobytes() == levels.tobytes()
    inverted = np.asarray(soft_mask(levels.convert("RGB"), InpaintSettings(SIZE, inverts=True)))
    assert (inverted == 255 - np.asarray(levels)).all()


def test_a_blur_is_that_wide_in_each_direction() -> None:
    """The standard deviation of a blurred line is right within a tenth: Pillow uses three boxes."""
    line = mask_of((50, 0, 51, 80)).convert("RGB")
    soft = np.asarray(soft_mask(line, InpaintSettings(SIZE, blur_px=(4, 0))), float)[40]
    positions = np.arange(100)
    assert np.sqrt((soft * (positions - 50) ** 2).sum() / soft.sum()) == pytest.approx(4, rel=0.1)
    along = np.asarray(soft_mask(line, InpaintSettings(SIZE, blur_px=(0, 9))))
    assert (along == np.asarray(line.convert("L"))).all()


def test_a_hole_is_filled_with_the_colours_around_it() -> None:
    image = halves()
    image.paste((0, 255, 0), (15, 30, 35, 50))
    hole = mask_of((10, 25, 40, 55))
    made, before = np.asarray(fill_masked(image, hole)), np.asarray(image)
    outside = np.asarray(hole) == 0
    assert (made[outside] == before[outside]).all()
    red, green, blue = made[40, 25]
    assert red > 3 * blue and green == 0, "more of the nearer color, none of the hole's"


def test_unchanged_whole_image_is_not_copied() -> None:
    result = prepare_inputs(
        halves(), mask_of((10, 10, 20, 20)).convert("RGB"), InpaintSettings(SIZE)
    )
    assert (result.image, result.mask, result.box) == (None, None, None)


def test_inpainted_region_is_pasted_into_the_image() -> None:
    image, mask = halves(), mask_of((20, 20, 40, 40))
    part = prepare_inputs(image, mask.convert("RGB"), InpaintSettings(SIZE, padding_px=4))
    assert part.box == (16, 16, 44, 44) and part.soft is not None
    assert part.image is not None and part.mask is not None
    assert part.image.size == part.mask.size == SIZE
    made = Image.new("RGB", SIZE, (0, 255, 0))
    result = np.asarray(paste_result(image, part.soft, part.box, made))
    inside = np.asarray(mask) == 255
    assert (result[inside] == (0, 255, 0)).all()
    assert (result[~inside] == np.asarray(image)[~inside]).all()


def test_transparent_pixels_are_composited_on_white() -> None:
    """Their hidden color is black, as erasers write it."""
    erased, mask = Image.new("RGBA", SIZE), mask_of((16, 16, 48, 48), SIZE)
    sent = masked_files.pack_prepare(png(erased), png(mask), InpaintSettings(SIZE, padding_px=0))
    made = masked_files.prepare(sent, SIZE[0] * SIZE[1])
    image = Image.open(io.BytesIO(base64.b64decode(made["image"])))
    assert np.asarray(image.convert("RGB")).min() == 255


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
