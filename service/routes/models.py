"""/v1/models: the models that this server serves."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from service.front_end.front_end import Front, tenant_of_caller
from service.routes.documented_responses import problems
from service.schemas.response import ModelPage, ModelView, view_model, view_models

router = APIRouter(prefix="/v1/models", tags=["models"], dependencies=[Depends(tenant_of_caller)])


@router.get("", responses=problems(401, 503))
async def list_models(front: Front) -> ModelPage:
    """List the models, by name."""
    models = await front.models.all()
    return view_models([models[name] for name in sorted(models)], front.settings.limits)


@router.get("/{name}", responses=problems(401, 404, 503))
async def get_model(
    name: Annotated[str, Path(description="A model's `name`.")], front: Front
) -> ModelView:
    """Return one model."""
    return view_model(await front.models.get(name), front.settings.limits)
