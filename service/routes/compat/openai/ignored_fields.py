"""Fields of OpenAI's image API that have no effect here: accepted, with a warning each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from models.spec.model_spec import ModelSpec
from service.jobs.model.job import FieldWarning
from service.routes.compat.openai.image_requests import ImageRequest
from service.routes.compat.openai.qualities import missing_preset

MESSAGES: Mapping[str, str] = {
    "style": "has no effect; describe the style in the prompt",
    "moderation": "has no effect; this server's operator configures the safety check",
    "input_fidelity": "has no effect; strength determines how much changes",
    "service_tier": "has no effect; priority orders the jobs of a key",
}
"""Message by field."""
_DEFAULTS = frozenset({None, "auto", "default"})
"""Values that name what happens without the field."""
_FIDELITY = "low"
"""Value of `input_fidelity` that the edits here have."""


def warnings_of(body: ImageRequest, spec: ModelSpec) -> list[FieldWarning]:
    """Return a warning for each OpenAI image field that has no effect."""
    return [FieldWarning(field=name, message=text) for name, text in _warnings(body, spec)]


def _warnings(body: ImageRequest, spec: ModelSpec) -> Iterator[tuple[str, str]]:
    for name, message in MESSAGES.items():
        value = getattr(body, name, None)
        if value not in _DEFAULTS and (name, value) != ("input_fidelity", _FIDELITY):
            yield name, message
    if preset := missing_preset(body.quality, spec):
        default = spec.defaults.get("quality", spec.quality_names[0])
        yield "quality", f"the model has no preset {preset!r}; its default {default!r} is used"
    if body.stream and body.response_format == "url":
        yield "response_format", "has no effect; a stream contains images in base64"
    if body.partial_images and not body.stream:
        yield "partial_images", "has no effect without stream: true"
