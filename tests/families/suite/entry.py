"""Entry of the suite, and the parts that entries are made with."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from models.loading.sources import ControlSource

Fields = dict[str, Any]

CLIP, T5 = {"num_hidden_layers": 2}, {"num_layers": 1}


@dataclass(frozen=True)
class Family:
    """A family's entry, or a variant's."""

    place: int
    """Place among all entries, from 0. It decides the mesh that two hosts draw with."""
    make: Callable[[Path], Path]
    """Write a checkpoint of few layers whose eight heads divide over every layout. Imports torch,
    as `least` does."""
    least: Callable[[Path], Path]
    """Write the smallest checkpoint."""
    request: Fields
    """A guided request of `make`'s, whose tokens do not divide into four or eight."""
    least_request: Fields
    """A whole request of `least`'s."""
    reference: Callable[[Path, Fields], np.ndarray]
    """Draw a request by diffusers: uint8, as `Pipeline.decode` gives it."""
    guided: Fields
    unguided: Fields
    """Fields of a request that has a negative prompt, and of one that has none."""
    published: tuple[str, ...]
    """Names of its full-size checkpoints in `models.published`."""
    components: Mapping[str, str] = field(default_factory=lambda: {"transformer": "transformer"})
    """Denoising networks by name, and their folders in `make`'s checkpoint."""
    scale: str = "guidance_scale"
    """Field of requests whose value differs between rows of a batch."""
    step_caches: bool = True
    """True if a signal decides which steps are left out."""
    step_plans: bool = True
    """True if a plan does."""
    weighted_prompts: bool = True
    """True if prompts have weights: not of a chat model."""
    images: Mapping[str, bytes] = field(default_factory=dict)
    """Files that come with both requests, by path."""
    largest_images: Mapping[str, bytes] = field(default_factory=dict)
    """The same of the size that they are priced at; empty: `images` are."""
    beside_images: Fields = field(default_factory=dict)
    """Fields that every request with them has."""
    image_prompts: Mapping[str, str] = field(default_factory=dict)
    """Networks that read images as prompts, by name: their places in the checkpoint's."""
    controls: Mapping[str, ControlSource] = field(default_factory=dict)
    """ControlNets by name: their places in the checkpoint's."""
    max_controls: int = 0
    refiner: str | None = None
    """Checkpoint of the last steps: its place in the checkpoint's."""
    company: tuple[Fields, ...] = ({},)
    """Fields in which requests of one batch differ, by turns."""

    @property
    def makes_video(self) -> bool:
        """Return whether requests are for videos."""
        return "num_frames" in self.request


def image_file(seed: int, mode: str = "RGB", size: tuple[int, int] = (100, 140)) -> bytes:
    """A file of four by four random fields."""
    fields = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(fields).convert(mode).resize(size, Image.Resampling.NEAREST).save(file, "png")
    return file.getvalue()


def drawn_by_diffusers(
    folder: Path,
    request: Fields,
    frames: bool = False,
    images: Mapping[str, bytes] | None = None,
    before: Callable[[Any], Fields] = lambda pipeline: {},
    of: Callable[[Path], Any] | None = None,
    **more: Any,
) -> np.ndarray:
    """Draw a request whose fields are the pipeline's own arguments, but for the seed.

    Args:
        before: what is done to the pipeline first; it returns further arguments.
        of: pipeline of a checkpoint; None: as its index says.
        more: arguments that only that pipeline has.
    """
    import torch
    from diffusers import DiffusionPipeline

    pipeline = (of or DiffusionPipeline.from_pretrained)(folder)
    pipeline.set_progress_bar_config(disable=True)
    given = {name: value for name, value in request.items() if name not in ("seed", "fps")}
    given |= (
        before(pipeline)
        | more
        | {name: Image.open(io.BytesIO(file)) for name, file in (images or {}).items()}
    )
    generator = torch.Generator("cpu").manual_seed(request["seed"])
    output = pipeline(**given, generator=generator, output_type="np")
    made = output.frames[0] if frames else output.images[0]
    return (made * 255).astype(np.uint8) if frames else (made * 255).round().astype(np.uint8)


FEW: Fields = {"prompt": "a red circle", "seed": 3, "num_inference_steps": 2}

LEAST: Fields = {
    "prompt": "a red circle",
    "seed": 1,
    "width": 32,
    "height": 32,
    "guidance_scale": 3.5,
    "num_inference_steps": 6,
    "num_images": 1,
}

UNSCALED: Fields = {name: value for name, value in LEAST.items() if name != "guidance_scale"}
"""Request of a family that has no `guidance_scale`."""

TRUE_CFG: Fields = {"true_cfg_scale": 2.0, "negative_prompt": "a blue square"}
