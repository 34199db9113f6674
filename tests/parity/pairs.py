"""One checkpoint drawn with by diffusers and by us: latents of each step, and pixels.

What is held to what, and by which bounds: tests/parity/test_flux.py.
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
from tests.parity.lazily import Lazily
from tests.parity.programs import Programs
from tests.parity.test_flux import Result, png

MASK = Image.fromarray(
    np.random.default_rng(6).integers(0, 2, (5, 3), dtype=np.uint8) * 255, "L"
).resize((150, 190), Image.Resampling.NEAREST)
"""Mask of fields, of another size than what is asked for."""


class Pair:
    """One checkpoint, loaded by diffusers and by us.

    Args:
        read: diffusers' pipeline of a folder.
    """

    def __init__(self, folder: Path, read: Callable[[Path], Any]) -> None:
        self.folder, self.theirs = folder, read(folder)
        with coarse.compiled():
            loaded = registry.load("tiny", str(folder), "float32", {})
        self.ours = Programs(loaded, coarse.OPTIONS)


def pairs_of(
    root: Path,
    checkpoints: Mapping[str, Mapping[str, Any]],
    make: Callable[..., Path],
    read: Callable[[Path], Any],
) -> Mapping[str, Pair]:
    """Return a pair of each checkpoint, which are arguments of `make` behind a folder."""
    return Lazily(lambda name: Pair(make(root / name, **checkpoints[name]), read))


def packed(tensors: Mapping[str, Any]) -> np.ndarray:
    """Return the latents of diffusers' step, where it has them as tokens."""
    latents: np.ndarray = tensors["latents"][0].numpy().copy()
    return latents


def drawn_by(
    pipeline: Any,
    request: Mapping[str, Any],
    latents_of: Callable[[Mapping[str, Any]], np.ndarray] = packed,
    **images: Any,
) -> Result:
    """Draw a request by diffusers.

    Args:
        latents_of: return the latents after a step as tokens, as ours are.
        images: arguments of its call; None: it is not given.
    """
    pipeline.set_progress_bar_config(disable=True)
    latents: list[np.ndarray] = []

    def keep(_pipe: Any, _step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        latents.append(latents_of(tensors))
        return {}

    given = {name: value for name, value in request.items() if name != "seed"}
    given |= {name: image for name, image in images.items() if image is not None}
    generator = torch.Generator("cpu").manual_seed(request["seed"])
    made = pipeline(**given, generator=generator, callback_on_step_end=keep)
    return Result(latents, np.asarray(made.images[0]))


def ours(
    programs: Programs,
    request: Mapping[str, Any],
    image: Image.Image | None = None,
    mask_image: Image.Image | None = None,
    **spoiled: Any,
) -> Result:
    """Draw a request by our pipeline; `spoiled` are arguments of `Programs.drawn`."""
    return drawn_from(programs, request, {"image": image, "mask_image": mask_image}, **spoiled)


def drawn_from(
    programs: Programs,
    request: Mapping[str, Any],
    images: Mapping[str, Image.Image | None],
    **spoiled: Any,
) -> Result:
    """The same, of images by their paths in the request; None: there is none."""
    files = {path: png(image) for path, image in images.items() if image is not None}
    return Result(*programs.drawn(programs.pipeline.prepare(request, files), **spoiled))


def zeroed(weights: Any, network: str, *path: str) -> PyTree:
    """The same weights with one array of a network zeroed."""
    changed = jax.tree.map(lambda leaf: leaf, getattr(weights, network))
    node: Any = changed
    for name in path:
        node = node[name]
    node.set_value(jnp.zeros_like(node[...]))
    return weights._replace(**{network: changed})


def loud_behind_captions(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose captions' padding holds large numbers."""
    behind = np.arange(row["captions"].shape[1])[:, None] >= row["lengths"][:, None, None]
    return {**row, "captions": jnp.where(behind, 1e3, row["captions"])}
