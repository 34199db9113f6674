"""/v1/models: the models that this server serves."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from starlette.convertors import StringConvertor, register_url_convertor

from service.front_end.front_end import Front, FrontEnd, tenant_of_caller
from service.jobs.queue import ModelStatus
from service.routes.documented_responses import problems
from service.schemas.response import ModelPage, ModelView, view_model

router = APIRouter(prefix="/v1/models", tags=["models"], dependencies=[Depends(tenant_of_caller)])


@router.get("", responses=problems(401, 503))
async def list_models(front: Front) -> ModelPage:
    """List the models, by name."""
    models = await front.models.all()
    return ModelPage(data=[_view(front, models[name]) for name in sorted(models)])


class ModelNameConvertor(StringConvertor):
    """Path parameter of a model's name, which may contain slashes, except Replicate's addresses."""

    regex = ".*(?<!/predictions)"


register_url_convertor("model_name", ModelNameConvertor())


@router.get("/{name:model_name}", responses=problems(401, 404, 503))
async def get_model(
    name: Annotated[str, Path(description="A model's `name`.")], front: Front
) -> ModelView:
    """Return a model by its name."""
    return _view(front, await front.models.get(name))


def _view(front: FrontEnd, status: ModelStatus) -> ModelView:
    aliases = front.models.other_names(status.spec.name)
    return view_model(status, front.settings.limits, aliases)
