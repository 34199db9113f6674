"""Optimizer of the demo's training: Muon for matrices of blocks, Adam for other parameters.

Source: Jordan et al. 2024 (Muon); Kingma and Ba 2015.
"""

from __future__ import annotations

from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, muon

MUON_RATE = 2e-3
ADAM_RATE = 1e-3

MATRIX, STACKED_MATRIX = MuonDimensionNumbers(0, 1), MuonDimensionNumbers(1, 2)
NOT_MUON = ("time_emb", "relative_bias")


def _dimensions(parameters: Any) -> Any:
    """Select parameters for Muon: matrices of blocks, single or stacked by layer."""

    def by_path(path: tuple[Any, ...], leaf: jax.Array) -> MuonDimensionNumbers | None:
        name = jax.tree_util.keystr(path)
        if "block" not in name or "kernel" not in name or any(word in name for word in NOT_MUON):
            return None
        return {2: MATRIX, 3: STACKED_MATRIX}.get(leaf.ndim)

    return jax.tree_util.tree_map_with_path(by_path, parameters)


optimizer = optax.chain(
    optax.clip_by_global_norm(1.0),
    muon(
        MUON_RATE,
        adam_learning_rate=ADAM_RATE,
        adam_b2=0.99,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=_dimensions,
    ),
)
