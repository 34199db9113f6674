"""The kinds of Flux checkpoints: what a request holds beside text, and how the network sees it.

All have the same network; `_class_name` of the checkpoint's model_index.json says which kind it is,
and the transformer's input channels have to agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from models.flux import image_inputs, reference
from models.flux.config import FluxConfig
from models.flux.image_inputs import Files, ImageDraws, Inputs
from models.flux.request import FIELDS, NEGATIVE, FluxRequest
from models.sampling.base import Plan
from models.spec.model_spec import Task
from models.vae.config import VaeConfig


@dataclass(frozen=True)
class Tool:
    """Kind of checkpoint."""

    tasks: tuple[Task, ...]
    """Tasks; the first is what pools warm up for."""
    images: tuple[str, ...]
    """Request fields that hold an image."""
    inputs: Callable[[FluxRequest, Files, Plan, ImageDraws], Inputs]
    """Read its images and draw its noise."""
    needed: frozenset[str] = frozenset()
    """Images that no task asks for and without which it draws nothing."""
    not_served: frozenset[str] = frozenset()
    """Fields of a request that it has no use for."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults that differ from FluxPipeline's, as in diffusers' call of its own."""
    task_defaults: Mapping[Task, Mapping[str, Any]] = field(default_factory=dict)
    read_pixels: Mapping[str, int] = field(default_factory=dict)
    """Pixels of images that the network sees as tokens behind the latents', by field."""
    further_channels: Callable[[VaeConfig], int] = lambda vae: 0
    """Channels of a latent pixel that the network sees beside the latents."""

    @property
    def fields(self) -> frozenset[str]:
        """Request fields; `guidance_scale` only where the network has an input for it."""
        return (FIELDS | {*self.images}) - self.not_served

    @property
    def starts_from_image(self) -> bool:
        """Return whether an image lies under the first noise, so that it may skip steps."""
        return "strength" in self.fields


PLAIN = Tool(
    tasks=("text-to-image", "image-to-image"),
    images=("image",),
    inputs=image_inputs.plain,
    task_defaults={"image-to-image": {"strength": 0.6, "guidance_scale": 7.0}},
)
FILL = Tool(
    tasks=("inpainting",),
    images=("image", "mask_image"),
    inputs=image_inputs.fill,
    not_served=NEGATIVE,
    defaults={"num_inference_steps": 50, "guidance_scale": 30.0, "strength": 1.0},
    further_channels=lambda vae: vae.latent_channels + vae.downsampling**2,
)

CONTROL = Tool(
    tasks=("text-to-image",),
    images=("control_image",),
    inputs=image_inputs.control,
    needed=frozenset({"control_image"}),
    not_served=NEGATIVE | {"strength"},
    further_channels=lambda vae: vae.latent_channels,
)
KONTEXT = Tool(
    tasks=("image-to-image", "text-to-image"),
    images=("image",),
    inputs=image_inputs.with_reference,
    not_served=frozenset({"strength"}),
    read_pixels={"image": reference.SIDE_PX**2},
)

TOOLS: Mapping[str, Tool] = {
    "FluxPipeline": PLAIN,
    "FluxImg2ImgPipeline": PLAIN,
    "FluxFillPipeline": FILL,
    "FluxControlPipeline": CONTROL,
    "FluxKontextPipeline": KONTEXT,
}
"""`_class_name` of a checkpoint's model_index.json → its kind."""


def tool_of(
    class_name: str, config: FluxConfig, vae: VaeConfig, reference_px: int | None = None
) -> Tool:
    """Return a checkpoint's kind.

    Args:
        reference_px: side of the square reference that it was trained on; None: Kontext's.

    Raises: ValueError: its transformer has other inputs.
    """
    tool = TOOLS[class_name]
    if reference_px is not None and tool.read_pixels:
        tool = replace(
            tool,
            inputs=partial(image_inputs.with_reference, side_px=reference_px),
            read_pixels={"image": reference_px**2},
        )
    wanted = 4 * (vae.latent_channels + tool.further_channels(vae))
    if config.in_channels != wanted:
        raise ValueError(
            f"transformer in_channels is {config.in_channels}, but a {class_name} with vae "
            f"latent_channels {vae.latent_channels} has {wanted}: the parts do not fit"
        )
    return tool
