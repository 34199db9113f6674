"""Refiner of a request: the model beside the first one that takes the last steps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

FIELD = "refiner"
"""Request field that says from where."""
SWITCH = 0.8
"""Default share of the noise schedule that is the first model's."""

Switch = Annotated[float, Field(gt=0, le=1)]
