"""Sizes of networks that exist as shapes alone."""

from __future__ import annotations

import math

from flax import nnx

from models.weights.loader import flat_parameters


def parameters(module: nnx.Module) -> int:
    """How many numbers a module's parameters hold."""
    return sum(math.prod(leaf.shape) for leaf in flat_parameters(module).values())
