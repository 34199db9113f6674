"""Single files of weights, written and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from safetensors.torch import save_file

from models import registry
from models.interface.pipeline import PyTree
from tests import coarse

Tensors = dict[str, torch.Tensor]


def write(tensors: Tensors, file: Path) -> Path:
    save_file({key: t.contiguous().clone() for key, t in tensors.items()}, file)
    return file


def weights(source: Path, base: Path | None = None, dtype: str = "float32") -> Any:
    """Return the networks of a checkpoint, as the family has them."""
    given = None if base is None else str(base)
    with coarse.compiled():
        return registry.load("tiny", str(source), dtype, {}, base=given).weights


def are_equal(ours: PyTree, theirs: PyTree) -> bool:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)
