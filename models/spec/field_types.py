"""Types of request fields with their ranges, shared by the API's schema and the families."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

MAX_SEED = 2**64 - 1
"""Largest seed of `torch.Generator.manual_seed`, which takes 64 bits."""
MAX_FPS = 240

Pixels = Annotated[int, Field(ge=1, le=2**20)]
Offset = Annotated[int, Field(ge=0, le=2**20)]
"""Pixels from the top or left, or a side for which 0 is allowed."""
Index = Annotated[int, Field(ge=0, le=2**20)]
Count = Annotated[int, Field(ge=1, le=2**20)]
MAX_TEXT_TOKENS = 512
"""Largest `max_sequence_length` of most families, as in diffusers' pipelines and in training."""
TextTokens = Annotated[Count, Field(le=MAX_TEXT_TOKENS)]
"""Text tokens of a prompt, including a chat template's."""
Scale = Annotated[float, Field(ge=0, le=1000)]
"""Guidance scale."""
Score = Annotated[float, Field(ge=0, le=100)]
"""Aesthetic score; scores of the training data are 1 to 10."""
Fraction = Annotated[float, Field(ge=0, le=1)]
Strength = Annotated[float, Field(gt=0, le=1)]
"""Share of the steps that an input image goes through."""
FramesPerSecond = Annotated[int, Field(ge=1, le=MAX_FPS)]
NoiseLevel = Annotated[float, Field(ge=0, le=1e6)]
"""Timestep or sigma."""
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
ClipSkip = Annotated[int, Field(ge=0, le=100)]
REFINER = "refiner"
"""Request field of the refiner, a second model that runs the last steps."""
SWITCH = 0.8
"""Default share of the noise schedule that the first model runs, before its refiner."""
Switch = Annotated[float, Field(gt=0, le=1)]
