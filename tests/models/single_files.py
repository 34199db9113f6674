"""Writing and loading of single weight files, and checks of the loaded networks."""

from __future__ import annotations

import re
from collections.abc import Mapping
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


def weights(
    source: Path, base: Path | None = None, dtype: str = "float32", **how: Mapping[str, str]
) -> Any:
    """Return the networks of a checkpoint with the family's own structure.

    Args:
        how: `parts` of the checkpoint.
    """
    base_path = None if base is None else str(base)
    with coarse.compiled():
        return registry.load("tiny", str(source), dtype, {}, base=base_path, **how).weights


def are_equal(output: PyTree, expected: PyTree) -> bool:
    assert jax.tree.structure(output) == jax.tree.structure(expected)
    pairs = zip(jax.tree.leaves(output), jax.tree.leaves(expected), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def assert_the_rest_is_the_bases(tensors: Tensors, base: Path, whole: Any, file: Path) -> None:
    """Assert that a file with only a transformer takes the other networks from the base.

    Args:
        base: a folder with other weights, to make its networks recognizable.
        whole: networks of the folder that contains the transformer.
    """
    loaded, of_base = weights(write(tensors, file), base), weights(base)
    assert are_equal(loaded.transformer, whole.transformer)
    assert are_equal(loaded._replace(transformer=0), of_base._replace(transformer=0))


def assert_all_are_read(tensors: Tensors, base: Path, whole: Any, file: Path) -> None:
    """Assert that a file with all networks needs none of the base's; arguments as above."""
    loaded = weights(write(tensors, file), base)
    assert are_equal(loaded._replace(preview=0), whole._replace(preview=0))


def multiplied_out(packed: Tensors, scale: str = "scale_weight") -> Tensors:
    """Return the tensors with 8-bit floats multiplied by their scales in torch."""
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
    scaled = weights(write(packed, folder / "small.safetensors"), base)
    plain = write(multiplied_out(packed, scale), folder / "plain.safetensors")
    assert are_equal(scaled, weights(plain, base))
    return scaled


def assert_refused(missing: str, stored: Tensors, base: Path, folder: Path) -> None:
    """Assert that loading fails without one of the arrays, and that the error names it."""
    remaining = {key: tensor for key, tensor in stored.items() if key != missing}
    assert len(remaining) < len(stored)
    with pytest.raises(CheckpointError, match=re.escape(f"missing: {missing}")):
        weights(write(remaining, folder / "less.safetensors"), base)


def assert_converted(converted: Tensors, network: torch.nn.Module) -> None:
    """Assert that diffusers' conversion of a file gives the folder's state dict."""
    expected = network.state_dict()
    assert converted.keys() == expected.keys()
    assert all(converted[key].equal(tensor) for key, tensor in expected.items())
