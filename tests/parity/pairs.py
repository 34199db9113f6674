"""One checkpoint run by diffusers and by Atelier: latents of each step, and pixels.

For the comparisons and their bounds see tests/parity/test_flux.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from PIL import Image

from models import registry
from models.interface.pipeline import PyTree
from tests import coarse
from tests.parity.distances import png
from tests.parity.lazy_dict import LazyDict
from tests.parity.programs import Programs
from tests.parity.test_flux import Result

MASK = Image.fromarray(
    np.random.default_rng(6).integers(0, 2, (5, 3), dtype=np.uint8) * 255, "L"
).resize((150, 190), Image.Resampling.NEAREST)
"""Mask of blocks, with another size than the request."""


class Pair:
    """One checkpoint, loaded by diffusers and by Atelier.

    Args:
        read: diffusers' pipeline of a folder.
    """

    def __init__(self, folder: Path, read: Callable[[Path], Any]) -> None:
        self.folder, self.diffusers = folder, read(folder)
        with coarse.compiled():
            loaded = registry.load("tiny", str(folder), "float32", {})
        self.atelier = Programs(loaded, coarse.OPTIONS)


def pairs_of(
    root: Path,
    checkpoints: Mapping[str, Mapping[str, Any]],
    make: Callable[..., Path],
    read: Callable[[Path], Any],
) -> Mapping[str, Pair]:
    """Return a pair per checkpoint; `checkpoints` contains the further arguments of `make`."""
    return LazyDict(lambda name: Pair(make(root / name, **checkpoints[name]), read))


def packed(tensors: Mapping[str, Any]) -> np.ndarray:
    """Return the latents of diffusers' step if they are tokens."""
    latents: np.ndarray = tensors["latents"][0].numpy().copy()
    return latents


def drawn_by(
    pipeline: Any,
    request: Mapping[str, Any],
    latents_of: Callable[[Mapping[str, Any]], np.ndarray] = packed,
    **images: Any,
) -> Result:
    """Generate a request with diffusers.

    Args:
        latents_of: returns the latents after a step as tokens, the format of Atelier.
        images: arguments of the call; None omits the argument.
    """
    pipeline.set_progress_bar_config(disable=True)
    latents: list[np.ndarray] = []

    def keep(_pipe: Any, _step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        latents.append(latents_of(tensors))
        return {}

    arguments = {name: value for name, value in request.items() if name != "seed"}
    arguments |= {name: image for name, image in images.items() if image is not None}
    generator = torch.Generator("cpu").manual_seed(request["seed"])
    output = pipeline(**arguments, generator=generator, callback_on_step_end=keep)
    return Result(latents, np.asarray(output.images[0]))


def run_atelier(
    programs: Programs,
    request: Mapping[str, Any],
    image: Image.Image | None = None,
    mask_image: Image.Image | None = None,
    **spoiled: Any,
) -> Result:
    """Generate a request with Atelier's pipeline; `spoiled` are arguments of `Programs.drawn`."""
    return drawn_from(programs, request, {"image": image, "mask_image": mask_image}, **spoiled)


def drawn_from(
    programs: Programs,
    request: Mapping[str, Any],
    images: Mapping[str, Image.Image | None],
    **spoiled: Any,
) -> Result:
    """Generate a request with Atelier; images by their paths in the request, None if absent."""
    files = {path: png(image) for path, image in images.items() if image is not None}
    return Result(*programs.drawn(programs.pipeline.prepare(request, files), **spoiled))


def zeroed(weights: Any, network: str, *path: str) -> PyTree:
    """Copy the weights with one array of a network zeroed."""
    changed = jax.tree.map(lambda leaf: leaf, getattr(weights, network))
    node: Any = changed
    for name in path:
        node = node[name]
    node.set_value(jnp.zeros_like(node[...]))
    return weights._replace(**{network: changed})


def loud_behind_captions(row: dict[str, Any]) -> dict[str, Any]:
    """Copy a row with large numbers in the padding of its captions."""
    is_padding = np.arange(row["captions"].shape[1])[:, None] >= row["lengths"][:, None, None]
    return {**row, "captions": jnp.where(is_padding, 1e3, row["captions"])}
