"""Parameter counts of abstract networks."""

from __future__ import annotations

import math

from flax import nnx

from models.weights.loader import flat_parameters


def parameters(module: nnx.Module) -> int:
    """Number of elements in a module's parameters."""
    return sum(math.prod(leaf.shape) for leaf in flat_parameters(module).values())
