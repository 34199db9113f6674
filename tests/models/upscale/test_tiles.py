"""Tiles of an image: positions, blending weights, and memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from models.spec.upscalers import Upscaler, tile_starts, tiles_of
from models.upscale.tiles import Canvas, TiledSide

SIDES = (8, 31, 32, 33, 36, 60, 64, 100, 252, 1024)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("multiple", [1, 4])
def test_tiles_cover_a_side_and_end_with_it(side: int, multiple: int) -> None:
    side, tile = side // multiple * multiple, 32
    starts = tile_starts(side, tile, multiple)
    assert starts[0] == 0 and starts[-1] == max(0, side - tile)
    assert all(start % multiple == 0 for start in starts)
    for start_of_tile, start_of_next in itertools.pairwise(starts):
        assert 0 < start_of_next - start_of_tile <= tile - tile // 8 + multiple - 1


@pytest.mark.parametrize("side", SIDES)
def test_shares_add_up_to_one(side: int) -> None:
    axis = TiledSide.of(side, 32, 1)
    total = np.zeros(side * 2)
    for start, share in zip(axis.starts, axis.weights(2), strict=True):
        assert share.min() > 0
        total[start * 2 : start * 2 + len(share)] += share
    assert np.abs(total - 1).max() < 1e-6


@pytest.mark.parametrize("shape", [(5, 7), (32, 32), (33, 100), (100, 33), (130, 97)])
@pytest.mark.parametrize("multiple", [1, 2, 4])
def test_tile_overlap_repeats_image_pixels(shape: tuple[int, int], multiple: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    canvas = Canvas(image, 32, 2, multiple)
    for row, column in canvas.tiles():
        tile = canvas.read(row, column)
        assert tile.shape[:2] == canvas.shape
        assert not any(side % multiple for side in tile.shape[:2])
        canvas.write(row, column, tile.repeat(2, 0).repeat(2, 1) / np.float32(255))
    assert np.array_equal(canvas.image(), image.repeat(2, 0).repeat(2, 1))


def test_canvas_holds_one_band_of_tiles_in_float() -> None:
    canvas = Canvas(np.zeros((640, 96, 3), np.uint8), 32, 4)
    floats = [
        array for array in vars(canvas).values() if getattr(array, "dtype", None) == np.float32
    ]
    assert sum(array.nbytes for array in floats) == 32 * 4 * 96 * 4 * 3 * 4


def test_work_is_counted_in_whole_tiles() -> None:
    upscaler = Upscaler(scale=4, tile=256)
    assert tiles_of(256, 256, upscaler) == 1
    assert tiles_of(128, 64, upscaler) == 1 / 8
    assert tiles_of(1024, 1024, upscaler) == 25
    assert tiles_of(1024, 128, upscaler) == 2.5
