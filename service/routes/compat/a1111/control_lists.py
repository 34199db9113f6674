"""Lists of AUTOMATIC1111's ControlNet extension: `/controlnet/…`, as its clients call them.

Source: Mikubill/sd-webui-controlnet, scripts/api.py; webuiapi, `controlnet_model_list`.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from service.routes.compat import documents
from service.routes.compat.a1111.bodies import A1111Error, error_form
from service.routes.compat.a1111.control_units import MODULES
from service.routes.compat.a1111.lists import image_models
from service.routes.compat.a1111.router import ByKey
from service.routes.compat.call import documented
from service.routes.compat.endpoint import CompatibleEndpoint
from service.routes.documented_responses import with_example

PREFIX = "/controlnet"
VERSION = 3
"""Version of the extension's API, whose units `alwayson_scripts` accepts."""
ERRORS = documents.errors(A1111Error, 401, 422, 503)
Ignored = Annotated[bool, Query(description="Without effect.")]

router = APIRouter(
    prefix=PREFIX, tags=["automatic1111"], dependencies=documented("bearer", "basic")
)


@router.get("/version", responses=with_example({"version": VERSION}) | ERRORS)
async def controlnet_version(call: ByKey) -> dict[str, int]:
    """Return the API version of AUTOMATIC1111's ControlNet extension."""
    return {"version": VERSION}


@router.get("/model_list", responses=with_example({"model_list": ["canny"]}) | ERRORS)
async def controlnet_models(call: ByKey, update: Ignored = True) -> dict[str, list[str]]:
    """List the controls of all image models, for AUTOMATIC1111's ControlNet extension."""
    return {"model_list": await _controls(call)}


@router.get("/module_list", responses=with_example({"module_list": [*MODULES]}) | ERRORS)
async def controlnet_modules(call: ByKey, alias_names: Ignored = False) -> dict[str, list[str]]:
    """List the ControlNet preprocessors: only `none`."""
    return {"module_list": [*MODULES]}


@router.get("/settings", responses=with_example({"control_net_unit_count": 3}) | ERRORS)
async def controlnet_settings(call: ByKey) -> dict[str, int]:
    """Return the maximum number of ControlNet units in a request, over all models."""
    specs = (await image_models(call)).values()
    return {"control_net_unit_count": max((spec.limits.max_controls for spec in specs), default=0)}


@router.get("/control_types", responses=with_example({"control_types": {}}) | ERRORS)
async def controlnet_types(call: ByKey) -> dict[str, Any]:
    """Return one kind of ControlNet control, with all preprocessors and controls."""
    kind = {
        "module_list": [*MODULES],
        "model_list": ["None", *await _controls(call)],
        "default_option": MODULES[0],
        "default_model": "None",
    }
    return {"control_types": {"All": kind}}


async def _controls(call: ByKey) -> list[str]:
    """Return the names of the controls of all image models."""
    return sorted({name for spec in (await image_models(call)).values() for name in spec.controls})


ENDPOINT = CompatibleEndpoint(router, error_forms={PREFIX: error_form})
