"""Parts of the specs of image models with packed latents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.fingerprint import config_digest, fingerprint
from models.checkpoint.folder import chosen_defaults, read_scheduler
from models.media.scaling import longest_side
from models.sampling.flow_choice import FLOW_EVALUATIONS, FLOW_SCHEDULERS
from models.spec.model_spec import Limits, ModelSpec, Need
from models.spec.quality_presets import CACHES, OPTIMIZATIONS, Optimization
from models.vae.patches import PATCH

MakeSpec = Callable[[str, tuple[Path, ...], Mapping[str, Any]], ModelSpec]
"""Function that builds a spec from the model's name, the folder and files, and the operator's
defaults."""

DEFAULT_LATENTS_PX = 128
"""Default side of an image, in latents: 1024 pixels, as in diffusers."""
BUCKET_FIELDS = ("width", "height", "max_sequence_length")


_TRUE_CFG = (Need(field="true_cfg_scale", above=1), Need(field="negative_prompt"))
TRUE_CFG_NEEDS: Mapping[str, tuple[Need, ...]] = {
    "true_cfg_scale": (Need(field="negative_prompt"),),
    "negative_prompt": _TRUE_CFG,
    "negative_prompt_2": _TRUE_CFG,
}
"""Requirements as in diffusers: a scale above 1 together with a negative prompt."""


def default_size(downsampling: int) -> dict[str, int]:
    """Return the default size of an image.

    Args:
        downsampling: pixels per latent, along each side.
    """
    return dict.fromkeys(("width", "height"), DEFAULT_LATENTS_PX * downsampling)


def limits_by_pixels(
    downsampling: int, ratio: int, max_sequence_length: int, **more: int
) -> Limits:
    """Return the request limits of image models with at most four times the default pixels.

    Args:
        downsampling: pixels per latent, along each side.
        ratio: maximum aspect ratio of an image with that many pixels.
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
    """Return the request limits of an image model whose sizes are multiples of a token's side.

    Args:
        token: pixels of a token's side.
        longest: maximum pixels of a side.
        max_pixels: maximum pixels of an image; None: those of a square with that side.
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


def optimizations_of(double_blocks: int) -> frozenset[Optimization]:
    """Return a joint transformer's optimizations; step caches need a double block."""
    return OPTIMIZATIONS if double_blocks else OPTIMIZATIONS - CACHES


def spec_builder(
    fields: frozenset[str],
    published: Mapping[str, Any],
    task_defaults: Mapping[str, Mapping[str, Any]] | None = None,
    needs: Mapping[str, tuple[Need, ...]] | None = None,
    **more: Any,
) -> MakeSpec:
    """Return a function that builds the spec of an image checkpoint.

    Defaults are a family's, overridden by the folder's `atelier.json`, then by the operator's.

    Args:
        fields: fields of its requests.
        published: defaults as published.
        task_defaults: further defaults by task.
        needs: requirements by field; those of other fields are ignored.
        more: fields of the spec.
    """

    def make(name: str, sources: tuple[Path, ...], defaults: Mapping[str, Any]) -> ModelSpec:
        chosen = chosen_defaults(name, sources[0], defaults, fields)
        scheduler = read_scheduler(sources[0]).get("_class_name")
        return ModelSpec(
            name=name,
            fields=fields,
            defaults={**published, **chosen},
            task_defaults={task: {**of, **chosen} for task, of in (task_defaults or {}).items()},
            needs={name: of for name, of in (needs or {}).items() if name in fields},
            schedulers=FLOW_SCHEDULERS,
            scheduler=scheduler if scheduler in FLOW_EVALUATIONS else "",
            evaluations=FLOW_EVALUATIONS,
            bucket_fields=BUCKET_FIELDS,
            fingerprint=fingerprint(*sources),
            config_digest=config_digest(*sources),
            **more,
        )

    return make
