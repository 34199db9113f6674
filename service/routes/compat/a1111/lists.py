"""Lists for AUTOMATIC1111's clients: models, samplers, schedulers, adapters.

Each sender chooses one of the models through `options`, by API key or, if keys are not required, by
address. A request may name another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.spec.hires import LATENT
from models.spec.lora import Lora, without_ending
from models.spec.model_spec import ModelSpec
from models.spec.scheduler_names import SAMPLERS, SCHEDULES, Sampler
from service.errors.problems import FieldError, Invalid
from service.routes.compat import documents
from service.routes.compat.a1111.bodies import A1111Error, TextToImage
from service.routes.compat.a1111.hires import BUILT_IN
from service.routes.compat.a1111.router import ByKey, router
from service.routes.compat.a1111.samplers import supports
from service.routes.compat.call import Call
from service.routes.compat.names import FieldNames, renaming
from service.routes.documented_responses import with_example


async def image_models(call: Call) -> dict[str, ModelSpec]:
    """Return the specifications of the models that generate images, by name."""
    models = await call.front.models.all()
    return {name: models[name].spec for name in sorted(models) if _makes_images(models[name].spec)}


def _makes_images(spec: ModelSpec) -> bool:
    return not any(task.endswith("-to-video") for task in spec.tasks)


async def selected_model(call: Call) -> str | None:
    """Return the name of the sender's model, by default the first; None: no model exists."""
    names = await image_models(call)
    choice = await call.front.queue.chosen_model(call.sender)
    return choice if choice in names else next(iter(names), None)


async def select_model(call: Call, name: str) -> None:
    """Store the sender's choice of a model. Raises: Problem: no such model."""
    spec = await _image_model(call, name, "sd_model_checkpoint")
    await call.front.queue.choose_model(call.sender, spec.name)


def model_in_body(body: Mapping[str, Any]) -> Any:
    """Return the model that an unvalidated AUTOMATIC1111 body names."""
    options = body.get("override_settings")
    return options.get("sd_model_checkpoint") if isinstance(options, dict) else None


async def model_of(call: Call, body: TextToImage) -> ModelSpec:
    """Return the specification of the model for an AUTOMATIC1111 request.

    Raises: Problem: no such model.
    """
    options = body.override_settings or {}
    name = options.get("sd_model_checkpoint") or await selected_model(call)
    return await _image_model(call, name, "override_settings.sd_model_checkpoint")


async def _without_file(call: Call, name: str) -> str:
    """Return the model name in an AUTOMATIC1111 checkpoint title, without hash and extension.

    AUTOMATIC1111's titles are `NAME.safetensors [HASH]`.
    """
    models = call.front.models
    plain = without_ending(name.rpartition(" [")[0] if name.endswith("]") else name)
    names = await models.all()
    return plain if name not in names and models.name_of(plain) in names else name


async def _image_model(call: Call, name: str | None, field: str) -> ModelSpec:
    if name is not None and not isinstance(name, str):
        raise Invalid([FieldError(field, "must be a text")])
    with renaming(FieldNames({"model": field})):
        spec = (await call.front.models.get(name and await _without_file(call, name))).spec
    if not _makes_images(spec):
        names = ", ".join(await image_models(call)) or "none"
        message = f"{spec.name!r} generates videos, which this API does not support; image models: "
        raise Invalid([FieldError(field, message + names)])
    return spec


List = list[dict[str, Any]]
ERRORS = documents.errors(A1111Error, 401, 422, 503)
NONE = with_example([])
MODEL = {
    "title": "sdxl-demo",
    "model_name": "sdxl-demo",
    "hash": "9f86d08188",
    "sha256": "9f86d081884c7d65",
    "filename": "sdxl-demo",
}
SAMPLER = {"name": "Euler", "aliases": ["k_euler"], "options": {}}
SCHEDULER = {
    "name": "karras",
    "label": "Karras",
    "aliases": [],
    "default_rho": -1,
    "need_inner_model": False,
}
UPSCALER = {
    "name": "photo",
    "model_name": None,
    "model_path": None,
    "model_url": None,
    "scale": 4,
}
MEMORY = {key: {"error": "unavailable"} for key in ("ram", "cuda")}
LORA = {"name": "ink", "alias": "ink", "path": "ink", "metadata": {}}


@router.get("/sd-models", responses=with_example([MODEL]) | ERRORS)
async def sdapi_models(call: ByKey) -> List:
    """List the models that generate images, in AUTOMATIC1111's format."""
    return [_model(spec) for spec in (await image_models(call)).values()]


def _model(spec: ModelSpec) -> dict[str, Any]:
    return {
        "title": spec.name,
        "model_name": spec.name,
        "hash": spec.fingerprint[:10],
        "sha256": spec.fingerprint,
        "filename": spec.name,
        "config": None,
    }


@router.get("/samplers", responses=with_example([SAMPLER]) | ERRORS)
async def sdapi_samplers(call: ByKey) -> List:
    """List the samplers that at least one model supports, in AUTOMATIC1111's format."""
    specs = (await image_models(call)).values()
    return [
        _sampler(sampler) for sampler in SAMPLERS if any(supports(spec, sampler) for spec in specs)
    ]


def _sampler(sampler: Sampler) -> dict[str, Any]:
    options = {} if sampler.automatic == "automatic" else {"scheduler": sampler.automatic}
    return {"name": sampler.name, "aliases": [*sampler.aliases], "options": options}


@router.get("/schedulers", responses=with_example([SCHEDULER]) | ERRORS)
async def sdapi_schedulers(call: ByKey) -> List:
    """List all step schedules in AUTOMATIC1111's format; a model may support fewer."""
    return [
        {
            "name": schedule.name,
            "label": schedule.label,
            "aliases": [],
            "default_rho": -1,
            "need_inner_model": False,
        }
        for schedule in SCHEDULES
    ]


@router.get("/loras", responses=with_example([LORA]) | ERRORS)
async def sdapi_loras(call: ByKey) -> List:
    """List the adapters that prompts may name as `<lora:name:0.8>`."""
    return [_lora(lora) for lora in await usable(call) if not lora.vectors]


async def usable(call: ByKey) -> list[Lora]:
    """List the adapters and embeddings that the caller's prompts may name."""
    return [lora for lora in await call.front.loras.of(call.tenant) if lora.error is None]


def _lora(lora: Lora) -> dict[str, Any]:
    return {"name": lora.name, "alias": lora.name, "path": lora.name, "metadata": {}}


@router.get("/upscalers", responses=with_example([UPSCALER]) | ERRORS)
async def sdapi_upscalers(call: ByKey) -> List:
    """List the upscalers of all models, and the built-in ones."""
    specs = (await image_models(call)).values()
    scales = {name: upscaler.scale for spec in specs for name, upscaler in spec.upscalers.items()}
    built_in = [name for name, kind in BUILT_IN.items() if kind != LATENT]
    return [_upscaler(name, 4) for name in built_in] + [
        _upscaler(name, scale) for name, scale in scales.items()
    ]


def _upscaler(name: str, scale: int) -> dict[str, Any]:
    return {
        "name": name,
        "model_name": None,
        "model_path": None,
        "model_url": None,
        "scale": scale,
    }


@router.get("/latent-upscale-modes", responses=with_example([{"name": "Latent"}]) | ERRORS)
async def sdapi_latent_upscale_modes(call: ByKey) -> List:
    """List the latent upscalers, in AUTOMATIC1111's format."""
    return [{"name": name} for name, kind in BUILT_IN.items() if kind == LATENT]


@router.get("/sd-vae", responses=NONE | ERRORS)
async def sdapi_vaes(call: ByKey) -> List:
    """Return an empty list of VAEs for AUTOMATIC1111's clients: each model has its own."""
    return []


@router.get("/hypernetworks", responses=NONE | ERRORS)
async def sdapi_hypernetworks(call: ByKey) -> List:
    """Return an empty list of hypernetworks, for AUTOMATIC1111's clients."""
    return []


@router.get("/face-restorers", responses=NONE | ERRORS)
async def sdapi_face_restorers(call: ByKey) -> List:
    """Return an empty list of face restorers."""
    return []


@router.get("/realesrgan-models", responses=NONE | ERRORS)
async def sdapi_realesrgan_models(call: ByKey) -> List:
    """Return an empty list of RealESRGAN models: upscalers are in `upscalers`."""
    return []


@router.get("/memory", responses=with_example(MEMORY) | ERRORS)
async def sdapi_memory(call: ByKey) -> dict[str, Any]:
    """Return AUTOMATIC1111's memory statistics without sizes, as if none were measured."""
    return MEMORY


@router.get("/prompt-styles", responses=NONE | ERRORS)
async def sdapi_prompt_styles(call: ByKey) -> List:
    """Return an empty list of prompt styles."""
    return []


@router.get("/embeddings", responses=with_example({"loaded": {}, "skipped": {}}) | ERRORS)
async def sdapi_embeddings(call: ByKey) -> dict[str, Any]:
    """List the textual inversions that prompts may name."""
    loaded = {entry.name: _embedding(entry) for entry in await usable(call) if entry.vectors}
    return {"loaded": loaded, "skipped": {}}


def _embedding(embedding: Lora) -> dict[str, Any]:
    return {
        "step": None,
        "sd_checkpoint": embedding.model,
        "sd_checkpoint_name": embedding.model,
        "shape": None,
        "vectors": embedding.vectors,
    }


@router.get("/scripts", responses=with_example({"txt2img": [], "img2img": []}) | ERRORS)
async def sdapi_scripts(call: ByKey) -> dict[str, list[str]]:
    """Return empty lists of AUTOMATIC1111's scripts."""
    return {"txt2img": [], "img2img": []}


@router.get("/cmd-flags", responses=with_example({}) | ERRORS)
async def sdapi_flags(call: ByKey) -> dict[str, Any]:
    """Return no command-line flags, in AUTOMATIC1111's format."""
    return {}


@router.post("/refresh-checkpoints", responses=ERRORS)
async def sdapi_refresh_models(call: ByKey) -> None:
    """Do nothing on `refresh-checkpoints`: lists are never older than `server.models_age_s`."""


@router.post("/refresh-loras", responses=ERRORS)
async def sdapi_refresh_loras(call: ByKey) -> None:
    """Do nothing on `refresh-loras`: lists are never older than `server.models_age_s`."""
