"""Steps and noise of a pass with progressive size."""

from __future__ import annotations

from models.interface.pipeline import Fields
from models.sampling.shrunk_noise import ShrunkGenerator
from models.sampling.torch_rng import TorchGenerator
from models.spec.progressive import FIELD, StepRange


def part_of(fields: Fields) -> StepRange | None:
    """Return the range of steps that a pass runs; None: all steps of the request."""
    part: StepRange | None = fields.get(FIELD)
    return part


def generator_of(seed: int, fields: Fields) -> TorchGenerator:
    """Return the generator of an image's noise.

    Steps at a smaller size average the full image's noise, which preserves the composition of that
    seed.
    """
    part, size = part_of(fields), (fields["height"], fields["width"])
    if part is None or (full_size := (part.height, part.width)) == size:
        return TorchGenerator(seed)
    return ShrunkGenerator(seed, full_size, size)
