"""Spec of a model: tasks, request fields, defaults, limits and presets. No JAX.

A worker builds the spec from the checkpoint when it starts and registers it in the queue. The front
end validates requests against it and never opens a weight file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from models.media.scaling import FrameScaling
from models.spec.controls import FIELD as CONTROL
from models.spec.controls import ControlKind, work_of
from models.spec.evaluations import Evaluations
from models.spec.field_types import REFINER, SWITCH
from models.spec.hires import BUILT_IN
from models.spec.hires import FIELD as HIRES
from models.spec.hires import TASK as REDRAWING
from models.spec.image_prompts import FIELD as IMAGE_PROMPTS
from models.spec.image_prompts import ImagePrompt, tokens_of
from models.spec.lora import Lora, RequestedLora, pages_of_request
from models.spec.option import Option
from models.spec.quality_presets import EXACT, Quality, for_previous_release
from models.spec.request_images import field_of, image_values
from models.spec.upscalers import Enlarger, Upscaler

READ_PX, READ_FRAMES = "read_px", "read_frames"
"""Parts of a bucket key: pixels of input images that each step reads, and extra frames of the
video's size that each step processes."""

VERSION_MARK = "@"
"""Separator between a model's base name and its version, as in `flux-dev@r2`."""

Task = Literal["text-to-image", "image-to-image", "inpainting", "text-to-video", "image-to-video"]


ALL_QUALITIES = "all_qualities"
"""Key of a serialized spec with all presets, including those that the previous release cannot read.
"""


class Need(BaseModel):
    """Condition on another field for a field to have an effect."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    field: str
    """The other field: a request field, `scheduler` (its name), or `task`."""
    above: float | None = None
    """The other field must be a number above this."""
    among: tuple[str, ...] = ()
    """The other field must be one of these. With neither `above` nor `among`, it must be present.
    """
    tasks: tuple[Task, ...] = ()
    """Tasks to which the condition applies; empty: all."""

    def is_met(self, values: Mapping[str, Any]) -> bool:
        """Return whether the request meets the condition.

        Args:
            values: the resolved fields, with `task`, and `scheduler` as a name.
        """
        if self.tasks and values["task"] not in self.tasks:
            return True
        value = values.get(self.field)
        if self.above is not None:
            return value is not None and value > self.above
        return value in self.among if self.among else value is not None


class Limits(BaseModel):
    """Sizes and counts that a model can serve. Settings of the front end can only tighten them."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    size_multiple_px: int = Field(gt=0)
    """Width and height must be whole multiples of this."""
    min_side_px: int = Field(gt=0)
    """Minimum width and height."""
    max_side_px: int = Field(gt=0)
    """Maximum width and height."""
    max_pixels: int = Field(gt=0)
    """Maximum pixels of one image or frame: width times height."""
    max_frames: int = Field(default=1, gt=0)
    """Maximum `num_frames` of a video."""
    min_frames: int = Field(default=1, gt=0)
    """Minimum `num_frames` of a video."""
    frames_multiple: int = Field(default=1, gt=0)
    """`num_frames` is `min_frames` more than a whole multiple of this."""
    max_steps: int = Field(gt=0)
    """Maximum `num_inference_steps`."""
    min_steps: int = Field(default=1, gt=0)
    """Minimum `num_inference_steps`."""
    max_images: int = Field(gt=0)
    """Maximum `num_images`."""
    max_sequence_length: int = Field(gt=0)
    """Maximum text tokens of the model's longest encoder."""
    sequence_length_multiple: int = Field(default=1, gt=0)
    """`max_sequence_length` must be a whole multiple of this."""
    max_clip_skip: int = Field(default=100, ge=0)
    """Maximum CLIP skip: one less than the layers of the model's shallowest CLIP encoder."""
    max_reference_images: int = Field(default=0, ge=0)
    """Maximum number of `reference_images`."""
    conditioning_scales: int = Field(default=0, ge=0)
    """Number of layers that `conditioning_scale` may list one number each for."""
    max_image_prompts: int = Field(default=0, ge=0)
    """Maximum number of `image_prompts`."""
    max_controls: int = Field(default=0, ge=0)
    """Maximum number of entries in `control`."""


class Size(BaseModel):
    """Size of an image or video, with the text length where it matters."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    width: int = Field(gt=0)
    """Width in pixels."""
    height: int = Field(gt=0)
    """Height in pixels."""
    num_frames: int | None = Field(default=None, gt=0)
    """Frames of a video. `null`: any number of frames, or an image."""
    max_sequence_length: int | None = Field(default=None, gt=0)
    """Text tokens. `null`: any number, or the model has a fixed length."""

    def __str__(self) -> str:
        frames = f" x {self.num_frames} frames" if self.num_frames else ""
        return f"{self.width} x {self.height}{frames}"

    def fits(self, fields: Mapping[str, Any]) -> bool:
        """Return whether a request has this size, regardless of the length of its text."""
        sides = (fields.get("width"), fields.get("height")) == (self.width, self.height)
        return sides and self.num_frames in (None, fields.get("num_frames"))


class Sizes(BaseModel):
    """Sizes that a model serves and compiles programs for."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    mode: Literal["any", "listed"] = "any"
    """`any`: every size within `limits`. `listed`: only the sizes of `listed`."""
    listed: tuple[Size, ...] = ()
    """Sizes that are compiled before the model is ready."""
    token_buckets: float = Field(default=0.0, ge=0)
    """Maximum extra work per step, as a fraction, when sizes share compiled steps by padding; 0:
    each size has its own steps."""


class Aim(BaseModel):
    """Service objectives of a model, used by alerts."""

    model_config = ConfigDict(frozen=True)

    objective_s: float = 300.0
    """Longest time that its jobs may wait."""
    cold_start_s: float = 900.0
    """Usual time from zero workers to a ready worker."""


class Batching(BaseModel):
    """Batching mode: determines whether an image depends on the others in its batch."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    mode: Literal["exact", "fast"] = "exact"
    """`exact`: a request produces the same bytes alone and in any batch, on every worker with the
    same settings, chips and mesh. `fast`: the batch size varies, and an image differs slightly with
    it."""
    levels: int | None = Field(default=None, ge=0)
    """Measured difference between the batch sizes of `fast`: the largest difference of a subpixel,
    in levels of 255. Each batch size generates the first warm-up request; other requests may differ
    by more. `null`: not measured yet."""


class DerivedModel(BaseModel):
    """Model made of a base model and fixed adapters, served by the base model's workers."""

    model_config = ConfigDict(frozen=True)

    name: str
    defaults: Mapping[str, Any]
    """Request fields whose default differs from the base model's."""
    loras: tuple[RequestedLora, ...]
    """Adapters applied to every image."""


class ModelSpec(BaseModel):
    """Model as the API presents it: fields, defaults, limits, presets and adapters."""

    model_config = ConfigDict(frozen=True)

    name: str
    family: str
    backend: Literal["native", "diffusers"] = "native"
    """Generator of its images: JAX, or a diffusers pipeline on torch."""
    lacks: tuple[str, ...] = ()
    """Promises of native models that do not hold for this one."""
    tasks: tuple[Task, ...]
    """Supported tasks; the workers warm up for the first."""
    fields: frozenset[str]
    """Request fields that this model accepts. The front end rejects any other field by name."""
    defaults: Mapping[str, Any]
    """Default values of optional request fields."""
    task_defaults: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Defaults by task, which take precedence over `defaults`."""
    needed: frozenset[str] = frozenset()
    """Fields that every request must set, in addition to the images of its task."""
    strength_rounds: Literal["down", "up"] = "up"
    """Rounding of the number of steps that `strength` runs, as in the family's diffusers pipelines.
    """
    sized_by_image: tuple[Task, ...] = ()
    """Tasks in which a request without a size takes the size of its input image."""
    sized_within_px: int | None = Field(default=None, gt=0)
    """Maximum pixels of a size taken from an input image; larger sizes are scaled down. `null`: no
    maximum."""
    sized_area_px: int | None = None
    """Area to which a size taken from an input image is scaled; `null`: the image's own."""
    sized_by_last: bool = False
    """Whether the last of `reference_images`, if any, determines that size."""
    strength_needs: Literal["image", "mask_image"] = "image"
    """Image that a request with `strength` must have."""
    needs: Mapping[str, tuple[Need, ...]] = Field(default_factory=dict)
    """Conditions by request field. If one of them is not met, the field has no effect, and a
    request that sets the field gets a warning."""
    limits: Limits
    schedulers: Mapping[str, Mapping[str, Option]] = Field(default_factory=dict)
    """Values of the request's `scheduler`, each with its options by name; empty: only the
    checkpoint's own scheduler."""
    scheduler: str = ""
    """Name in `schedulers` of the checkpoint's own scheduler."""
    evaluations: Mapping[str, Evaluations] = Field(default_factory=dict)
    """Evaluations of the network by scheduler. Each counts as a step in progress, previews and
    cost. A scheduler without an entry has one a step."""
    step_lists: Mapping[str, frozenset[str]] = Field(default_factory=dict)
    """Step lists, `timesteps` or `sigmas`, that a request may combine with each scheduler. A
    scheduler without an entry accepts both."""
    sigmas_are: Literal["of steps", "noise levels"] = "of steps"
    """Meaning of `sigmas`. `of steps`: one value per step of a flow model, above 0 and at most 1.
    `noise levels`: noise over signal; the last value is the level after the last step, usually 0.
    """
    qualities: Mapping[str, Quality] = Field(default_factory=dict)
    """Presets that the request's `quality` may name, in addition to `exact`."""
    has_exact: bool = True
    """Whether `exact` is available; false if all blocks of a network have 8-bit weights."""
    batching: Batching = Batching()
    """Batching mode from the pools' settings, and its measured difference."""
    sizes: Sizes = Sizes()
    aim: Aim = Aim()
    """Service objectives from the pools' settings."""
    sound_hz: int | None = Field(default=None, gt=0)
    """Sample rate of the videos' sound; `null`: silent videos."""
    has_alpha: bool = False
    """Whether `Pipeline.decode` returns images with alpha."""
    read_pixels: Mapping[str, int] = Field(default_factory=dict)
    """Pixels of each input image that every step reads, by request field. They take as long as
    pixels of the output. Fields that are not listed add none."""
    read_frames: Mapping[str, int] = Field(default_factory=dict)
    """Extra frames of the video's size that every step processes for each input image, by request
    field. They take as long as frames of the video. Fields that are not listed add none."""
    frame_scaling: Mapping[str, FrameScaling] = Field(default_factory=dict)
    """Scaling of the frames of input videos, by request field; each video field has an entry."""
    least_side_px: Mapping[str, int] = Field(default_factory=dict)
    """Minimum width and height of an input image, by request field."""
    most_ratio: Mapping[str, int] = Field(default_factory=dict)
    """Maximum ratio of the longer to the shorter side of an input image, by request field."""
    image_prompts: Mapping[str, ImagePrompt] = Field(default_factory=dict)
    """Names that entries of the request's `image_prompts` may use; empty: image prompts are not
    supported."""
    controls: Mapping[str, ControlKind] = Field(default_factory=dict)
    """Names that entries of the request's `control` may use; empty: controls are not supported."""
    upscalers: Mapping[str, Upscaler] = Field(default_factory=dict)
    """Names that the request's `upscale` may use; empty: upscaling is not supported."""
    enlargers: Mapping[str, Enlarger] = Field(default_factory=dict)
    """Networks that enlarge the model's latents between the passes of hires fix, by name."""
    lora_pages: int = Field(default=0, ge=0)
    """Maximum pages of adapters of one image (`models.spec.lora`); 0: the model's workers accept no
    adapters."""
    lora_layers: str = ""
    """Names and shapes of the layers that adapters may change, packed
    (`models.adapters.files.name_table`)."""
    embedding_sizes: Mapping[str, int] = Field(default_factory=dict)
    """Hidden sizes of the text encoders that read embeddings (textual inversion), by name; empty:
    the model reads none."""
    loras: Mapping[str, Lora] = Field(default_factory=dict)
    """Adapters and embeddings of the settings, by name."""
    warnings: tuple[str, ...] = ()
    """Contents of its files that are not used, for people."""
    derived: tuple[DerivedModel, ...] = ()
    """Additional models that its workers serve, each with fixed adapters."""
    runs_on: str = ""
    """Model whose workers serve this one; empty: it has its own workers."""
    version: str = ""
    """Version that an alias of this name has selected for a request; empty: the name is no alias.
    """
    fixed_loras: tuple[RequestedLora, ...] = ()
    """Adapters applied to every image of this model."""
    bucket_fields: tuple[str, ...]
    """Request fields that determine the compiled program. Requests with equal values may share a
    batch."""
    fingerprint: str
    """Digest that changes with the weights or configs."""
    config_digest: str = Field("", exclude=True)
    """Digest of the configs, which determine the compiled programs. Set in workers only."""

    @model_serializer(mode="wrap")
    def _for_versions(
        self, write: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        """Serialize presets twice: all of them, and those that the previous release can read."""
        written: dict[str, Any] = write(self)
        if info.mode == "json":
            written[ALL_QUALITIES] = written["qualities"]
            written["qualities"] = for_previous_release(written["qualities"])
        return written

    @model_validator(mode="before")
    @classmethod
    def _of_this_version(cls, data: Any) -> Any:
        """Read all presets from their separate key, if the spec was serialized with one."""
        if isinstance(data, Mapping) and ALL_QUALITIES in data:
            return {**data, "qualities": data[ALL_QUALITIES]}
        return data

    @model_validator(mode="after")
    def _serves_hires(self, info: ValidationInfo) -> ModelSpec:
        """Add the field of hires fix, which combines two of the tasks.

        Skipped for a spec that is parsed from JSON: the older worker that registered it would
        ignore the field.
        """
        if info.mode != "json" and self.hires_upscalers and HIRES not in self.fields:
            object.__setattr__(self, "fields", self.fields | {HIRES})
        return self

    @property
    def hires_upscalers(self) -> tuple[str, ...]:
        """Upscalers between the passes of hires fix, the default first; empty: unsupported.

        Enlargers of latents are first. Built-in and image upscalers follow if the model has
        image-to-image with a strength.
        """
        begins = "strength" in self.fields and self.strength_needs == "image"
        redraws = REDRAWING in self.tasks and begins and "hires fix" not in self.lacks
        return (*self.enlargers, *(BUILT_IN + tuple(sorted(self.upscalers)) if redraws else ()))

    @property
    def quality_names(self) -> tuple[str, ...]:
        """Values that the request's `quality` may have."""
        return (*[EXACT] * self.has_exact, *self.qualities)

    @property
    def scales_sizes(self) -> bool:
        """True if a request without a size gets the scaled size of its input image."""
        return self.sized_area_px is not None or self.sized_within_px is not None

    @property
    def queue(self) -> str:
        """Name of the model whose queue contains this model's jobs."""
        return self.runs_on or self.name

    @property
    def line(self) -> str:
        """Name without version of the model that serves this one: `flux-dev` of `flux-dev@r2`.

        An adapter for this name fits every version.
        """
        return line_of(self.queue)

    def accepts_adapter(self, lora: Lora) -> bool:
        """Return whether an adapter is for this model."""
        return lora.model in (self.queue, self.line)

    def interprets_requests_like(self, other: ModelSpec) -> bool:
        """Return whether a resolved request has the same meaning for another model.

        Versions that differ only in weights qualify. Differences in defaults do not matter, since a
        resolved request includes them.
        """
        return _request_semantics(self) == _request_semantics(other)

    def as_alias(self, name: str) -> ModelSpec:
        """Return the spec of an alias for a request that this model serves.

        The alias lists no adapters and no derived models of its own.
        """
        update = {"name": name, "version": self.name, "runs_on": self.queue}
        return self.model_copy(update={**update, "derived": (), "loras": {}})

    def variants(self) -> Iterator[ModelSpec]:
        """Yield the specs of the derived models that its workers serve.

        Adapters are listed only with the model that owns the queue, although both can use them.
        """
        for derived in self.derived:
            yield self.model_copy(
                update={
                    "name": derived.name,
                    "defaults": {**self.defaults, **derived.defaults},
                    "task_defaults": {
                        task: {
                            name: value
                            for name, value in task_default.items()
                            if name not in derived.defaults
                        }
                        for task, task_default in self.task_defaults.items()
                    },
                    "derived": (),
                    "loras": {},
                    "lora_pages": max(
                        0, self.lora_pages - sum(lora.pages for lora in derived.loras)
                    ),
                    "runs_on": self.name,
                    "fixed_loras": derived.loras,
                }
            )

    def wrong_shape(self, path: str, width: int, height: int) -> str | None:
        """Return why the model rejects an input image of that size; None: it is accepted.

        Args:
            path: of the image in the request.
        """
        (short, long), field = sorted((width, height)), field_of(path)
        least, ratio = self.least_side_px.get(field, 0), self.most_ratio.get(field, long)
        if short < least:
            return f"must be at least {least} pixels wide and high"
        return f"must have an aspect ratio of at most {ratio}:1" if long > ratio * short else None

    def defaults_for(self, task: Task) -> dict[str, Any]:
        """Return the defaults of a request for that task."""
        return {**self.defaults, **self.task_defaults.get(task, {})}

    def control_work(self, request: Mapping[str, Any]) -> float:
        """Return the work that a request's controls add, as a share of the steps without them."""
        refiner = None if "mask_image" in request else request.get(REFINER)
        until = 1.0 if refiner is None else float(refiner.get("switch", SWITCH))
        return work_of(request.get(CONTROL) or (), self.controls, until)

    def bucket(self, request: Mapping[str, Any], loras: Iterable[RequestedLora] = ()) -> str:
        """Return the bucket key, by which the queue groups requests for one claim.

        The engine makes the final decision on what shares a program (`Prepared.bucket`).

        Args:
            loras: adapters of the request, whose rank bucket is part of the key.
        """
        # A job of an earlier version lacks newer fields; a job without a quality is exact.
        fields = {**self.defaults, "quality": EXACT, **request}
        size = ",".join(f"{name}={fields.get(name)}" for name in self.bucket_fields)
        tokens = tokens_of(request.get(IMAGE_PROMPTS) or (), self.image_prompts)
        size += "".join(f",{name}_tokens={count}" for name, count in tokens.items())
        fields_of_images = [field_of(path) for path in image_values(request)]
        controlled_px = round(self.control_work(fields) * _pixels(fields))
        for part, each, more in (
            (READ_PX, self._pixels_read(request, fields), controlled_px),
            (READ_FRAMES, self.read_frames, 0),
        ):
            if read := more + sum(each.get(name, 0) for name in fields_of_images):
                size += f",{part}={read}"
        if request.get(REFINER):
            size += f",{REFINER}"
        pages = pages_of_request(loras)
        return f"{size},lora_pages={pages}" if pages else size

    def _pixels_read(
        self, request: Mapping[str, Any], fields: Mapping[str, Any]
    ) -> Mapping[str, int]:
        """Return the pixels of each input image that steps read, by field.

        In an edit with a mask, steps read the base image at the request's size.
        """
        if self.strength_needs == "mask_image" and "mask_image" in request:
            return {**self.read_pixels, "image": _pixels(fields)}
        return self.read_pixels


VERSION_FIELDS = {
    *("name", "version", "runs_on", "derived", "fingerprint"),
    *("defaults", "task_defaults", "loras", "batching"),
}
"""Fields that do not affect the meaning of a resolved request."""


def _request_semantics(spec: ModelSpec) -> dict[str, Any]:
    return spec.model_dump(exclude=VERSION_FIELDS)


def line_of(model: str) -> str:
    """Return a model's name without its version: the part before the `@`."""
    return model.partition(VERSION_MARK)[0]


def _pixels(fields: Mapping[str, Any]) -> int:
    """Return the pixels of a request's image, width times height; 0 if either is missing."""
    return int(fields.get("width") or 0) * int(fields.get("height") or 0)
