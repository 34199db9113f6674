"""Hugging Face's inference API: `InferenceClient(model="http://HOST/hf/MODEL")`.

Source: huggingface_hub, inference/_providers/hf_inference.py, and inference/_client.py,
`text_to_image`, `image_to_image`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import BaseModel, ConfigDict

from service.errors.problems import FieldError, Invalid, Problem
from service.http.inflight_limits import HeldResponse
from service.http.negotiation import JSON
from service.responses.render import names_of, naming_the_job
from service.routes.compat import documents
from service.routes.compat.call import ByBearer, documented
from service.routes.compat.door import Door, DoorBody
from service.routes.compat.entry import entry
from service.routes.compat.names import Names
from service.routes.compat.outcome import ended, files
from service.schemas.examples import shown

PREFIX = "/hf"
EXAMPLE = {
    "inputs": "a red circle on a blue background",
    "parameters": {"num_inference_steps": 4, "seed": 7},
}


IMAGES = ("iVBORw0KGgo", "/9j/", "UklGR", "data:image/")
"""Beginnings of image files in base64: PNG, JPEG, WebP; and of data URIs."""


class TargetSize(DoorBody):
    """Size of an image that is made of another."""

    width: int
    """Width in pixels."""
    height: int
    """Height in pixels."""


class HuggingFaceParameters(DoorBody):
    """Parameters: those of huggingface_hub, and any other field of `POST /v1/generate`."""

    model_config = ConfigDict(extra="allow")

    prompt: str | None = None
    """Prompt of an image that is made of another, which is `inputs`."""
    target_size: TargetSize | None = None
    """Size of the image that is made."""
    scheduler: str | None = None
    """Name of one of the model's schedulers."""


class HuggingFaceRequest(DoorBody):
    """Request of huggingface_hub's `InferenceClient`."""

    model_config = ConfigDict(json_schema_extra=shown(EXAMPLE))

    inputs: str
    """The prompt; or an image in base64, of which `parameters` has the prompt, if any."""
    parameters: HuggingFaceParameters | None = None
    """Settings by name."""

    @property
    def settings(self) -> HuggingFaceParameters:
        """Return the settings, where none are given empty ones."""
        return self.parameters or HuggingFaceParameters()

    @property
    def is_of_an_image(self) -> bool:
        """Return whether `inputs` is an image: `image_to_image` needs no prompt."""
        return self.settings.prompt is not None or self.inputs.startswith(IMAGES)


class HuggingFaceError(BaseModel):
    """Error as huggingface_hub shows it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    error: str
    """Message: what happened and what to do."""
    code: str
    """Kind of the error, for programs."""


def error_form(problem: Problem) -> Response:
    """Return a problem as huggingface_hub shows it."""
    body = HuggingFaceError(error=problem.detail, code=problem.code)
    content = json.dumps(body.model_dump())
    return Response(content, problem.status, headers=problem.headers, media_type=JSON)


router = APIRouter(prefix=PREFIX, tags=["hugging face"], dependencies=documented("bearer"))


DOCUMENTS = documents.operation(
    {JSON: documents.schema_of(HuggingFaceRequest)}, documents.FILES, HuggingFaceError
)


@router.post("/{model}", **DOCUMENTS)
async def hugging_face_infer(
    model: Annotated[str, Path(description="A model's `name`.")], call: ByBearer
) -> Response:
    """Make one image, by huggingface_hub's `InferenceClient`, or one video, by any other.

    The answer is the file itself.
    """
    with call.waiting():
        async with entry(call) as entering:
            asked = await entering.json(HuggingFaceRequest, lambda _: model)
            job = await entering.admit(translated(model, asked), names=_names(asked))
        with naming_the_job(job):
            job = await ended(call, job)
            hold = call.front.bodies.hold(call.client)
            (data, *_) = await files(call.front, job, hold)
    media_type = job.outputs[0].content_type
    return HeldResponse(data, hold, headers=names_of(job), media_type=media_type)


def translated(model: str, asked: HuggingFaceRequest) -> dict[str, Any]:
    """Return a request in our fields. Raises: Invalid."""
    given = asked.settings
    fields: dict[str, Any] = {"model": model, **(given.__pydantic_extra__ or {})}
    if fields.get("num_images", 1) != 1:
        raise Invalid([FieldError("parameters.num_images", "one image an answer; ask again")])
    if asked.is_of_an_image:
        fields |= {"prompt": given.prompt or "", "image": asked.inputs}
    else:
        fields["prompt"] = asked.inputs
    if given.target_size:
        fields |= given.target_size.model_dump()
    if given.scheduler is not None:
        fields["scheduler"] = {"name": given.scheduler}
    return fields


def _names(asked: HuggingFaceRequest) -> Names:
    text = "image" if asked.is_of_an_image else "prompt"
    foreign = {"model": "model", text: "inputs", "scheduler.name": "parameters.scheduler"}
    if asked.settings.target_size:
        foreign |= {side: f"parameters.target_size.{side}" for side in ("width", "height")}
    return Names(foreign, prefix="parameters.")


DOOR = Door(router, bodies=(HuggingFaceRequest, HuggingFaceError), error_forms={PREFIX: error_form})
