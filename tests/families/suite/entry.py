"""Entry of the conformance suite, and helpers to make entries."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from models.loading.sources import ControlSource

Fields = dict[str, Any]

CLIP, T5 = {"num_hidden_layers": 2}, {"num_layers": 1}


@dataclass(frozen=True)
class SuiteEntry:
    """Entry of a family or of a variant."""

    place: int
    """Position among all entries, from 0. It decides the mesh of the drawing on two hosts."""
    make: Callable[[Path], Path]
    """Write a checkpoint of few layers whose eight heads divide over every layout."""
    least: Callable[[Path], Path]
    """Write the smallest checkpoint."""
    request: Fields
    """Guided request for `make`'s checkpoint, whose tokens do not divide by four or eight."""
    least_request: Fields
    """Complete request for `least`'s checkpoint."""
    reference: Callable[[Path, Fields], np.ndarray]
    """Draw a request with diffusers: uint8, like the output of `Pipeline.decode`."""
    guided: Fields
    unguided: Fields
    """Fields of a request with a negative prompt (`guided`), and of one without (`unguided`)."""
    published: Mapping[str, str]
    """Full-size checkpoints by their names in `models.published` → their authors' names."""
    components: Mapping[str, str] = field(default_factory=lambda: {"transformer": "transformer"})
    """Denoising networks by name, with their folders in `make`'s checkpoint."""
    scale: str = "guidance_scale"
    """Field whose value differs between the requests of a batch."""
    has_strength: bool = True
    """Whether image to image has a strength, as hires fix and progressive sizes require."""
    step_caches: bool = True
    """Whether a step cache with a signal is supported."""
    step_plans: bool = True
    """Whether a planned step cache is supported."""
    weighted_prompts: bool = True
    """Whether prompts may have weights, which chat models do not support."""
    images: Mapping[str, bytes] = field(default_factory=dict)
    """Files of both requests, by path."""
    largest_images: Mapping[str, bytes] = field(default_factory=dict)
    """The same files at the size that is priced, or empty if `images` has that size."""
    image_fields: Fields = field(default_factory=dict)
    """Fields of every request with these files."""
    image_prompts: Mapping[str, str] = field(default_factory=dict)
    """Networks that read images as prompts, by name: their paths in the checkpoint's folder."""
    controls: Mapping[str, ControlSource] = field(default_factory=dict)
    """ControlNets by name, with their paths in the checkpoint's folder."""
    max_controls: int = 0
    refiner: str | None = None
    """Checkpoint of the last steps: its path in the checkpoint's folder."""
    batch_variants: tuple[Fields, ...] = ({},)
    """Fields in which the requests of one batch differ, in rotation."""

    @property
    def makes_video(self) -> bool:
        """Return whether requests are for videos."""
        return "num_frames" in self.request


def tiny(maker: str, **parts: Any) -> Callable[[Path], Path]:
    """Return a function that writes a checkpoint with these configs of its parts.

    Args:
        maker: Module and function in `tests.parity`. The module imports torch, so it is imported
            when a checkpoint is written.
    """

    def write(folder: Path) -> Path:
        module, _, function = maker.partition(":")
        written: Path = getattr(import_module(f"tests.parity.{module}"), function)(folder, **parts)
        return written

    return write


def image_file(seed: int, mode: str = "RGB", size: tuple[int, int] = (100, 140)) -> bytes:
    """Return a file of four by four random fields."""
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
    """Draw a request whose fields are the pipeline's own arguments, except for the seed.

    Args:
        before: Function that prepares the pipeline, and returns further arguments.
        of: Loader of the pipeline, or None to load it by its index.
        more: Arguments that only that pipeline has.
    """
    import torch
    from diffusers import DiffusionPipeline

    pipeline = (of or DiffusionPipeline.from_pretrained)(folder)
    pipeline.set_progress_bar_config(disable=True)
    arguments = {name: value for name, value in request.items() if name not in ("seed", "fps")}
    arguments |= (
        before(pipeline)
        | more
        | {name: Image.open(io.BytesIO(file)) for name, file in (images or {}).items()}
    )
    generator = torch.Generator("cpu").manual_seed(request["seed"])
    output = pipeline(**arguments, generator=generator, output_type="np")
    pixels = output.frames[0] if frames else output.images[0]
    return (pixels * 255).astype(np.uint8) if frames else (pixels * 255).round().astype(np.uint8)


def drawn_with_controls(
    folder: Path, request: Fields, images: Mapping[str, bytes], family: str
) -> np.ndarray:
    """Draw a request with diffusers, with ControlNets that are no unions.

    Args:
        family: prefix of the names of diffusers' classes.
    """
    import diffusers

    entries = request["control"]
    kind, multiple, pipeline = (
        getattr(diffusers, f"{family}{name}")
        for name in ("ControlNetModel", "MultiControlNetModel", "ControlNetPipeline")
    )
    names = dict.fromkeys(entry["name"] for entry in entries)
    joined = multiple([kind.from_pretrained(folder / "controls" / name) for name in names])
    more = {
        "control_image": [Image.open(io.BytesIO(file)) for file in images.values()],
        "controlnet_conditioning_scale": [entry["scale"] for entry in entries],
        "control_guidance_start": [entry.get("start", 0.0) for entry in entries],
        "control_guidance_end": [entry.get("end", 1.0) for entry in entries],
    }
    fields = {name: value for name, value in request.items() if name != "control"}
    return drawn_by_diffusers(
        folder, fields, of=partial(pipeline.from_pretrained, controlnet=joined), **more
    )


CONTROL_IMAGES = {f"control.{index}.image": image_file(9 + index) for index in range(2)}


def with_controls(
    make: Callable[[Path], Path], module: str, nets: Mapping[str, Fields]
) -> Callable[[Path], Path]:
    """Return a function that also writes ControlNets, to `controls`.

    Args:
        module: module in `tests.parity` with a function `make_control`.
        nets: config overrides by name.
    """

    def write(folder: Path) -> Path:
        make(folder)
        make_control = import_module(f"tests.parity.{module}").make_control
        for seed, (name, sizes) in enumerate(nets.items(), 5):
            make_control(folder / "controls" / name, folder, seed, **sizes)
        return folder

    return write


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

GUIDED: Fields = {**FEW, "width": 48, "height": 80, "guidance_scale": 3.0}

UNSCALED: Fields = {name: value for name, value in LEAST.items() if name != "guidance_scale"}
"""Request to a family without `guidance_scale`."""

TRUE_CFG: Fields = {"true_cfg_scale": 2.0, "negative_prompt": "a blue square"}
