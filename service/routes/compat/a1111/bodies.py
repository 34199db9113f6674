"""Requests of AUTOMATIC1111's clients, and its form of errors."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool

from service.errors.problems import Problem
from service.http.negotiation import JSON
from service.routes.compat.door import DoorBody
from service.schemas.examples import PIXEL, shown
from service.schemas.request_parts import Picture, Text

EXAMPLE = {
    "prompt": "a (red:1.2) circle on a blue background",
    "width": 64,
    "height": 64,
    "steps": 4,
    "sampler_name": "Euler",
    "seed": 7,
}
Many = Annotated[int, Field(ge=1, le=1000)]
Pixels = Annotated[float, Field(ge=0, le=1000)]


class TextToImage(DoorBody):
    """Request of `txt2img`.

    Further fields of AUTOMATIC1111's are taken where they change nothing, and refused by name
    where they would. Null is the default of any field, as there.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra=shown(EXAMPLE))

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
    seed: Annotated[int, Field(ge=-1)] | None = -1
    """Random seed; -1 draws one."""
    sampler_name: str | None = None
    """Name of one of `GET /sdapi/v1/samplers`. Default: the checkpoint's own."""
    sampler_index: str | None = None
    """Former name of `sampler_name`, which goes before it."""
    scheduler: str | None = None
    """Name of one of `GET /sdapi/v1/schedulers`. Default: the sampler's."""
    eta: float | None = None
    """Share of noise that each step adds, of DDIM."""
    batch_size: Many | None = 1
    """Number of images of a batch."""
    n_iter: Many | None = 1
    """Number of batches. All images are of one job; number i has `seed + i`."""
    enable_hr: StrictBool | None = None
    """Hires fix: draw, enlarge, and draw again from that. Of `txt2img` alone. `false` is one pass,
    also of a model whose default is two; left out, or null, it is the model's default."""
    hr_scale: float | None = 2.0
    """Sides of the target of hires fix, relative to `width` and `height`."""
    hr_resize_x: int | None = 0
    """Width of the target in pixels, in place of `hr_scale`; 0: by the other side."""
    hr_resize_y: int | None = 0
    """Height of the target, likewise."""
    hr_upscaler: str | None = "Latent"
    """Upscaler of hires fix: `Latent`, `Lanczos`, or one of `GET /sdapi/v1/upscalers`."""
    hr_second_pass_steps: int | None = 0
    """Steps that the second pass runs; 0: `steps`."""
    denoising_strength: float | None = None
    """Share of the image to redraw: of `img2img`, and of the second pass of hires fix. Default: the
    model's; of hires fix 0.75."""
    refiner_checkpoint: str | None = None
    """Refiner of the image: that of the model, by any name. Default: none."""
    refiner_switch_at: float | None = None
    """Share of the steps before the refiner's. Default: 0.8."""
    override_settings: dict[str, Any] | None = None
    """Options of this request alone: `sd_model_checkpoint` is its model."""
    disable_extra_networks: StrictBool | None = False
    """Take the adapters out of the prompt without using them."""
    send_images: StrictBool | None = True
    """Answer with the images; the job holds them in any case."""


class ImageToImage(TextToImage):
    """Request of `img2img`."""

    model_config = ConfigDict(json_schema_extra=shown(EXAMPLE | {"init_images": [PIXEL]}))

    init_images: Annotated[list[Picture], Field(min_length=1)]
    """Image to start from, in base64."""
    mask: Picture | None = None
    """Mask of the image: white where it is redrawn, or of a file with holes where it is not one."""
    mask_blur: Pixels | None = None
    """Blur of the mask: its standard deviation in pixels. Default: 4."""
    mask_blur_x: Pixels | None = None
    """Blur across, where `mask_blur` is not there."""
    mask_blur_y: Pixels | None = None
    """Blur down, likewise."""
    inpainting_fill: int | None = None
    """Content under the mask: 0 the colours around it, 1 the image. Default: 0."""
    inpaint_full_res: bool | None = None
    """Redraw the masked part alone, enlarged, and put it back into the image. Default: true."""
    inpaint_full_res_padding: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Margin of that part in pixels. Default: 0."""
    inpainting_mask_invert: bool | None = None
    """Redraw where the mask is black. Default: false."""


class A1111Error(BaseModel):
    """Error as AUTOMATIC1111 answers it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    error: str
    """Kind of the error, for programs."""
    detail: str
    """Message: what happened and what to do."""
    body: str
    """Always empty."""
    errors: str
    """The fields at fault, each with its message; else the message."""


def error_form(problem: Problem) -> Response:
    """Return a problem as AUTOMATIC1111 would."""
    said = "; ".join(f"{one.field}: {one.message}" for one in problem.errors) or problem.detail
    body = A1111Error(error=problem.code, detail=problem.detail, body="", errors=said)
    content = json.dumps(body.model_dump())
    return Response(content, problem.status, headers=problem.headers, media_type=JSON)
