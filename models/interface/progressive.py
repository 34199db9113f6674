"""Passes of an image whose first steps are smaller, as a family lays them out."""

from __future__ import annotations

from models.interface.pipeline import Fields
from models.sampling.shrunk_noise import ShrunkGenerator
from models.sampling.torch_rng import TorchGenerator
from models.spec.progressive import FIELD, StepRange


def part_of(fields: Fields) -> StepRange | None:
    """Return which of an image's steps a pass draws; None: all that its request has."""
    part: StepRange | None = fields.get(FIELD)
    return part


def generator_of(seed: int, fields: Fields) -> TorchGenerator:
    """Return the generator of an image's noise.

    Steps of a smaller size get the whole image's noise, averaged down: they compose the image that
    the seed would have had.
    """
    part, size = part_of(fields), (fields["height"], fields["width"])
    if part is None or (whole := (part.height, part.width)) == size:
        return TorchGenerator(seed)
    return ShrunkGenerator(seed, whole, size)
