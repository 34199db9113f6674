"""Single files of weights, written and loaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from models import registry
from models.checkpoint.folder import CheckpointError
from models.interface.pipeline import PyTree
from tests import coarse

Tensors = dict[str, torch.Tensor]
PREFIXES = ("", "model.diffusion_model.", "diffusion_model.")
"""Prefixes of a transformer's keys."""


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


def assert_the_rest_is_the_bases(tensors: Tensors, base: Path, whole: Any, file: Path) -> None:
    """Of a file with a transformer alone.

    Args:
        base: with other weights, so that what is read of it shows.
        whole: networks of the folder that the transformer is of.
    """
    made, rest = weights(write(tensors, file), base), weights(base)
    assert are_equal(made.transformer, whole.transformer)
    assert are_equal(made._replace(transformer=0), rest._replace(transformer=0))


def assert_all_are_read(tensors: Tensors, base: Path, whole: Any, file: Path) -> None:
    """Of a file with all networks; arguments as above."""
    made = weights(write(tensors, file), base)
    assert are_equal(made._replace(preview=0), whole._replace(preview=0))


def multiplied_out(packed: Tensors, scale: str = "scale_weight") -> Tensors:
    """Return the same without floats of 8 bits: the products are torch's."""
    plain = {
        key: t.float() * packed[f"{key.removesuffix('.weight')}.{scale}"]
        if t.dtype == torch.float8_e4m3fn
        else t
        for key, t in packed.items()
        if not key.endswith((scale, "scale_input", "scaled_fp8"))
    }
    assert len(plain) < len(packed)
    return plain


def assert_scales_are_multiplied(
    packed: Tensors, base: Path, folder: Path, scale: str = "scale_weight"
) -> Any:
    """Return the networks of a file with floats of 8 bits, written into that folder."""
    small = weights(write(packed, folder / "small.safetensors"), base)
    plain = write(multiplied_out(packed, scale), folder / "plain.safetensors")
    assert are_equal(small, weights(plain, base))
    return small


def assert_refused(missing: str, stored: Tensors, base: Path, folder: Path) -> None:
    """Without one of its arrays, which the error names."""
    rest = {key: tensor for key, tensor in stored.items() if key != missing}
    assert len(rest) < len(stored)
    with pytest.raises(CheckpointError, match=re.escape(f"missing: {missing}")):
        weights(write(rest, folder / "less.safetensors"), base)


def assert_converted(converted: Tensors, network: torch.nn.Module) -> None:
    """What diffusers makes of a file is what it reads of the folder."""
    expected = network.state_dict()
    assert converted.keys() == expected.keys()
    assert all(converted[key].equal(tensor) for key, tensor in expected.items())
