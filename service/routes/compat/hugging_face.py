"""Hugging Face's inference API: `InferenceClient(model="http://HOST/hf/MODEL")`.

Source: huggingface_hub, inference/_providers/hf_inference.py, and inference/_client.py,
`text_to_image`, `image_to_image`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict

from service.errors.problems import FieldError, Invalid, Problem
from service.http.inflight_limits import HeldResponse
from service.http.negotiation import JSON
from service.jobs.model.job import Job
from service.responses.render import job_headers, job_headers_on_errors
from service.routes.compat import documents
from service.routes.compat.call import ByBearer, Call, documented
from service.routes.compat.endpoint import CompatibleEndpoint, CompatibleRequestBody
from service.routes.compat.incoming_request import receive_request
from service.routes.compat.names import FieldNames
from service.routes.compat.outcome import read_output_files, wait_for_success
from service.schemas.examples import schema_example

PREFIX = "/hf"
EXAMPLE = {
    "inputs": "a red circle on a blue background",
    "parameters": {"num_inference_steps": 4, "seed": 7},
}


IMAGES = ("iVBORw0KGgo", "/9j/", "UklGR", "data:image/")
"""Prefixes of base64 image files (PNG, JPEG, WebP) and of data URIs."""


COUNTS = frozenset({"num_images", "num_images_per_prompt"})
"""Names of the number of images."""


def _single(value: Any) -> Any:
    """Return the item of a one-item list, as older Hugging Face clients send texts."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


class TargetSize(CompatibleRequestBody):
    """Output size in Hugging Face's image-to-image request."""

    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""


class HuggingFaceParameters(CompatibleRequestBody):
    """Parameters of huggingface_hub, and any other field of `POST /v1/generate`."""

    model_config = ConfigDict(extra="allow")

    prompt: str | None = None
    """Prompt of image to image, whose input image is `inputs`."""
    target_size: TargetSize | None = None
    """Size of the output image."""
    scheduler: str | None = None
    """Name of one of the model's schedulers."""


class HuggingFaceRequest(CompatibleRequestBody):
    """Request of huggingface_hub's `InferenceClient`."""

    model_config = ConfigDict(json_schema_extra=schema_example(EXAMPLE))

    inputs: Annotated[str, BeforeValidator(_single)]
    """Prompt; or an input image in base64, with the prompt, if any, in `parameters`."""
    parameters: HuggingFaceParameters | None = None
    """Parameters by name."""
    options: dict[str, Any] | None = None
    """Accepted without effect: a request always waits, and is never answered from a cache."""

    @property
    def settings(self) -> HuggingFaceParameters:
        """Return the request's parameters; empty ones by default."""
        return self.parameters or HuggingFaceParameters()

    @property
    def is_of_an_image(self) -> bool:
        """Return whether `inputs` is an image: `image_to_image` needs no prompt."""
        return self.settings.prompt is not None or self.inputs.startswith(IMAGES)


class HuggingFaceError(BaseModel):
    """Error in the format of huggingface_hub."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    error: str
    """Message: what happened and what to do."""
    code: str
    """Kind of the error, for programs."""


def error_form(problem: Problem) -> Response:
    """Convert a problem to the error format of huggingface_hub."""
    body = HuggingFaceError(error=problem.detail, code=problem.code)
    content = json.dumps(body.model_dump())
    return Response(content, problem.status, headers=problem.headers, media_type=JSON)


router = APIRouter(prefix=PREFIX, tags=["hugging face"], dependencies=documented("bearer"))


DOCUMENTS = documents.operation(
    {JSON: documents.schema_of(HuggingFaceRequest)}, documents.FILES, HuggingFaceError
)


@router.post("/{model:path}", **DOCUMENTS)
async def hugging_face_infer(
    model: Annotated[str, Path(description="A model's `name`.")], call: ByBearer
) -> Response:
    """Generate one image for huggingface_hub's `InferenceClient`, or one video for other clients.

    The response is the file itself.
    """
    with call.waiting():
        job = await _admit(call, model)
        with job_headers_on_errors(job):
            job = await wait_for_success(call, job)
            hold = call.front.bodies.hold(call.client)
            (data, *_) = await read_output_files(call.front, job, hold)
    media_type = job.outputs[0].content_type
    return HeldResponse(data, hold, headers=job_headers(job), media_type=media_type)


async def _admit(call: Call, model: str) -> Job:
    """Admit a request; its body is not kept while the job runs. Raises: Problem."""
    async with receive_request(call) as incoming:
        name = await call.front.models.find(model)
        body = await incoming.json(HuggingFaceRequest, lambda _: name)
        return await incoming.admit(to_generate_fields(name, body), names=_field_names(body))


def to_generate_fields(model: str, body: HuggingFaceRequest) -> dict[str, Any]:
    """Convert a Hugging Face request to the fields of `POST /v1/generate`. Raises: Invalid."""
    parameters = body.settings
    fields: dict[str, Any] = {"model": model, **(parameters.__pydantic_extra__ or {})}
    for name in COUNTS & fields.keys():
        fields["num_images"] = fields.pop(name)
    if fields.get("num_images") not in (None, 1, "1"):
        raise Invalid(
            [FieldError("parameters.num_images", "one image per response; send another request")]
        )
    if body.is_of_an_image:
        fields |= {"prompt": parameters.prompt or "", "image": body.inputs}
    else:
        fields["prompt"] = body.inputs
    if "negative_prompt" in fields:
        fields["negative_prompt"] = _single(fields["negative_prompt"])
    if parameters.target_size:
        fields |= parameters.target_size.model_dump()
    if parameters.scheduler is not None:
        fields["scheduler"] = {"name": parameters.scheduler}
    return fields


def _field_names(body: HuggingFaceRequest) -> FieldNames:
    input_field = "image" if body.is_of_an_image else "prompt"
    foreign = {"model": "model", input_field: "inputs", "scheduler.name": "parameters.scheduler"}
    if body.settings.target_size:
        foreign |= {side: f"parameters.target_size.{side}" for side in ("width", "height")}
    return FieldNames(foreign, prefix="parameters.")


ENDPOINT = CompatibleEndpoint(
    router, bodies=(HuggingFaceRequest, HuggingFaceError), error_forms={PREFIX: error_form}
)
