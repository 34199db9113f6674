"""Request bodies of AUTOMATIC1111's API, and its error format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from service.errors.problems import Problem
from service.http.negotiation import JSON
from service.routes.compat.endpoint import CompatibleRequestBody, listed
from service.schemas.examples import PIXEL, schema_example
from service.schemas.request_parts import ImageData, Text

EXAMPLE = {
    "prompt": "a (red:1.2) circle on a blue background",
    "width": 64,
    "height": 64,
    "steps": 4,
    "sampler_name": "Euler",
    "seed": 7,
}
Count = Annotated[int, Field(ge=1, le=1000)]
Pixels = Annotated[float, Field(ge=0, le=1000)]


FIELDS_OF_SCRIPTS: Mapping[str, Sequence[str]] = {
    "sampler": ("steps", "sampler_name", "scheduler"),
    "seed": ("seed",),
}
"""Built-in scripts, in lower case, whose first arguments set fields of a request."""


class TextToImage(CompatibleRequestBody):
    """Request of AUTOMATIC1111's `txt2img`.

    Other AUTOMATIC1111 fields are accepted if they have no effect, and rejected by name otherwise.
    Null means a field's default, as in AUTOMATIC1111.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=schema_example(EXAMPLE))

    prompt: Text | None = ""
    """Prompt, with `<lora:name:0.8>` for adapters and `(weights:1.2)`."""
    negative_prompt: Text | None = ""
    """Description of what to avoid."""
    width: int | None = None
    """Width in pixels. Default: the model's."""
    height: int | None = None
    """Height in pixels. Default: the model's."""
    steps: int | None = None
    """Number of denoising steps. Default: the model's."""
    cfg_scale: float | None = None
    """Guidance scale. Default: the model's."""
    distilled_cfg_scale: float | None = None
    """Forge's distilled guidance scale, of Flux; `cfg_scale` is then the true one."""
    seed: Annotated[int, Field(ge=-1)] | None = -1
    """Random seed; -1 chooses a random one."""
    sampler_name: str | None = None
    """Name of a sampler of `GET /sdapi/v1/samplers`. Default: the checkpoint's."""
    sampler_index: str | None = None
    """Former name of `sampler_name`, which has precedence."""
    scheduler: str | None = None
    """Name of a scheduler of `GET /sdapi/v1/schedulers`. Default: the sampler's."""
    eta: float | None = None
    """Share of noise that each DDIM step adds."""
    batch_size: Count | None = 1
    """Number of images of a batch."""
    n_iter: Count | None = 1
    """Number of batches. All images belong to one job; image i has seed `seed + i`."""
    enable_hr: bool | None = None
    """Hires fix: generate, upscale, and denoise again. Only for `txt2img`. `false` runs one pass,
    even if the model's default is two; null or absent selects the model's default."""
    hr_scale: float | None = 2.0
    """Scale of the hires fix: output side relative to `width` and `height`."""
    hr_resize_x: int | None = 0
    """Output width in pixels, instead of `hr_scale`; 0 derives it from the height."""
    hr_resize_y: int | None = 0
    """Output height in pixels; 0 derives it from the width."""
    hr_upscaler: str | None = "Latent"
    """Upscaler of the hires fix: `Latent`, `Lanczos`, or a name of `GET /sdapi/v1/upscalers`."""
    hr_second_pass_steps: int | None = 0
    """Number of steps of the second pass; 0 means `steps`."""
    denoising_strength: float | None = None
    """Strength of `img2img`, and of the second pass of the hires fix. Default: the model's; for the
    hires fix 0.75."""
    refiner_checkpoint: str | None = None
    """Enables the model's refiner, by any name. Default: none."""
    refiner_switch_at: float | None = None
    """Share of the steps before the refiner takes over. Default: 0.8."""
    override_settings: dict[str, Any] | None = None
    """Options of this request only: `sd_model_checkpoint` selects the model."""
    lora: list[dict[str, Any]] | None = None
    """Adapters as in stable-diffusion.cpp's server: objects with `path` and `multiplier`."""
    disable_extra_networks: bool | None = False
    """Removes adapter tags from the prompt without using the adapters."""
    send_images: bool | None = True
    """Includes the images in the response; the job stores them in any case."""

    @model_validator(mode="before")
    @classmethod
    def _with_fields_of_scripts(cls, body: Any) -> Any:
        scripts = body.get("alwayson_scripts") if isinstance(body, Mapping) else None
        if not isinstance(scripts, Mapping):
            return body
        named = {str(name).lower(): script for name, script in scripts.items()}
        for name, fields in FIELDS_OF_SCRIPTS.items():
            script = named.get(name)
            args = script.get("args") if isinstance(script, Mapping) else script
            if isinstance(args, list):
                body = {**body, **dict(zip(fields, args, strict=False))}
        return body


class ImageToImage(TextToImage):
    """Request of AUTOMATIC1111's `img2img`."""

    model_config = ConfigDict(json_schema_extra=schema_example(EXAMPLE | {"init_images": [PIXEL]}))

    init_images: Annotated[list[ImageData], BeforeValidator(listed), Field(min_length=1)]
    """Input image, in base64."""
    mask: ImageData | None = None
    """Inpainting mask: white where the image is regenerated; of a file with transparency, where it
    is transparent."""
    mask_blur: Pixels | None = None
    """Blur of the mask: its standard deviation in pixels. Default: 4."""
    mask_blur_x: Pixels | None = None
    """Horizontal blur, if `mask_blur` is absent."""
    mask_blur_y: Pixels | None = None
    """Vertical blur, if `mask_blur` is absent."""
    inpainting_fill: int | None = None
    """Initial content under the mask: 0 the surrounding colours, 1 the image. Default: 0."""
    inpaint_full_res: bool | None = None
    """Regenerates only the masked region, upscaled, and pastes it into the image. Default: true."""
    inpaint_full_res_padding: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Margin of the masked region in pixels. Default: 0."""
    inpainting_mask_invert: bool | None = None
    """Regenerates where the mask is black. Default: false."""


class A1111Error(BaseModel):
    """Error response in AUTOMATIC1111's format."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    error: str
    """Kind of the error, for programs."""
    detail: str
    """Message: what happened and what to do."""
    body: str
    """Always empty."""
    errors: str
    """The wrong fields, each with its message; otherwise the message."""


def error_form(problem: Problem) -> Response:
    """Convert a problem to AUTOMATIC1111's error format."""
    messages = (
        "; ".join(f"{error.field}: {error.message}" for error in problem.errors) or problem.detail
    )
    body = A1111Error(error=problem.code, detail=problem.detail, body="", errors=messages)
    content = json.dumps(body.model_dump())
    return Response(content, problem.status, headers=problem.headers, media_type=JSON)
