"""Controls as front ends and workers know them. No JAX in here: the front end imports it.

A control is an image that says what is where, read by a ControlNet. Operators name a model's
ControlNets; a request names one beside each image.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

FIELD = "control"
"""Request field that holds them."""


class ControlKind(BaseModel):
    """Reading of control images by one of a model's ControlNets."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    mode: str | None = None
    """Kind of control images of a union, which reads several; `null`: its ControlNet reads one."""
