"""Output sizes that a model serves, read from its settings."""

from __future__ import annotations

from models.spec.model_spec import ModelSpec, Size, Sizes
from models.spec.passes import passes
from service.settings.models import ModelSettings
from service.settings.section import ConfigError
from workers.programs import warmup


def of_settings(model: ModelSettings, spec: ModelSpec) -> Sizes:
    """Return the output sizes that a model serves.

    Raises: ConfigError: the model cannot serve a listed size.
    """
    shared = spec.sizes.token_buckets
    if model.sizes == "any":
        return Sizes(token_buckets=shared)
    if model.sizes == "listed":
        requests = warmup.requests(spec, model.warmup)
        all_passes = [
            pass_fields
            for fields in requests
            for pass_fields in passes(fields, spec)
            if pass_fields is not None
        ]
        listed = [Size.model_validate(fields, from_attributes=False) for fields in all_passes]
    else:
        tokens = {"max_sequence_length": spec.defaults.get("max_sequence_length")}
        listed = [Size(**tokens | size.model_dump(exclude_none=True)) for size in model.sizes]
    for size in listed:
        _check(size, spec)
    return Sizes(mode="listed", listed=tuple(dict.fromkeys(listed)), token_buckets=shared)


def _check(size: Size, spec: ModelSpec) -> None:
    limits, multiple = spec.limits, spec.limits.size_multiple_px
    for side in (size.width, size.height):
        if not limits.min_side_px <= side <= limits.max_side_px or side % multiple:
            raise ConfigError(
                f"models.{spec.name}.sizes: {size} has a side that is no multiple of {multiple}"
                f" from {limits.min_side_px} to {limits.max_side_px} pixels"
            )
    if size.width * size.height > limits.max_pixels:
        raise ConfigError(
            f"models.{spec.name}.sizes: {size} has more than {limits.max_pixels} pixels"
        )
    if (size.max_sequence_length or 0) > limits.max_sequence_length:
        raise ConfigError(
            f"models.{spec.name}.sizes: {size}: max_sequence_length must be"
            f" {limits.max_sequence_length} at most"
        )
    frames = size.num_frames or limits.min_frames
    fits = limits.min_frames <= frames <= limits.max_frames
    if not fits or (frames - limits.min_frames) % limits.frames_multiple:
        raise ConfigError(
            f"models.{spec.name}.sizes: {size}: num_frames must be {limits.min_frames} more than a"
            f" multiple of {limits.frames_multiple}, {limits.max_frames} at most"
        )
