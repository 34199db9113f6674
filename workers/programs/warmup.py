"""Warm-up requests, whose programs a worker compiles before it is ready.

A model may generate nothing from text alone (image to video, inpainting), or edit by default
(Kontext). Warm-up requests then contain stand-in images, since programs depend on the number of
images and not on their content.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from models.interface.pipeline import Fields, Pipeline, PreparedRow, Step
from models.interface.step_program import StepProgram
from models.spec.hires import FIELD as HIRES
from models.spec.hires import type_errors, with_defaults
from models.spec.lora import Lora, RequestedLora, always
from models.spec.model_spec import ModelSpec
from models.spec.passes import passes
from models.spec.request import RequestError
from models.spec.request_images import IMAGE_FIELDS, field_of
from service.settings.section import ConfigError
from workers.programs import second_pass

SIDE_PX = 64
"""Side of a stand-in image, which is resized like any other."""


def requests(spec: ModelSpec, settings: Sequence[Mapping[str, Any]]) -> list[Fields]:
    """Return the settings' warm-up requests, completed with the model's defaults."""
    defaults = spec.defaults_for(spec.tasks[0])
    base = {**defaults, "prompt": "", "seed": 0, "num_images": 1}
    return [_with_hires(spec, _with_loras(spec, {**base, **entry}), entry) for entry in settings]


def _with_hires(spec: ModelSpec, fields: Fields, entry: Mapping[str, Any]) -> Fields:
    """Return a request with hires fix options completed: target size and defaults.

    Args:
        entry: the request as in the settings.

    Raises: ConfigError: the options are invalid.
    """
    if fields.get(HIRES) is None or HIRES not in spec.fields:
        return fields
    section = "warmup" if HIRES in entry else "defaults"
    for error in type_errors(fields[HIRES]):
        raise ConfigError(f"models.{spec.name}.{section}.{error}")
    multiple = spec.limits.size_multiple_px
    return {**fields, HIRES: with_defaults(fields[HIRES], fields, multiple, spec.enlargers)}


def _with_loras(spec: ModelSpec, fields: Fields) -> Fields:
    """Return a request with its adapters resolved from the settings.

    Raises: ConfigError: an adapter is missing or unusable.
    """
    if not fields.get("loras"):
        return fields
    named = [_usable(spec, str(lora_fields["name"])) for lora_fields in fields["loras"]]
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
    """Return a request with an additional unnamed adapter that changes all networks.

    Args:
        pages: pages of the adapter; 0: the request is returned unchanged.
    """
    if not pages:
        return fields
    networks = sorted({spelling.network for spelling in pipeline.SPELLINGS})
    lora = RequestedLora(name="any", digest="", pages=pages, networks=networks, scales=always(1.0))
    return {**fields, "loras": [*(fields.get("loras") or ()), lora.model_dump(mode="json")]}


def _usable(spec: ModelSpec, name: str) -> Lora:
    """Return a named adapter of the settings. Raises: ConfigError: it is missing or unusable."""
    lora = spec.loras.get(name)
    if lora is None or lora.error:
        why = f"cannot be used: {lora.error}" if lora else "is not there"
        raise ConfigError(f"models.{spec.name}.warmup: loras: [loras.{name}] {why}")
    return lora


def prepare(pipeline: Pipeline, fields: Fields) -> PreparedRow:
    """Prepare a request's first pass, with a grey image in each field its first task needs.

    Raises: RequestError: the request is invalid for another reason.
    """
    prepared, _ = prepare_with_stand_ins(pipeline, fields)
    return prepared


def prepared_passes(pipeline: Pipeline, fields: Fields) -> list[PreparedRow]:
    """Prepare a request as `prepare`, with its second pass if any. Raises: as `prepare`."""
    prepared, images = prepare_with_stand_ins(pipeline, fields)
    _, second = passes(fields, pipeline.spec)
    if second is None:
        return [prepared]
    images = second_pass.with_stand_in(fields, pipeline.spec, images)
    return [prepared, pipeline.prepare(second, images)]


def prepare_with_stand_ins(
    pipeline: Pipeline, fields: Fields
) -> tuple[PreparedRow, dict[str, bytes]]:
    """Prepare a request like `prepare`; also return its images by field. Raises: as `prepare`."""
    first, _ = passes(fields, pipeline.spec)
    images = {"image": grey_image()} if pipeline.spec.tasks[0] == "image-to-image" else {}
    while True:
        try:
            return pipeline.prepare(first, images), images
        except RequestError as error:
            if field_of(error.field) not in IMAGE_FIELDS or error.field in images:
                raise
            images[error.field] = grey_image()


def first_steps(steps: Sequence[Step], each: int) -> tuple[Step, ...]:
    """Return the first `each` steps of every step kind."""
    seen: Counter[StepProgram] = Counter()
    chosen = []
    for step in steps:
        seen[step.program] += 1
        if seen[step.program] <= each:
            chosen.append(step)
    return tuple(chosen)


def grey_image() -> bytes:
    """Return a small grey image file, as a stand-in for input images."""
    file = io.BytesIO()
    Image.new("RGB", (SIDE_PX, SIDE_PX), "grey").save(file, "PNG")
    return file.getvalue()
