"""Spec of a model for the front end. No JAX in here: the front end imports it.

A pool builds the spec from the checkpoint when it starts and registers it in the queue; the front
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

from models.spec.controls import FIELD as CONTROL
from models.spec.controls import ControlKind, work_of
from models.spec.enlargers import Enlarger
from models.spec.frame_scaling import FrameScaling
from models.spec.hires import BUILT_IN
from models.spec.hires import FIELD as HIRES
from models.spec.hires import TASK as REDRAWING
from models.spec.image_prompts import FIELD as IMAGE_PROMPTS
from models.spec.image_prompts import ImagePrompt, tokens_of
from models.spec.lora import Lora, RequestedLora, pages_of_request
from models.spec.option import Option
from models.spec.quality_presets import EXACT, Quality, as_once
from models.spec.refiner import FIELD as REFINER
from models.spec.refiner import SWITCH
from models.spec.request_images import field_of, image_values
from models.spec.upscalers import Upscaler

READ_PX, READ_FRAMES = "read_px", "read_frames"
"""Parts of a bucket: pixels of a request's images that each step reads, and frames of its own
size."""

VERSION_MARK = "@"
"""Sign between the name that versions of a model share and the version's own."""

Task = Literal["text-to-image", "image-to-image", "inpainting", "text-to-video", "image-to-video"]


ALL_QUALITIES = "all_qualities"
"""Presets of a written spec, with what releases before plans cannot read."""


class Need(BaseModel):
    """Condition on another field for a field to have an effect."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    field: str
    """The other field: a request field, `scheduler` (its name), or `task`."""
    above: float | None = None
    """The other field must be a number above this."""
    among: tuple[str, ...] = ()
    """The other field must be one of these. With neither, it must be given."""
    tasks: tuple[Task, ...] = ()
    """Tasks that the need is for; empty: all."""

    def is_met(self, values: Mapping[str, Any]) -> bool:
        """Return whether the need is met.

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
    """The sizes a model can serve. Settings of the front end may tighten them, never widen."""

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
    """Text tokens that the model's longest encoder takes."""
    sequence_length_multiple: int = Field(default=1, gt=0)
    """`max_sequence_length` must be a whole multiple of this."""
    max_clip_skip: int = Field(default=100, ge=0)
    """Maximum CLIP skip: one less than the layers of the model's shallowest CLIP encoder."""
    max_reference_images: int = Field(default=0, ge=0)
    """Maximum number of `reference_images`."""
    conditioning_scales: int = Field(default=0, ge=0)
    """Number of layers that `conditioning_scale` may have a number for, where it has several."""
    max_image_prompts: int = Field(default=0, ge=0)
    """Maximum number of `image_prompts`."""
    max_controls: int = Field(default=0, ge=0)
    """Maximum number of entries in `control`."""


class Size(BaseModel):
    """Size of an image or video."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    width: int = Field(gt=0)
    """Width in pixels."""
    height: int = Field(gt=0)
    """Height in pixels."""
    num_frames: int | None = Field(default=None, gt=0)
    """`null`: any number, of a video; of images there is none."""
    max_sequence_length: int | None = Field(default=None, gt=0)
    """Text tokens; `null`: any number of them, or the model has but one."""

    def __str__(self) -> str:
        frames = f" x {self.num_frames} frames" if self.num_frames else ""
        return f"{self.width} x {self.height}{frames}"

    def fits(self, fields: Mapping[str, Any]) -> bool:
        """Return whether a request is of that size, whatever the length of its text."""
        sides = (fields.get("width"), fields.get("height")) == (self.width, self.height)
        return sides and self.num_frames in (None, fields.get("num_frames"))


class Sizes(BaseModel):
    """Sizes that a model serves: each new one is compiled."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    mode: Literal["any", "listed"] = "any"
    """`any`: whatever `limits` allow. `listed`: those of `listed`, and no others."""
    listed: tuple[Size, ...] = ()
    """Sizes that are compiled before the model is ready."""
    token_buckets: float = Field(default=0.0, ge=0)
    """Work that a step may cost more than an image's own, as a fraction, where sizes share it; 0:
    each size has steps of its own."""


class Aim(BaseModel):
    """Aims of a model, which alerts hold it against."""

    model_config = ConfigDict(frozen=True)

    objective_s: float = 300.0
    """Time that its jobs may wait."""
    cold_start_s: float = 900.0
    """Usual time from no pool to a ready one."""


class Batching(BaseModel):
    """Dependence of an image on what runs beside it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    mode: Literal["exact", "fast"] = "exact"
    """`exact`: the same request has the same bytes alone and beside any others, on every pool with
    the same settings, chips and mesh. `fast`: batches have several sizes, and an image differs a
    little with its company."""
    levels: int | None = Field(default=None, ge=0)
    """Difference between the batch sizes of `fast`: of 255, the most by which a subpixel of the
    pool's first warm-up request differs, measured by drawing it by each; other requests may differ
    by more. `null`: not measured yet."""


class DerivedModel(BaseModel):
    """Model that is another one with an adapter, served by that one's pools."""

    model_config = ConfigDict(frozen=True)

    name: str
    defaults: Mapping[str, Any]
    """Request fields whose default differs."""
    loras: tuple[RequestedLora, ...]
    """Adapters that every image has."""


class ModelSpec(BaseModel):
    """Model as the API sees it."""

    model_config = ConfigDict(frozen=True)

    name: str
    family: str
    tasks: tuple[Task, ...]
    """Tasks; the first is what its pools warm up for."""
    fields: frozenset[str]
    """Names of the request fields that this model serves; any other is refused by name."""
    defaults: Mapping[str, Any]
    """Request fields that the client may leave out, with the value that is then used."""
    task_defaults: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Defaults that differ for one task, by task: they go before `defaults`."""
    needed: frozenset[str] = frozenset()
    """Fields that every request has to set, beside the images of its task."""
    strength_rounds: Literal["down", "up"] = "up"
    """Rounding of the share of the steps that `strength` runs, as in diffusers' pipelines of the
    family."""
    sized_by_image: tuple[Task, ...] = ()
    """Tasks whose images have the size of the request's, where it names none itself."""
    sized_within_px: int | None = Field(default=None, gt=0)
    """Pixels that such a size has at the most, down to which a larger image's is scaled; `null`:
    any."""
    sized_area_px: int | None = None
    """Pixels that such a size is scaled to; `null`: it is the image's own."""
    sized_by_last: bool = False
    """True if such a size is that of the last of `reference_images`, where some are sent."""
    strength_needs: Literal["image", "mask_image"] = "image"
    """Image that a request with `strength` has to have."""
    needs: Mapping[str, tuple[Need, ...]] = Field(default_factory=dict)
    """Conditions by request field: without all of these the field has no effect, and a request that
    sets it is served with a warning."""
    limits: Limits
    schedulers: Mapping[str, Mapping[str, Option]] = Field(default_factory=dict)
    """Names that the request's `scheduler` may have, each with its options by name; empty: only
    the checkpoint's own."""
    scheduler: str = ""
    """Name of the checkpoint's own scheduler, among those."""
    step_lists: Mapping[str, frozenset[str]] = Field(default_factory=dict)
    """Step lists by those names: which of `timesteps` and `sigmas` a request may set beside; a name
    that is not here takes both."""
    sigmas_are: Literal["of steps", "noise levels"] = "of steps"
    """Meaning of `sigmas`: one a step, of a flow, at most 1 and above 0; or noise over signal,
    where the last is no step but where the last one leads, usually 0."""
    qualities: Mapping[str, Quality] = Field(default_factory=dict)
    """Presets that the request's `quality` may name, beside `exact`."""
    has_exact: bool = True
    """Whether `exact` is to be had: not where all of a network's blocks are of 8 bits."""
    batching: Batching = Batching()
    """Batching as the pools' settings have it, and `sizes`."""
    sizes: Sizes = Sizes()
    aim: Aim = Aim()
    """Aims as the pools' settings have them."""
    sound_hz: int | None = Field(default=None, gt=0)
    """Samples a second of the sound that its videos have; `null`: they have none."""
    read_pixels: Mapping[str, int] = Field(default_factory=dict)
    """Pixels of an image that each step reads beside the image that it draws, and takes as long
    for, by request field; of fields that are not here, none."""
    read_frames: Mapping[str, int] = Field(default_factory=dict)
    """Frames of the video's size that each step draws beside the video, and takes as long for, by
    request field and image; of fields that are not here, none."""
    frame_scaling: Mapping[str, FrameScaling] = Field(default_factory=dict)
    """Scaling of the frames of videos that are sent, by request field; every one has it."""
    least_side_px: Mapping[str, int] = Field(default_factory=dict)
    """Least width and height of an image that is sent, by request field."""
    most_ratio: Mapping[str, int] = Field(default_factory=dict)
    """Most that such an image may be as long as wide, by request field."""
    image_prompts: Mapping[str, ImagePrompt] = Field(default_factory=dict)
    """Names that an entry of the request's `image_prompts` may have; empty: it takes none."""
    controls: Mapping[str, ControlKind] = Field(default_factory=dict)
    """Names that an entry of the request's `control` may have; empty: it takes none."""
    upscalers: Mapping[str, Upscaler] = Field(default_factory=dict)
    """Names that the request's `upscale` may have; empty: it takes none."""
    enlargers: Mapping[str, Enlarger] = Field(default_factory=dict)
    """Networks that enlarge the model's own latents between the passes of hires fix, by name."""
    lora_pages: int = Field(default=0, ge=0)
    """Pages of adapters that one image may have at the most (`models.spec.lora`); 0: the model's
    pools take no adapters."""
    lora_layers: str = ""
    """Names and shapes of the layers that adapters may change, packed
    (`models.adapters.files.names`)."""
    loras: Mapping[str, Lora] = Field(default_factory=dict)
    """Adapters of the settings, by name."""
    derived: tuple[DerivedModel, ...] = ()
    """Models that its pools serve beside it."""
    runs_on: str = ""
    """Model whose pools serve this one; empty: it has pools of its own."""
    version: str = ""
    """Model that an alias of this name has drawn for a request; empty: the name is its own."""
    fixed_loras: tuple[RequestedLora, ...] = ()
    """Adapters that every image of it has."""
    bucket_fields: tuple[str, ...]
    """Request fields that shape the compiled program: equal values may share a batch."""
    fingerprint: str
    """Changes whenever the weights or configs do."""
    config_digest: str = Field("", exclude=True)
    """Changes whenever the configs do, which programs depend on. Of a worker alone."""

    @model_serializer(mode="wrap")
    def _for_versions(
        self, write: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        """Write presets twice: all, and for a last release that reads no plans as it knows them."""
        written: dict[str, Any] = write(self)
        if info.mode == "json":
            written[ALL_QUALITIES] = written["qualities"]
            written["qualities"] = as_once(written["qualities"])
        return written

    @model_validator(mode="before")
    @classmethod
    def _of_this_version(cls, said: Any) -> Any:
        """Read the presets of a version that writes all of them apart."""
        if isinstance(said, Mapping) and ALL_QUALITIES in said:
            return {**said, "qualities": said[ALL_QUALITIES]}
        return said

    @model_validator(mode="after")
    def _serves_hires(self, info: ValidationInfo) -> ModelSpec:
        """Add hires fix, which is two of the tasks in a row.

        Not to a spec that is read: an older pool that has registered it would ignore the field.
        """
        if info.mode != "json" and self.hires_upscalers and HIRES not in self.fields:
            object.__setattr__(self, "fields", self.fields | {HIRES})
        return self

    @property
    def hires_upscalers(self) -> tuple[str, ...]:
        """Upscalers between the passes of hires fix, the default first; empty: it has none.

        Those of images, where it draws from one with a strength, and of its own latents.
        """
        begins = "strength" in self.fields and self.strength_needs == "image"
        redraws = REDRAWING in self.tasks and begins
        return (*self.enlargers, *(BUILT_IN + tuple(sorted(self.upscalers)) if redraws else ()))

    @property
    def quality_names(self) -> tuple[str, ...]:
        """Values that the request's `quality` may have."""
        return (*[EXACT] * self.has_exact, *self.qualities)

    @property
    def scales_sizes(self) -> bool:
        """Return whether a request without a size has that of its image, scaled."""
        return self.sized_area_px is not None or self.sized_within_px is not None

    @property
    def queue(self) -> str:
        """Name of the model in whose queue its jobs wait."""
        return self.runs_on or self.name

    @property
    def line(self) -> str:
        """Name that the versions of its queue's model have in common: `flux-dev` of `flux-dev@r2`.

        An adapter for it is one for each of them.
        """
        return line_of(self.queue)

    def takes(self, lora: Lora) -> bool:
        """Return whether an adapter is for this model."""
        return lora.model in (self.queue, self.line)

    def reads_alike(self, other: ModelSpec) -> bool:
        """Return whether a resolved request means the same for another model.

        True of versions that differ in weights, and in defaults, which it has filled in.
        """
        return _reading(self) == _reading(other)

    def as_alias(self, name: str) -> ModelSpec:
        """Return the spec of an alias for a request that this model serves.

        Adapters are listed with the model alone, as those of variants.
        """
        update = {"name": name, "version": self.name, "runs_on": self.queue}
        return self.model_copy(update={**update, "derived": (), "loras": {}})

    def variants(self) -> Iterator[ModelSpec]:
        """Yield the specs of the models that its pools serve beside it.

        Adapters are listed with the model whose queue they wait in, and are for both.
        """
        for one in self.derived:
            yield self.model_copy(
                update={
                    "name": one.name,
                    "defaults": {**self.defaults, **one.defaults},
                    "task_defaults": {
                        task: {
                            name: value for name, value in own.items() if name not in one.defaults
                        }
                        for task, own in self.task_defaults.items()
                    },
                    "derived": (),
                    "loras": {},
                    "lora_pages": max(0, self.lora_pages - sum(lora.pages for lora in one.loras)),
                    "runs_on": self.name,
                    "fixed_loras": one.loras,
                }
            )

    def wrong_shape(self, path: str, width: int, height: int) -> str | None:
        """Return why the model cannot read an image of that size; None: it can.

        Args:
            path: of the image in the request.
        """
        (short, long), field = sorted((width, height)), field_of(path)
        least, ratio = self.least_side_px.get(field, 0), self.most_ratio.get(field, long)
        if short < least:
            return f"must be at least {least} pixels wide and high"
        return f"must be at most {ratio} times as long as wide" if long > ratio * short else None

    def defaults_for(self, task: Task) -> dict[str, Any]:
        """The defaults of a request for that task."""
        return {**self.defaults, **self.task_defaults.get(task, {})}

    def control_work(self, request: Mapping[str, Any]) -> float:
        """Return what its controls add to a request's steps, as a share of them without any."""
        refiner = None if "mask_image" in request else request.get(REFINER)
        until = 1.0 if refiner is None else float(refiner.get("switch", SWITCH))
        return work_of(request.get(CONTROL) or (), self.controls, until)

    def bucket(self, request: Mapping[str, Any], loras: Iterable[RequestedLora] = ()) -> str:
        """Return the key of requests that the queue claims together: requests of one size.

        The engine has the last word on what shares a program (`Prepared.bucket`).

        Args:
            loras: adapters of the request, whose rank bucket is part of the key.
        """
        # A job of an earlier version lacks fields that came later; without a quality it is exact.
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
        """Return the pixels that steps read of each image, by field.

        The image behind a mask of an edit is read at the request's size.
        """
        if self.strength_needs == "mask_image" and "mask_image" in request:
            return {**self.read_pixels, "image": _pixels(fields)}
        return self.read_pixels


OF_ONE_VERSION = {
    *("name", "version", "runs_on", "derived", "fingerprint"),
    *("defaults", "task_defaults", "loras", "batching"),
}
"""Fields that say nothing of how a resolved request is read."""


def _reading(spec: ModelSpec) -> dict[str, Any]:
    return spec.model_dump(exclude=OF_ONE_VERSION)


def line_of(model: str) -> str:
    """Return the name that versions of a model have in common: what comes before the `@`."""
    return model.partition(VERSION_MARK)[0]


def _pixels(fields: Mapping[str, Any]) -> int:
    """Return the pixels of a request's image; 0: it does not say."""
    return int(fields.get("width") or 0) * int(fields.get("height") or 0)
