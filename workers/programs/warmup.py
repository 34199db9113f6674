"""The requests that a pool compiles for before it is ready: of what kind, and with which images.

A model may make nothing from text alone (image to video, an inpainting network), or edit first of
all (Kontext). Its warm-up has images that nobody sent, since programs depend on their number and
not on what is in them.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from models.interface.pipeline import Fields, Pipeline, Prepared, RequestError, Step
from models.interface.step_program import StepProgram
from models.spec.asked_hires import mistyped
from models.spec.hires import FIELD as HIRES
from models.spec.hires import with_defaults
from models.spec.lora import Lora, RequestedLora, always
from models.spec.model_spec import ModelSpec
from models.spec.passes import passes
from models.spec.request_images import IMAGE_FIELDS, field_of
from service.settings.section import ConfigError
from workers.programs import second_pass

SIDE_PX = 64
"""Side of a stand-in image; it is resized like any other."""


def requests(spec: ModelSpec, settings: Sequence[Mapping[str, Any]]) -> list[Fields]:
    """The settings' warm-up requests, with the model's defaults for what they leave open."""
    defaults = spec.defaults_for(spec.tasks[0])
    base = {**defaults, "prompt": "", "seed": 0, "num_images": 1}
    return [_with_hires(spec, _with_loras(spec, {**base, **entry}), entry) for entry in settings]


def _with_hires(spec: ModelSpec, fields: Fields, entry: Mapping[str, Any]) -> Fields:
    """Return a request whose hires fix has its target's size, and all that is left open.

    Args:
        entry: the settings' part of it.

    Raises: ConfigError: it is no hires fix.
    """
    if fields.get(HIRES) is None or HIRES not in spec.fields:
        return fields
    place = "warmup" if HIRES in entry else "defaults"
    for key, message in mistyped(fields[HIRES]):
        raise ConfigError(f"models.{spec.name}.{place}.{key}: {message}")
    multiple = spec.limits.size_multiple_px
    return {**fields, HIRES: with_defaults(fields[HIRES], fields, multiple, spec.enlargers)}


def _with_loras(spec: ModelSpec, fields: Fields) -> Fields:
    """Return a request whose adapters, of the settings, are resolved.

    Raises: ConfigError: one of them is not there, or cannot be used.
    """
    if not fields.get("loras"):
        return fields
    named = [_usable(spec, str(one["name"])) for one in fields["loras"]]
    resolved = [
        RequestedLora(
            name=lora.name,
            digest=lora.digest,
            pages=lora.pages,
            networks=lora.networks,
            scales=always(1.0),
        ).model_dump(mode="json")
        for lora in named
    ]
    return {**fields, "loras": resolved}


def with_adapter(pipeline: Any, fields: Fields, pages: int) -> Fields:
    """Return a request with one adapter more, of whichever file, that changes all networks.

    Args:
        pages: that it takes; 0: the request stays as it is.
    """
    if not pages:
        return fields
    networks = sorted({one.network for one in pipeline.SPELLINGS})
    lora = RequestedLora(name="any", digest="", pages=pages, networks=networks, scales=always(1.0))
    return {**fields, "loras": [*(fields.get("loras") or ()), lora.model_dump(mode="json")]}


def _usable(spec: ModelSpec, name: str) -> Lora:
    """Raises: ConfigError."""
    lora = spec.loras.get(name)
    if lora is None or lora.error:
        why = f"cannot be used: {lora.error}" if lora else "is not there"
        raise ConfigError(f"models.{spec.name}.warmup: loras: [loras.{name}] {why}")
    return lora


def prepare(pipeline: Pipeline, fields: Fields) -> Prepared:
    """The request with a grey image in each field that this model's first task has.

    Of several passes, the first.

    Raises: RequestError: something else is wrong with it.
    """
    prepared, _ = stood_in(pipeline, fields)
    return prepared


def prepared_passes(pipeline: Pipeline, fields: Fields) -> list[Prepared]:
    """The same, and its second pass if it has one. Raises: as `prepare`."""
    prepared, images = stood_in(pipeline, fields)
    _, second = passes(fields, pipeline.spec)
    if second is None:
        return [prepared]
    images = second_pass.stood_in(fields, pipeline.spec, images)
    return [prepared, pipeline.prepare(second, images)]


def stood_in(pipeline: Pipeline, fields: Fields) -> tuple[Prepared, dict[str, bytes]]:
    """The same, and those images by path. Raises: as `prepare`."""
    first, _ = passes(fields, pipeline.spec)
    images = {"image": _grey()} if pipeline.spec.tasks[0] == "image-to-image" else {}
    while True:
        try:
            return pipeline.prepare(first, images), images
        except RequestError as error:
            if field_of(error.field) not in IMAGE_FIELDS or error.field in images:
                raise
            images[error.field] = _grey()


def first_steps(steps: Sequence[Step], each: int) -> tuple[Step, ...]:
    """The first so many of each phase."""
    seen: Counter[StepProgram] = Counter()
    chosen = []
    for step in steps:
        seen[step.phase] += 1
        if seen[step.phase] <= each:
            chosen.append(step)
    return tuple(chosen)


def _grey() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (SIDE_PX, SIDE_PX), "grey").save(file, "PNG")
    return file.getvalue()
