"""Types of request fields with their ranges, shared by the API's schema and the families."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

MAX_SEED = 2**64 - 1
"""Largest seed of `torch.Generator.manual_seed`, which takes 64 bits."""
MAX_FPS = 240
MAX_EXACT = 2**53
"""Largest integer up to which all integers are floats."""


def _whole(value: Any) -> Any:
    """Return a float without a fraction as an integer: JSON has one type of numbers.

    Larger floats may be the nearest to another integer.
    """
    is_whole = isinstance(value, float) and abs(value) <= MAX_EXACT and value.is_integer()
    return int(value) if is_whole else value


WHOLE = BeforeValidator(_whole)
"""Last annotation of an integer: pydantic names the bounds before it as JSON Schema does."""

Pixels = Annotated[int, Field(ge=1, le=2**20), WHOLE]
Offset = Annotated[int, Field(ge=0, le=2**20), WHOLE]
"""Pixels from the top or left, or a side for which 0 is allowed."""
Index = Annotated[int, Field(ge=0, le=2**20), WHOLE]
Count = Annotated[int, Field(ge=1, le=2**20), WHOLE]
MAX_TEXT_TOKENS = 512
"""Largest `max_sequence_length` of most families, as in diffusers' pipelines and in training."""
TextTokens = Annotated[int, Field(ge=1, le=MAX_TEXT_TOKENS), WHOLE]
"""Text tokens of a prompt, including a chat template's."""
Scale = Annotated[float, Field(ge=0, le=1000)]
"""Guidance scale."""
Score = Annotated[float, Field(ge=0, le=100)]
"""Aesthetic score; scores of the training data are 1 to 10."""
Fraction = Annotated[float, Field(ge=0, le=1)]
Strength = Annotated[float, Field(gt=0, le=1)]
"""Share of the steps that an input image goes through."""
FramesPerSecond = Annotated[int, Field(ge=1, le=MAX_FPS), WHOLE]
NoiseLevel = Annotated[float, Field(ge=0, le=1e6)]
"""Timestep or sigma."""
Seed = Annotated[int, Field(ge=0, le=MAX_SEED), WHOLE]
ClipSkip = Annotated[int, Field(ge=0, le=100), WHOLE]
REFINER = "refiner"
"""Request field of the refiner, a second model that runs the last steps."""
SWITCH = 0.8
"""Default share of the noise schedule that the first model runs, before its refiner."""
Switch = Annotated[float, Field(gt=0, le=1)]
