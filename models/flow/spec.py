"""Parts of the specs of models that draw images as packed latents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.fingerprint import config_digest, fingerprint
from models.checkpoint.folder import chosen_defaults
from models.spec.image_sizes import longest_side
from models.spec.model_spec import Limits, ModelSpec, Need
from models.spec.quality_presets import CACHES, LEVERS, Lever
from models.vae.patches import PATCH

MakeSpec = Callable[[str, tuple[Path, ...], Mapping[str, Any]], ModelSpec]
"""Make a spec, of the model's name, the folder and files, and the operator's defaults."""

DEFAULT_LATENTS_PX = 128
"""Side of an image in latents where the request names none: 1024 pixels, as in diffusers."""
BUCKET_FIELDS = ("width", "height", "max_sequence_length")


_TRUE_CFG = (Need(field="true_cfg_scale", above=1), Need(field="negative_prompt"))
TRUE_CFG_NEEDS: Mapping[str, tuple[Need, ...]] = {
    "true_cfg_scale": (Need(field="negative_prompt"),),
    "negative_prompt": _TRUE_CFG,
    "negative_prompt_2": _TRUE_CFG,
}
"""Needs as diffusers has them: a scale above 1 together with a negative prompt."""


def default_size(downsampling: int) -> dict[str, int]:
    """Return an image's size where the request names none.

    Args:
        downsampling: pixels a latent, along each side.
    """
    return dict.fromkeys(("width", "height"), DEFAULT_LATENTS_PX * downsampling)


def limits_by_pixels(
    downsampling: int, ratio: int, max_sequence_length: int, **more: int
) -> Limits:
    """Return the limits of images of at most four times the default pixels.

    Args:
        downsampling: pixels a latent, along each side.
        ratio: most that one of so many pixels is as long as wide.
        more: further limits.
    """
    token, most = PATCH * downsampling, 4 * (DEFAULT_LATENTS_PX * downsampling) ** 2
    longest = longest_side(most, ratio, token)
    return image_limits(token, longest, max_sequence_length, max_pixels=most, **more)


def image_limits(
    token: int,
    longest: int,
    max_sequence_length: int,
    max_pixels: int | None = None,
    **more: int,
) -> Limits:
    """Return the limits of images.

    Args:
        token: pixels of a token's side.
        longest: pixels of the longest side.
        max_pixels: of an image; None: those of a square of that side.
        more: further limits.
    """
    return Limits(
        size_multiple_px=token,
        min_side_px=token,
        max_side_px=longest,
        max_pixels=max_pixels or longest * longest,
        max_steps=1000,
        max_images=16,
        max_sequence_length=max_sequence_length,
        **more,
    )


def levers_of(double_blocks: int) -> frozenset[Lever]:
    """Return a joint transformer's levers; a step cache needs a first double block."""
    return LEVERS if double_blocks else LEVERS - CACHES


def described(
    fields: frozenset[str],
    own: Mapping[str, Any],
    of_tasks: Mapping[str, Mapping[str, Any]] | None = None,
    needs: Mapping[str, tuple[Need, ...]] | None = None,
    **more: Any,
) -> MakeSpec:
    """Return what makes the spec of a checkpoint that draws images.

    Its defaults are a family's own, then the folder's `atelier.json`, then the operator's.

    Args:
        fields: of its requests.
        own: defaults, as published.
        of_tasks: further ones of a task.
        needs: as specs have them; those of other fields are passed over.
        more: fields of the spec.
    """

    def make(name: str, sources: tuple[Path, ...], defaults: Mapping[str, Any]) -> ModelSpec:
        chosen = chosen_defaults(name, sources[0], defaults, fields)
        return ModelSpec(
            name=name,
            fields=fields,
            defaults={**own, **chosen},
            task_defaults={task: {**of, **chosen} for task, of in (of_tasks or {}).items()},
            needs={name: of for name, of in (needs or {}).items() if name in fields},
            bucket_fields=BUCKET_FIELDS,
            fingerprint=fingerprint(*sources),
            config_digest=config_digest(*sources),
            **more,
        )

    return make
