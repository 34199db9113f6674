"""Refiner of a request: a second model that runs the last steps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

FIELD = "refiner"
"""Request field of the refiner, which contains the switch point."""
SWITCH = 0.8
"""Default share of the noise schedule that the first model runs."""

Switch = Annotated[float, Field(gt=0, le=1)]
