"""Schedulers that evaluate the network more than once in some steps, or have other names."""

from __future__ import annotations

from typing import Any

import pytest

from models.sampling.registry import EVALUATIONS, OPTIONS
from models.spec.model_spec import ModelSpec
from service.errors.problems import FieldError, Invalid
from service.schemas.request import GenerateRequest
from service.settings.limits import LimitSettings
from service.validation.resolved_fields import ResolvedFields, resolve, steps_of_passes
from tests.service.standin import SPEC

SDXL = SPEC.model_copy(
    update={
        "family": "sdxl",
        "fields": SPEC.fields | {"scheduler", "image", "strength", "refiner", "hires"},
        "tasks": ("text-to-image", "image-to-image"),
        "task_defaults": {"image-to-image": {"strength": 0.5}},
        "strength_rounds": "down",
        "schedulers": OPTIONS,
        "scheduler": "EulerDiscreteScheduler",
        "evaluations": EVALUATIONS,
    }
)
IMAGE = {"image": "data:image/png;base64,AA=="}


def resolved(spec: ModelSpec = SDXL, **fields: Any) -> ResolvedFields:
    body = {"model": spec.name, "prompt": "a cat", "num_inference_steps": 20, **fields}
    return resolve(GenerateRequest.model_validate(body), spec, LimitSettings())


def errors_of(spec: ModelSpec = SDXL, **fields: Any) -> list[FieldError]:
    with pytest.raises(Invalid) as error:
        resolved(spec, **fields)
    return list(error.value.errors)


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({}, 20),
        ({"scheduler": {"name": "dpmpp_3m_sde"}}, 20),
        ({"scheduler": {"name": "heun"}}, 39),
        ({"scheduler": {"name": "KDPM2AncestralDiscreteScheduler"}}, 39),
        ({"scheduler": {"name": "pndm"}}, 21),
        ({"scheduler": {"name": "heun"}, "num_images": 2}, 78),
        ({"scheduler": {"name": "heun"}, "num_inference_steps": 1}, 1),
        ({"scheduler": {"name": "heun"}, **IMAGE}, 19),
        ({"scheduler": {"name": "pndm"}, **IMAGE}, 11),
    ],
)
def test_steps_count_evaluations(fields: dict[str, Any], steps: int) -> None:
    assert resolved(**fields).steps == steps


def test_checkpoints_own_scheduler_counts_too() -> None:
    spec = SDXL.model_copy(update={"scheduler": "HeunDiscreteScheduler"})
    assert resolved(spec).steps == 39
    assert resolved(spec, scheduler={"name": "euler"}).steps == 20


def test_both_passes_of_hires_fix_count_evaluations() -> None:
    spec = SDXL.model_copy(update={"hires_upscalers": ("latent", "lanczos")})
    fields = {
        **{"width": 64, "height": 64, "num_inference_steps": 20, "num_images": 1},
        "scheduler": {"name": "dpmpp_sde"},
        "hires": {"width": 128, "height": 128, "upscaler": "latent", "strength": 0.5}
        | {"num_inference_steps": 10},
    }
    assert steps_of_passes(fields, spec) == [39, 9]


def test_other_programs_names_are_replaced() -> None:
    chosen = resolved(scheduler={"name": "DPM++ 2S a Karras"})
    assert chosen.fields["scheduler"] == {"name": "dpmpp_2s_ancestral", "use_karras_sigmas": True}
    assert chosen.steps == 39


def test_default_scheduler_of_the_settings_may_have_another_programs_name() -> None:
    defaults = {**SDXL.defaults, "scheduler": {"name": "Heun"}}
    spec = SDXL.model_copy(update={"defaults": defaults})
    assert resolved(spec).fields["scheduler"] == {"name": "heun"}
    assert resolved(spec).steps == 39


def test_unknown_name_lists_the_models_schedulers() -> None:
    (error,) = errors_of(scheduler={"name": "restart"})
    assert error.field == "scheduler.name"
    assert "'restart'; available: " in error.message and "dpmpp_3m_sde" in error.message


def test_schedule_that_the_scheduler_lacks_is_refused() -> None:
    (*_, error) = errors_of(scheduler={"name": "Euler a Karras"})
    assert (error.field, error.message) == (
        "scheduler.name",
        "'Euler a Karras': euler_ancestral has no use_karras_sigmas",
    )


@pytest.mark.parametrize("name", ["heun", "pndm", "dpmpp_sde", "dpm_2"])
@pytest.mark.parametrize("field", [{"stop_at_step": 4}, {"refiner": {"switch": 0.8}}])
def test_fields_that_need_one_evaluation_a_step_are_refused(
    name: str, field: dict[str, Any]
) -> None:
    (error,) = errors_of(scheduler={"name": name}, **field)
    assert error.field == next(iter(field))
    assert "evaluates the network more than once in some steps" in error.message
    assert resolved(scheduler={"name": "lms"}, **field)


def test_too_few_steps_of_pndm_are_refused() -> None:
    (error,) = errors_of(scheduler={"name": "pndm"}, num_inference_steps=1)
    assert (error.field, error.message) == (
        "num_inference_steps",
        "must be at least 2 with this scheduler",
    )
