"""Enlargers: networks that enlarge a model's latents between two passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Enlarger(BaseModel):
    """Network between the passes of hires fix, with the second pass that it was trained for."""

    model_config = ConfigDict(frozen=True)

    scale: float = Field(gt=1)
    """Scale of both sides."""
    second: Mapping[str, Any]
    """Request fields of the second pass, which override the request's."""
