"""Typed requests: what a family reads of a job's fields. No JAX: front ends import this module.

A front end validates a request as its family's class when it admits it, and stores the fields as
JSON. The worker reads them back as the same class. A field that is added to a family later needs a
default: stored jobs, and specs of older workers, lack it.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as fields_of
from functools import cache
from typing import Any, ClassVar, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from models.spec.controls import ControlOptions
from models.spec.embeddings import INTRODUCTION, PROMPTS
from models.spec.field_types import Count, NoiseLevel, Pixels, Scale, Seed, Strength
from models.spec.image_prompts import ImagePromptOptions
from models.spec.lora import RequestedLora
from models.spec.option import OptionError
from models.spec.passes import StepRange
from models.spec.quality_presets import EXACT
from models.spec.type_messages import type_message

REQUEST = ConfigDict(extra="forbid", allow_inf_nan=False)
"""Configuration of a family's request, a frozen pydantic dataclass. Field names are those of the
API (service/schemas/request.py), and types are those of models/spec/field_types.py."""


SCHEDULE = frozenset({"num_inference_steps", "timesteps", "sigmas", "strength", "scheduler"})
"""Request fields that define a schedule; a scheduler's other options are members of `scheduler`."""


class RequestError(OptionError):
    """Rejection of a request that a model does not support; `field` names the cause."""

    @classmethod
    def of_scheduler(cls, error: OptionError) -> RequestError:
        """Return the error of a request whose scheduler rejects a request field or an option."""
        field = error.field if error.field in SCHEDULE else f"scheduler.{error.field}"
        return cls(field, error.message)


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class Request:
    """Fields that every family's request has. Names are diffusers' arguments where it has them."""

    prompt: str
    seed: Seed
    width: Pixels
    height: Pixels
    num_inference_steps: Count
    negative_prompt: str | None = None
    quality: str = EXACT
    """Name of a preset."""
    loras: tuple[RequestedLora, ...] = ()
    control: tuple[ControlOptions, ...] = ()
    image_prompts: tuple[ImagePromptOptions, ...] = ()
    progressive: StepRange | None = None
    """Steps that this pass runs, at a smaller or the full size; None: all steps."""

    @property
    def embeddings(self) -> tuple[RequestedLora, ...]:
        """Textual inversion embeddings that the prompts name."""
        return tuple(entry for entry in self.loras if entry.vectors)

    @property
    def names_embeddings(self) -> bool:
        """True if a prompt names embeddings, known or not."""
        texts = (getattr(self, field, None) or "" for field in PROMPTS)
        return bool(self.embeddings) or any(INTRODUCTION in text.lower() for text in texts)

    @property
    def adapters(self) -> tuple[RequestedLora, ...]:
        """LoRA adapters of the request that change networks."""
        return tuple(entry for entry in self.loras if not entry.vectors)


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class FlowRequest(Request, ABC):
    """Base of requests to flow models."""

    SCALES: ClassVar[tuple[str, ...]] = ()
    """Fields of guidance that are inputs of every step."""

    max_sequence_length: Count
    sigmas: tuple[NoiseLevel, ...] | None = None
    scheduler: Mapping[str, Any] | None = None
    """Scheduler `name`; None selects the checkpoint's scheduler."""

    def __post_init__(self) -> None:
        """Validate the request's custom sigmas.

        Raises: RequestError: the sigmas are not a valid flow schedule.
        """
        _check_sigmas(self.sigmas)

    @property
    @abstractmethod
    def guided(self) -> bool:
        """True if the network also evaluates a negative prompt (classifier-free guidance)."""

    @property
    def prompts(self) -> dict[str, str]:
        """Texts by field: the prompt, and the negative prompt if guided."""
        negative = {"negative_prompt": self.negative_prompt or ""} if self.guided else {}
        return {"prompt": self.prompt, **negative}

    @property
    def scales(self) -> Mapping[str, float]:
        """Guidance scales of the request, which are inputs of every step."""
        return {name: getattr(self, name) for name in self.SCALES}


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class FlowImageRequest(FlowRequest):
    """Base of requests that may start from an image."""

    strength: Strength | None = None

    def image_strength(self, *, from_image: bool) -> float | None:
        """Return the strength of image-to-image, for the schedule; None: start from noise."""
        return (self.strength or 1.0) if from_image else None


@dataclass(frozen=True, kw_only=True, config=REQUEST)
class TrueCfgRequest(FlowImageRequest):
    """Base of requests with classifier-free guidance next to a distilled guidance scale."""

    true_cfg_scale: Scale = 1.0

    @property
    def guided(self) -> bool:
        """True if both prompts are evaluated: a scale above 1 and a negative prompt."""
        return self.true_cfg_scale > 1 and self.negative_prompt is not None


def _check_sigmas(sigmas: Sequence[float] | None) -> None:
    if sigmas is None:
        return
    falling = all(a > b for a, b in itertools.pairwise(sigmas))
    if not sigmas or not falling or not 0 < sigmas[-1] <= sigmas[0] <= 1:
        raise RequestError("sigmas", "must fall from at most 1 and stay above 0")


EVERY_FAMILY = frozenset({"num_images", "quality"})
"""API fields that every family supports, regardless of its request."""
BY_CHECKPOINT = frozenset({"loras", "control", "image_prompts", "progressive"})
"""Fields of `Request` that a checkpoint's spec lists if it supports them, or that are internal."""

R = TypeVar("R", bound=Request)


def read_request(kind: Callable[..., R], fields: Mapping[str, Any]) -> R:
    """Convert a resolved request to a family's typed request.

    Fields that the family lacks, and fields that are None, are ignored.

    Raises:
        RequestError: a value is missing or out of range; names the first such field.
    """
    values = {name: fields[name] for name in names_of(kind) if fields.get(name) is not None}
    try:
        request: R = _adapter(kind).validate_python(values)
        return request
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, RequestError):  # raised by the family's validation of several fields
            raise cause from None
        raise RequestError(str(first["loc"][0]), type_message(first)) from None


def served_fields(kind: Callable[..., Request], *images: str) -> frozenset[str]:
    """Return the API fields that a family supports: its request's fields, and its images."""
    return names_of(kind) - BY_CHECKPOINT | EVERY_FAMILY | {*images}


@cache
def names_of(kind: Any) -> frozenset[str]:
    """Return the field names of a request class."""
    return frozenset(field.name for field in fields_of(kind))


_adapter = cache(TypeAdapter)
"""Cached validator of a request class."""
