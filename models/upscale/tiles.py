"""Blending of overlapping tiles into an image, with a band of tiles in memory at a time.

A tile's outermost pixels lack context and have the lowest weight. Weights do not decrease at the
edges of the image. Blending runs on the host in float32, so equal tiles give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from models.spec.upscalers import tile_starts

TOP = 255
"""Maximum value of a colour."""
EDGE = 0.375
"""Part of an overlap, at a tile's edge, that the adjacent tile fills alone. Weights change within
the middle quarter."""
MIN_WEIGHT = 1e-6
"""Minimum weight, negligible except where no adjacent tile covers a pixel."""


@dataclass(frozen=True)
class TiledSide:
    """Overlapping tiles along one side of an image."""

    starts: tuple[int, ...]
    size: int
    """Length of a tile."""

    @classmethod
    def of(cls, side: int, tile: int, multiple: int) -> TiledSide:
        """Return the tiles of a side, which must be a multiple of `multiple`."""
        return cls(tuple(tile_starts(side, tile, multiple)), min(side, tile))

    def weights(self, scale: int) -> list[np.ndarray]:
        """Return each tile's weights along the side, scaled by `scale`; they add up to 1."""
        size, starts = self.size * scale, [start * scale for start in self.starts]
        ramps = [self._ramp(number, starts, size) for number in range(len(starts))]
        total = np.zeros(starts[-1] + size, np.float32)
        for start, ramp in zip(starts, ramps, strict=True):
            total[start : start + size] += ramp
        return [
            ramp / total[start : start + size] for start, ramp in zip(starts, ramps, strict=True)
        ]

    @staticmethod
    def _ramp(number: int, starts: list[int], size: int) -> np.ndarray:
        """Return a tile's unnormalized weights: ramps in the overlaps, 1 elsewhere."""
        ramp = np.ones(size, np.float32)
        if number:
            ramp = np.minimum(ramp, _rise(size, starts[number - 1] + size - starts[number]))
        if number + 1 < len(starts):
            shared = starts[number] + size - starts[number + 1]
            ramp = np.minimum(ramp, _rise(size, shared)[::-1])
        return ramp


def _rise(size: int, shared: int) -> np.ndarray:
    """Return weights that rise from `MIN_WEIGHT` to 1 in the middle of `shared` pixels."""
    edge = shared * EDGE
    inside = np.arange(size, dtype=np.float32) + np.float32(0.5)
    weights: np.ndarray = np.clip(
        (inside - edge) / max(1.0, shared - 2 * edge), MIN_WEIGHT, 1
    ).astype(np.float32)
    return weights


class Canvas:
    """Output image that accepts tiles row by row, and rounds pixels once they are complete.

    Args:
        pixels: uint8 [height, width, 3].
        tile: side of a tile, in pixels.
        scale: of the output.
        multiple: unit of a tile's sides and of `tile`.
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
        self._output = np.empty((height * scale, width * scale, 3), np.uint8)
        self._band = np.zeros((self._rows.size * scale, width * scale, 3), np.float32)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of each tile in pixels."""
        return self._rows.size, self._columns.size

    def tiles(self) -> Iterator[tuple[int, int]]:
        """Yield the row and column of each tile, in processing order."""
        for row in range(len(self._rows.starts)):
            for column in range(len(self._columns.starts)):
                yield row, column

    def read(self, row: int, column: int) -> UInt8[np.ndarray, "tile_h tile_w 3"]:
        """Return the input pixels of a tile."""
        top, left = self._rows.starts[row], self._columns.starts[column]
        return self._pixels[top : top + self._rows.size, left : left + self._columns.size]

    def write(self, row: int, column: int, tile: Float[np.ndarray, "up_h up_w 3"]) -> None:
        """Add an upscaled tile with values in [0, 1] to the output, weighted in overlaps."""
        down, across = self._shares[0][row], self._shares[1][column]
        left = self._columns.starts[column] * self._scale
        share = down[:, None, None] * across[None, :, None]
        self._band[:, left : left + len(across)] += tile * share
        if column + 1 == len(self._columns.starts):
            self._settle(row)

    def _settle(self, row: int) -> None:
        """Round the output rows that later tiles cannot change."""
        starts = self._rows.starts
        top, height = starts[row] * self._scale, len(self._band)
        is_last = row + 1 == len(starts)
        done = height if is_last else (starts[row + 1] - starts[row]) * self._scale
        self._output[top : top + done] = rounded(self._band[:done])
        if not is_last:
            self._band = np.concatenate([self._band[done:], np.zeros_like(self._band[:done])])

    def image(self) -> UInt8[np.ndarray, "up_h up_w 3"]:
        """Return the complete image, after all tiles have been written."""
        height, width = (side * self._scale for side in self._size)
        return np.ascontiguousarray(self._output[:height, :width])


def _filled_up(pixels: np.ndarray, multiple: int) -> np.ndarray:
    """Pad an image to whole multiples, mirrored at its right and lower edges.

    Source: Real-ESRGAN, realesrgan/utils.py, RealESRGANer.pre_process.
    """
    below, right = (-int(side) % multiple for side in pixels.shape[:2])
    return np.pad(pixels, ((0, below), (0, right), (0, 0)), "reflect")


def rounded(pixels: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Round colours in [0, 1] to uint8."""
    nearest: np.ndarray = np.rint(np.clip(pixels, 0, 1) * np.float32(TOP)).astype(np.uint8)
    return nearest
