"""Weights with a scale for each block of a row: NVFP4 and MXFP8, of ComfyUI and of ModelOpt.

NVFP4 has 4-bit floats, an 8-bit float for each 16 of them and a factor of the whole weight. MXFP8
has 8-bit floats and a power of two for each 32.

Source: OCP Microscaling Formats (MX) 1.0, sections 5.3 and 6; ModelOpt's layout in diffusers,
quantizers/bfl/utils.py; cuBLAS, "1D Block Scaling Factors Layout", for the tiles of ComfyUI.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from models.checkpoint.direct_io import Take, aligned
from models.checkpoint.folder import CheckpointError
from models.checkpoint.number_formats import E2M1, E2M1_HIGH_FIRST, E8M0, FLOAT8
from models.checkpoint.tensor import Shape, Tensor

WEIGHT, BLOCKS, WHOLE = ".weight", ".weight_scale", ".weight_scale_2"
"""Key endings of a weight, of its blocks' scales, and of NVFP4's factor."""
OF_EXPONENTS = ("U8", E8M0)
"""Number formats of scales that are powers of two."""
NVFP4_BLOCK, MXFP8_BLOCK = 16, 32
"""Numbers of a row with a common scale."""
TILE: Final = (128, 4)
"""Rows and columns of scales that are stored together."""
_TILE_PARTS = (4, 32)
"""A tile's rows are stored as 32 groups of 4, which are 32 rows apart."""


@dataclass(frozen=True)
class TiledTensor(Tensor):
    """Scales in tiles: 128 rows and 4 columns each, filled up at both ends."""

    def read(self, first: int, stop: int, take: Take = aligned) -> np.ndarray:
        """Read these rows, from the tiles that contain them. Raises: as `Tensor.read`."""
        height, width = TILE
        begin = first // height * height
        plain = Tensor(self.key, self.file, self.path, tiled(self.shape), self.kind, self.start)
        stored = plain.read(begin, tiled((stop, 1))[0], take)
        tiles = stored.reshape(-1, plain.shape[1] // width, *_TILE_PARTS[::-1], width)
        rows = tiles.transpose(0, 3, 2, 1, 4).reshape(stored.shape)
        rows = rows[first - begin : stop - begin, : self.shape[1]]
        if self.scale is None:
            return rows
        return self._scaled(rows, self.scale, first, stop).reshape(rows.shape)


def tiled(shape: Shape) -> Shape:
    """Return the shape of scales that are filled up to whole tiles."""
    return tuple(-(-size // part) * part for size, part in zip(shape, TILE, strict=True))


def with_block_scales(tensors: Mapping[str, Tensor], *, in_tiles: bool) -> dict[str, Tensor]:
    """Return the tensors with weights in NVFP4 in place of their parts, and MXFP8's scales.

    Args:
        in_tiles: whether the file is ComfyUI's: scales in tiles, and the first of two 4-bit floats
            in a byte's high bits. Otherwise it is ModelOpt's.

    Raises: CheckpointError: parts that do not fit each other.
    """
    output = dict(tensors)
    for name in [key.removesuffix(WHOLE) for key in tensors if key.endswith(WHOLE)]:
        parts = [output.pop(name + ending, None) for ending in (WEIGHT, BLOCKS, WHOLE)]
        output[name + WEIGHT] = _nvfp4(name, *parts, in_tiles=in_tiles)
    for key, scales in output.items():
        weight = output.get(key.removesuffix(BLOCKS) + WEIGHT)
        is_scale = key.endswith(BLOCKS) and scales.kind in OF_EXPONENTS
        if is_scale and weight is not None and weight.kind in FLOAT8:
            exponents = replace(scales, kind=E8M0)
            output[key] = _in_tiles(exponents, weight, MXFP8_BLOCK) if in_tiles else exponents
    return output


def _nvfp4(
    name: str, codes: Tensor | None, blocks: Tensor | None, whole: Tensor | None, *, in_tiles: bool
) -> Tensor:
    """Return a weight in NVFP4 with both levels of its scales. Raises: CheckpointError."""
    if codes is None or blocks is None or whole is None:
        raise CheckpointError(f"{name}: NVFP4 without its numbers or their scales; fetch it again")
    is_whole = whole.is_float and math.prod(whole.shape) == 1
    if codes.kind != "U8" or len(codes.shape) != 2 or blocks.kind != "F8_E4M3" or not is_whole:
        kinds = ", ".join(f"{part.kind} {list(part.shape)}" for part in (codes, blocks, whole))
        raise CheckpointError(
            f"{codes.path}: {codes.key} is no NVFP4: its numbers, the scales of its blocks and its "
            f"factor are {kinds}, not a matrix U8, F8_E4M3 and one float"
        )
    rows, columns = codes.shape[0], 2 * codes.shape[1]
    weight = replace(codes, shape=(rows, columns), kind=E2M1_HIGH_FIRST if in_tiles else E2M1)
    if in_tiles:
        blocks = _in_tiles(blocks, weight, NVFP4_BLOCK)
    elif columns % NVFP4_BLOCK or blocks.shape != (rows, columns // NVFP4_BLOCK):
        raise _misfit(blocks, weight, NVFP4_BLOCK)
    return replace(weight, scale=replace(blocks, scale=replace(whole, shape=(1, 1))))


def _in_tiles(scales: Tensor, weight: Tensor, block: int) -> TiledTensor:
    """Return scales that are stored in tiles. Raises: CheckpointError: of another weight."""
    if len(weight.shape) != 2 or weight.shape[1] % block:
        raise _misfit(scales, weight, block)
    shape = (weight.shape[0], weight.shape[1] // block)
    if math.prod(scales.shape) != math.prod(tiled(shape)):
        raise _misfit(scales, weight, block)
    return TiledTensor(scales.key, scales.file, scales.path, shape, scales.kind, scales.start)


def _misfit(scales: Tensor, weight: Tensor, block: int) -> CheckpointError:
    return CheckpointError(
        f"{scales.path}: {scales.key} has the shape {list(scales.shape)}, which are no scales of "
        f"{block} numbers each for {weight.key} of the shape {list(weight.shape)}"
    )
