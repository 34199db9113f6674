"""Images in overlapping tiles that fade into one another, a band of tiles in memory at a time.

A tile's outermost pixels, which lack their neighbours, count least; at the image's own edges
nothing fades. On the host, in float32: the same tiles give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from models.spec.upscalers import tile_starts

TOP = 255
"""Highest value of a colour."""
EDGE = 0.375
"""Part of an overlap, at a tile's edge, that is left to the neighbour: a tile fades within the
middle quarter."""
LEAST = 1e-6
"""Share that is as good as nothing, where no neighbour is near enough."""


@dataclass(frozen=True)
class TiledSide:
    """Tiles along one side of an image."""

    starts: tuple[int, ...]
    size: int
    """Length of a tile."""

    @classmethod
    def of(cls, side: int, tile: int, multiple: int) -> TiledSide:
        """Return the tiles of a side, which is a whole multiple, too."""
        return cls(tuple(tile_starts(side, tile, multiple)), min(side, tile))

    def weights(self, scale: int) -> list[np.ndarray]:
        """Return each tile's share of its pixels, `scale` times as many; they add up to 1."""
        size, starts = self.size * scale, [start * scale for start in self.starts]
        ramps = [self._ramp(number, starts, size) for number in range(len(starts))]
        whole = np.zeros(starts[-1] + size, np.float32)
        for start, ramp in zip(starts, ramps, strict=True):
            whole[start : start + size] += ramp
        return [
            ramp / whole[start : start + size] for start, ramp in zip(starts, ramps, strict=True)
        ]

    @staticmethod
    def _ramp(number: int, starts: list[int], size: int) -> np.ndarray:
        """Rise within what is shared with the tile before, fall within what is with the next."""
        ramp = np.ones(size, np.float32)
        if number:
            ramp = np.minimum(ramp, _rise(size, starts[number - 1] + size - starts[number]))
        if number + 1 < len(starts):
            shared = starts[number] + size - starts[number + 1]
            ramp = np.minimum(ramp, _rise(size, shared)[::-1])
        return ramp


def _rise(size: int, shared: int) -> np.ndarray:
    """Return shares that rise from all but nothing to 1 in the middle of the first `shared`."""
    edge = shared * EDGE
    inside = np.arange(size, dtype=np.float32) + np.float32(0.5)
    return np.clip((inside - edge) / max(1.0, shared - 2 * edge), LEAST, 1).astype(np.float32)


class Canvas:
    """Image under way: tiles go in row by row, and pixels are rounded as soon as they are whole.

    Args:
        pixels: uint8 [height, width, 3].
        tile: side of a tile, in pixels.
        scale: of what is drawn.
        multiple: of which a tile's sides are whole multiples, as `tile` is.
    """

    def __init__(
        self, pixels: UInt8[np.ndarray, "h w 3"], tile: int, scale: int, multiple: int = 1
    ) -> None:
        self._size = pixels.shape[:2]
        self._pixels = _filled_up(pixels, multiple)
        height, width = self._pixels.shape[:2]
        self._rows, self._columns = (TiledSide.of(side, tile, multiple) for side in (height, width))
        self._scale = scale
        self._shares = self._rows.weights(scale), self._columns.weights(scale)
        self._drawn = np.empty((height * scale, width * scale, 3), np.uint8)
        self._band = np.zeros((self._rows.size * scale, width * scale, 3), np.float32)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of each tile."""
        return self._rows.size, self._columns.size

    def tiles(self) -> Iterator[tuple[int, int]]:
        """Yield the tiles, as numbers of row and column, in the order to draw them."""
        for row in range(len(self._rows.starts)):
            for column in range(len(self._columns.starts)):
                yield row, column

    def read(self, row: int, column: int) -> UInt8[np.ndarray, "tile_h tile_w 3"]:
        """Return the pixels of a tile."""
        top, left = self._rows.starts[row], self._columns.starts[column]
        return self._pixels[top : top + self._rows.size, left : left + self._columns.size]

    def write(self, row: int, column: int, drawn: Float[np.ndarray, "up_h up_w 3"]) -> None:
        """Take in what was drawn of a tile, of 0 to 1."""
        down, across = self._shares[0][row], self._shares[1][column]
        left = self._columns.starts[column] * self._scale
        share = down[:, None, None] * across[None, :, None]
        self._band[:, left : left + len(across)] += drawn * share
        if column + 1 == len(self._columns.starts):
            self._settle(row)

    def _settle(self, row: int) -> None:
        """Round the pixels of a row of tiles that no further one changes."""
        starts = self._rows.starts
        top, height = starts[row] * self._scale, len(self._band)
        is_last = row + 1 == len(starts)
        done = height if is_last else (starts[row + 1] - starts[row]) * self._scale
        self._drawn[top : top + done] = rounded(self._band[:done])
        if not is_last:
            self._band = np.concatenate([self._band[done:], np.zeros_like(self._band[:done])])

    def image(self) -> UInt8[np.ndarray, "up_h up_w 3"]:
        """Return the whole image, when all tiles are in."""
        height, width = (side * self._scale for side in self._size)
        return np.ascontiguousarray(self._drawn[:height, :width])


def _filled_up(pixels: np.ndarray, multiple: int) -> np.ndarray:
    """Return an image whose sides are whole multiples: mirrored at its right and lower edge.

    Source: Real-ESRGAN, realesrgan/utils.py, RealESRGANer.pre_process.
    """
    below, beside = (-int(side) % multiple for side in pixels.shape[:2])
    return np.pad(pixels, ((0, below), (0, beside), (0, 0)), "reflect")


def rounded(drawn: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Return colours of 0 to 1 as bytes, the nearest ones."""
    nearest: np.ndarray = np.rint(np.clip(drawn, 0, 1) * np.float32(TOP)).astype(np.uint8)
    return nearest
