"""Responses of `txt2img` and `img2img`: base64 files with their generation parameters."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fastapi import Response
from pydantic import BaseModel, ConfigDict

from models.spec.model_spec import ModelSpec
from service.http.inflight_limits import HeldResponse
from service.http.negotiation import JSON
from service.jobs.model.job import Job
from service.recipes.parameters import LABELS, parameters_of
from service.recipes.recipe import generator, recipe_of
from service.responses.json_content import in_thread_if_large
from service.responses.render import job_headers
from service.routes.compat.a1111.bodies import TextToImage
from service.routes.compat.a1111.masks import MaskedRequest, paste_region
from service.routes.compat.call import Call
from service.routes.compat.outcome import read_output_files
from service.schemas.examples import PIXEL, Example, schema_example

OMITTED_FIELDS = ("init_images", "mask", "auth", "url")
"""Request fields that `parameters` omits: images, as in AUTOMATIC1111, and SillyTavern's key."""


EXAMPLE: Example = {
    "images": [PIXEL],
    "parameters": {"prompt": "a (red:1.2) circle on a blue background", "steps": 4},
    "info": '{"all_seeds": [7], "infotexts": ["…"]}',
}


class A1111Images(BaseModel):
    """Response of AUTOMATIC1111's `txt2img` and `img2img`."""

    model_config = ConfigDict(
        use_attribute_docstrings=True, json_schema_extra=schema_example(EXAMPLE)
    )

    images: list[str]
    """Files in base64."""
    parameters: dict[str, Any]
    """The request, without its images."""
    info: str
    """JSON: `all_seeds`, `infotexts` and other data of each image."""


async def answer(
    call: Call, request: TextToImage, spec: ModelSpec, job: Job, masked: MaskedRequest | None = None
) -> Response:
    """Build AUTOMATIC1111's response with a job's files.

    Args:
        masked: input image of an inpainting request, if the output is pasted into it.

    Raises: Problem: a file is gone, or a limit is exceeded.
    """
    hold = call.front.bodies.hold(call.client)
    try:
        contents = (
            await read_output_files(call.front, job, hold)
            if request.send_images is not False
            else []
        )
        if masked and masked.files.box:
            contents = [await paste_region(call, masked, data, hold) for data in contents]
        hold.add(size := sum(len(data) for data in contents))  # for the base64 copy
        serialize = partial(_serialize, request, contents, info_of(request, spec, job))
        content = await in_thread_if_large(serialize, size)
    except BaseException:
        hold.close()
        raise
    return HeldResponse(content, hold, headers=job_headers(job), media_type=JSON)


def _serialize(request: TextToImage, contents: Sequence[bytes], info: Mapping[str, Any]) -> bytes:
    body = A1111Images(
        images=[base64.b64encode(data).decode() for data in contents],
        parameters=request.model_dump(exclude={*OMITTED_FIELDS}),
        info=json.dumps(info),
    )
    return json.dumps(body.model_dump()).encode()  # ASCII: a field may have lone surrogates


def info_of(body: TextToImage, spec: ModelSpec, job: Job) -> dict[str, Any]:
    """Build AUTOMATIC1111's `info` object, as far as its values are known."""
    request, count = job.request, len(job.outputs)
    spec = spec.model_copy(update={"fingerprint": job.fingerprint or spec.fingerprint})
    seeds = [output.seed for output in job.outputs]
    return {
        "prompt": request["prompt"],
        "all_prompts": [request["prompt"]] * count,
        "negative_prompt": request.get("negative_prompt", ""),
        "all_negative_prompts": [request.get("negative_prompt", "")] * count,
        "seed": request["seed"],
        "all_seeds": seeds,
        "subseed": request["seed"],
        "all_subseeds": seeds,
        "subseed_strength": 0,
        "width": request["width"],
        "height": request["height"],
        "sampler_name": _sampler(spec, request),
        "cfg_scale": request.get("guidance_scale", 1.0),
        "steps": request["num_inference_steps"],
        "batch_size": body.batch_size or 1,
        "restore_faces": False,
        "face_restoration_model": None,
        "sd_model_name": job.model,
        "sd_model_hash": spec.fingerprint[:10],
        "denoising_strength": (request.get("hires") or request).get("strength"),
        "extra_generation_params": {},
        "index_of_first_image": 0,
        "infotexts": [_infotext(spec, job, seed) for seed in seeds],
        "styles": [],
        "job_timestamp": str(int(job.created_at)),
        "clip_skip": 1,
        "is_using_inpainting_conditioning": False,
        "version": generator(),
    }


def _sampler(spec: ModelSpec, request: dict[str, Any]) -> str:
    name = request.get("scheduler", {}).get("name") or spec.scheduler
    return LABELS.get(name, name)


def _infotext(spec: ModelSpec, job: Job, seed: int) -> str:
    return parameters_of(recipe_of(job.request, seed, spec, job.loras))
