"""Kinds of Flux checkpoints (text-to-image, Fill, Control, Kontext) and their image inputs.

All kinds have the same network. `_class_name` in the checkpoint's model_index.json selects the
kind, and the transformer's input channels must match it.
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
class CheckpointKind:
    """Kind of a Flux checkpoint: tasks, request fields and image inputs."""

    tasks: tuple[Task, ...]
    """Supported tasks; workers warm up the first."""
    images: tuple[str, ...]
    """Request fields that contain images."""
    inputs: Callable[[FluxRequest, Files, Plan, ImageDraws], Inputs]
    """Function that decodes the images and draws the noise."""
    needed: frozenset[str] = frozenset()
    """Required images that the task does not already require."""
    unsupported_fields: frozenset[str] = frozenset()
    """Request fields that this kind does not support."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults that differ from FluxPipeline's, as in diffusers' pipeline of this kind."""
    task_defaults: Mapping[Task, Mapping[str, Any]] = field(default_factory=dict)
    read_pixels: Mapping[str, int] = field(default_factory=dict)
    """Pixels of images that become additional tokens, by field."""
    extra_channels: Callable[[VaeConfig], int] = lambda vae: 0
    """Number of channels per latent that are concatenated to the latents."""

    @property
    def fields(self) -> frozenset[str]:
        """Request fields; `guidance_scale` requires a network with an input for it."""
        return (FIELDS | {*self.images}) - self.unsupported_fields

    @property
    def starts_from_image(self) -> bool:
        """Return whether denoising starts from a noised image, so that it may skip steps."""
        return "strength" in self.fields


PLAIN = CheckpointKind(
    tasks=("text-to-image", "image-to-image"),
    images=("image",),
    inputs=image_inputs.plain,
    task_defaults={"image-to-image": {"strength": 0.6, "guidance_scale": 7.0}},
)
FILL = CheckpointKind(
    tasks=("inpainting",),
    images=("image", "mask_image"),
    inputs=image_inputs.fill,
    unsupported_fields=NEGATIVE,
    defaults={"num_inference_steps": 50, "guidance_scale": 30.0, "strength": 1.0},
    extra_channels=lambda vae: vae.latent_channels + vae.downsampling**2,
)

CONTROL = CheckpointKind(
    tasks=("text-to-image",),
    images=("control_image",),
    inputs=image_inputs.control,
    needed=frozenset({"control_image"}),
    unsupported_fields=NEGATIVE | {"strength"},
    extra_channels=lambda vae: vae.latent_channels,
)
KONTEXT = CheckpointKind(
    tasks=("image-to-image", "text-to-image"),
    images=("image",),
    inputs=image_inputs.with_reference,
    unsupported_fields=frozenset({"strength"}),
    read_pixels={"image": reference.SIDE_PX**2},
)

KINDS: Mapping[str, CheckpointKind] = {
    "FluxPipeline": PLAIN,
    "FluxImg2ImgPipeline": PLAIN,
    "FluxFillPipeline": FILL,
    "FluxControlPipeline": CONTROL,
    "FluxKontextPipeline": KONTEXT,
}
"""`_class_name` in a checkpoint's model_index.json → its kind."""


def kind_of(
    class_name: str, config: FluxConfig, vae: VaeConfig, reference_px: int | None = None
) -> CheckpointKind:
    """Return the kind of a Flux checkpoint.

    Args:
        reference_px: side of the square reference in training; None: Kontext's.

    Raises: ValueError: the transformer's input channels do not match the kind.
    """
    kind = KINDS[class_name]
    if reference_px is not None and kind.read_pixels:
        kind = replace(
            kind,
            inputs=partial(image_inputs.with_reference, side_px=reference_px),
            read_pixels={"image": reference_px**2},
        )
    expected = 4 * (vae.latent_channels + kind.extra_channels(vae))
    if config.in_channels != expected:
        raise ValueError(
            f"transformer in_channels is {config.in_channels}, but a {class_name} with vae "
            f"latent_channels {vae.latent_channels} has {expected}: the parts do not fit"
        )
    return kind
