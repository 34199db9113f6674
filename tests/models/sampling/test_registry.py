"""Scheduler registry: configs, requested options, and batched steps of rows."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.sampling.registry import (
    CHOICES,
    CLASSES,
    EVALUATIONS,
    OPTIONS,
    for_request,
    from_config,
    served_config,
)
from models.spec.evaluations import ONE_A_STEP
from models.spec.notices import collected_notices
from models.spec.option import OptionError
from models.spec.scheduler_names import SAMPLERS
from service.recipes.parameters import LABELS as WRITTEN

SDXL_BASE = {
    "_class_name": "EulerDiscreteScheduler",
    "_diffusers_version": "0.19.0.dev0",
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "clip_sample": False,
    "interpolation_type": "linear",
    "num_train_timesteps": 1000,
    "prediction_type": "epsilon",
    "sample_max_value": 1.0,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
    "timestep_spacing": "leading",
    "trained_betas": None,
    "use_karras_sigmas": False,
}
TURBO = {
    **SDXL_BASE,
    "_class_name": "EulerAncestralDiscreteScheduler",
    "timestep_spacing": "trailing",
}
LIGHTNING = {**SDXL_BASE, "timestep_spacing": "trailing"}
ZERO_SNR = {
    **SDXL_BASE,
    "prediction_type": "v_prediction",
    "rescale_betas_zero_snr": True,
    "timestep_spacing": "trailing",
}
WAN = {
    "_class_name": "UniPCMultistepScheduler",
    "beta_end": 0.02,
    "beta_schedule": "linear",
    "beta_start": 0.0001,
    "disable_corrector": [],
    "dynamic_thresholding_ratio": 0.995,
    "final_sigmas_type": "zero",
    "flow_shift": 3.0,
    "lower_order_final": True,
    "num_train_timesteps": 1000,
    "predict_x0": True,
    "prediction_type": "flow_prediction",
    "sample_max_value": 1.0,
    "solver_order": 2,
    "solver_p": None,
    "solver_type": "bh2",
    "steps_offset": 0,
    "thresholding": False,
    "time_shift_type": "exponential",
    "timestep_spacing": "linspace",
    "trained_betas": None,
    "use_beta_sigmas": False,
    "use_dynamic_shifting": False,
    "use_exponential_sigmas": False,
    "use_flow_sigmas": True,
    "use_karras_sigmas": False,
}
REAL = {
    "sdxl base": (SDXL_BASE, [751, 501, 251, 1]),
    "turbo": (TURBO, [999, 749, 499, 249]),
    "lightning": (LIGHTNING, [999, 749, 499, 249]),
    "zero snr": (ZERO_SNR, [999, 749, 499, 249]),
    "wan": (WAN, [999, 900, 750, 500]),
}


@pytest.mark.parametrize(("config", "timesteps"), REAL.values(), ids=REAL)
def test_real_configs(config: dict[str, Any], timesteps: list[int]) -> None:
    scheduler = from_config(json.loads(json.dumps(config)))
    plan = scheduler.plan(4)
    np.testing.assert_array_equal(plan.timesteps, timesteps)
    assert scheduler == from_config(config)
    assert hash(scheduler) == hash(from_config(config))


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("config", [SDXL_BASE, WAN], ids=["sdxl", "wan"])
def test_every_name_makes_a_scheduler_of_any_config(name: str, config: dict[str, Any]) -> None:
    if "prediction_type" in OPTIONS[name] and config is WAN:
        config = {**config, "prediction_type": "epsilon", "use_flow_sigmas": False}
    scheduler = for_request(config, {"name": name})
    assert isinstance(scheduler, CHOICES[name].kind)
    evaluations = EVALUATIONS.get(name, ONE_A_STEP)
    assert len(scheduler.plan(4)) == evaluations.count(4)
    assert len(scheduler.plan(8, strength=0.5)) == evaluations.count(4)


def test_names_with_implied_options() -> None:
    def algorithm(**chosen: Any) -> str:
        return for_request(SDXL_BASE, chosen).algorithm_type  # type: ignore[attr-defined]

    assert algorithm(name="dpmpp_2m") == "dpmsolver++"
    assert algorithm(name="dpmpp_2m_sde") == "sde-dpmsolver++"
    assert algorithm(name="dpmpp_2m", algorithm_type="sde-dpmsolver++") == "sde-dpmsolver++"
    assert for_request(SDXL_BASE, {"name": "dpmpp_2m_sde"}).name == "dpmpp_2m_sde"
    assert for_request(SDXL_BASE, {"use_karras_sigmas": True}).name == "euler"


def test_the_checkpoints_values_carry_over() -> None:
    scheduler = for_request(SDXL_BASE, {"name": "ddim", "eta": 0.5})
    expected = {"beta_start": 0.00085, "clip_sample": False, "steps_offset": 1, "eta": 0.5}
    assert {key: getattr(scheduler, key) for key in expected} == expected
    shifted = for_request(WAN, {"name": "unipc", "flow_shift": 5})
    assert (shifted.flow_shift, shifted.prediction_type) == (5, "flow_prediction")  # type: ignore[attr-defined]


def test_a_variance_that_nothing_predicts_has_no_effect() -> None:
    """Checkpoints trained with DDPM still contain its `variance_type`."""
    config = {**SDXL_BASE, "variance_type": "fixed_small"}
    plain, carrying = (for_request(base, {"name": "dpmpp_2m"}) for base in (SDXL_BASE, config))
    assert carrying.plan(4).values.keys() == plain.plan(4).values.keys()
    assert carrying.solver == plain.solver


def test_defaults_that_diffusers_marks_as_such_do_not_carry_over() -> None:
    """`pipe.scheduler.config` contains the defaults and lists their names separately."""
    config = {**SDXL_BASE, "_use_default_values": ["timestep_spacing"]}
    assert for_request(config, {"name": "euler"}).timestep_spacing == "linspace"  # type: ignore[attr-defined]


def test_a_key_that_no_scheduler_has_is_ignored_and_reported() -> None:
    """Unknown keys of a scheduler's config are ignored and reported as by diffusers' from_config,
    but only when a checkpoint is loaded."""
    config = {**SDXL_BASE, "new_option": 1}
    with collected_notices() as notices:
        assert served_config(config, CLASSES, OPTIONS, None, "") == config
        assert notices == ["the scheduler's config has keys that no scheduler has: new_option"]
        assert from_config(config) == from_config(SDXL_BASE) == for_request(config, {})
    assert len(notices) == 1


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "EDM": ({"_class_name": "EDMEulerScheduler"}, {}, "EDMEulerScheduler.*sigma_data"),
    "another class": ({"_class_name": "SASolverScheduler"}, {}, "SASolverScheduler"),
    "Runge-Kutta steps": (
        {"_class_name": "PNDMScheduler", "skip_prk_steps": False},
        {},
        "skip_prk_steps: must be true",
    ),
    "no class": ({}, {}, "_class_name"),
    "unknown name": (SDXL_BASE, {"name": "restart"}, "restart"),
    "not an option of it": (SDXL_BASE, {"name": "ddim", "use_karras_sigmas": True}, "use_karras"),
    "not a number": (SDXL_BASE, {"name": "ddim", "eta": "half"}, "eta"),
    "not a boolean": (SDXL_BASE, {"name": "euler", "use_karras_sigmas": 1}, "use_karras_sigmas"),
    "too large": (SDXL_BASE, {"name": "ddim", "eta": 1.5}, "eta"),
    "no such choice": (SDXL_BASE, {"timestep_spacing": "even"}, "timestep_spacing"),
    "order": (SDXL_BASE, {"name": "dpmpp_2m", "solver_order": 4}, "solver_order"),
    "two spacings": (
        SDXL_BASE,
        {"use_karras_sigmas": True, "use_beta_sigmas": True},
        "use_beta_sigmas",
    ),
    "learned variance of a request": (
        SDXL_BASE,
        {"name": "dpmpp_2m", "variance_type": "learned"},
        "variance_type: must be fixed_large or .* not 'learned'",
    ),
    "noise that is never served": (
        SDXL_BASE,
        {"name": "flow_match_euler", "stochastic_sampling": True},
        "stochastic_sampling: is not an option",
    ),
    "learned variance": (
        {**SDXL_BASE, "_class_name": "DPMSolverMultistepScheduler", "variance_type": "learned"},
        {},
        "variance_type",
    ),
    "carried, but no option": (SDXL_BASE, {"name": "dpmpp_2m", "sigma_min": 0.1}, "sigma_min"),
    "noise ends above zero": (
        SDXL_BASE,
        {"name": "dpmpp_2m", "algorithm_type": "dpmsolver"},
        "final_sigmas_type",
    ),
    "ancestral sample": ({**TURBO, "prediction_type": "sample"}, {}, "prediction_type"),
    "dynamic shift": ({**WAN, "use_dynamic_shifting": True}, {}, "use_dynamic_shifting"),
    "predictor": ({**WAN, "solver_p": "DDIMScheduler"}, {}, "solver_p"),
    "stochastic flow": (
        {"_class_name": "FlowMatchEulerDiscreteScheduler", "stochastic_sampling": True},
        {},
        "stochastic_sampling",
    ),
    "betas": ({**SDXL_BASE, "trained_betas": [0.1, 0.2]}, {}, "trained_betas"),
}


@pytest.mark.parametrize(("config", "chosen", "named"), REFUSED.values(), ids=REFUSED)
def test_unsupported_config_is_named(
    config: dict[str, Any], chosen: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        for_request(config, chosen)


PLANS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no steps": ({"name": "euler"}, {"steps": 0}, "num_inference_steps"),
    "both": ({"name": "euler"}, {"timesteps": [9.0], "sigmas": [1.0, 0.0]}, "sigmas"),
    "timesteps": ({"name": "ddim"}, {"timesteps": [9.0]}, "timesteps"),
    "sigmas": ({"name": "dpmpp_2m"}, {"sigmas": [9.0, 0.0]}, "sigmas"),
    "no flow": ({"name": "unipc"}, {"sigmas": [0.9, 0.1]}, "sigmas"),
    "rising": ({"name": "lcm"}, {"timesteps": [9, 10]}, "timesteps"),
    "spaced twice": (
        {"name": "euler", "use_karras_sigmas": True},
        {"timesteps": [9.0]},
        "timesteps",
    ),
    "no strength": ({"name": "euler"}, {"strength": 0.0}, "strength"),
    "nothing left": ({"name": "euler"}, {"strength": 0.2}, "strength"),
    "too many": ({"name": "lcm"}, {"steps": 51}, "num_inference_steps"),
    "more than trained": ({"name": "ddim"}, {"steps": 1001}, "num_inference_steps"),
    "beyond the last": ({"name": "ddim", "steps_offset": 300}, {}, "steps_offset"),
    "epsilon of nothing": (
        {"name": "ddim", "rescale_betas_zero_snr": True, "timestep_spacing": "trailing"},
        {},
        "prediction_type",
    ),
    "second order to zero": (
        {"name": "unipc", "lower_order_final": False},
        {},
        "scheduler",
    ),
}


@pytest.mark.parametrize(("chosen", "asked", "named"), PLANS.values(), ids=PLANS)
def test_invalid_plan_arguments_are_named(
    chosen: dict[str, Any], asked: dict[str, Any], named: str
) -> None:
    with pytest.raises(OptionError) as error:
        for_request(SDXL_BASE, chosen).plan(**{"steps": 4, **asked})
    assert error.value.field == named


def test_options_list_their_choices() -> None:
    euler = OPTIONS["euler"]
    assert euler["timestep_spacing"].choices == ("leading", "linspace", "trailing")
    assert euler["use_karras_sigmas"].kind == "boolean"
    assert (OPTIONS["ddim"]["eta"].minimum, OPTIONS["ddim"]["eta"].maximum) == (0, 1)
    assert OPTIONS["unipc"]["solver_order"].kind == "integer"
    assert euler["use_karras_sigmas"].excludes == ("use_beta_sigmas", "use_exponential_sigmas")
    assert "trained_betas" not in euler
    assert "eta" not in OPTIONS["lcm"]
    assert {name for name, options in OPTIONS.items() if "eta" in options} == {
        *("ddim", "tcd", "DDIMScheduler", "TCDScheduler")
    }
    assert set(CLASSES) < set(OPTIONS)


SIDE_BY_SIDE = {
    "euler": {"name": "euler"},
    "ancestral": {"name": "euler_ancestral"},
    "ddim": {"name": "ddim", "eta": 0.7},
    "threshold": {"name": "ddim", "thresholding": True, "sample_max_value": 2.0},
    "lcm": {"name": "lcm"},
    "sde": {"name": "dpmpp_2m_sde", "solver_order": 3},
    "unipc": {"name": "unipc", "solver_order": 3},
    "heun": {"name": "heun"},
    "sde of two stages": {"name": "dpmpp_sde"},
    "singlestep": {"name": "dpmpp_2s", "solver_order": 3},
    "lms": {"name": "lms"},
    "pndm": {"name": "pndm"},
    "ddpm": {"name": "ddpm"},
    "threshold of unipc": {"name": "unipc", "thresholding": True, "sample_max_value": 2.0},
}


@pytest.mark.parametrize("chosen", SIDE_BY_SIDE.values(), ids=SIDE_BY_SIDE)
def test_batched_rows_match_single_rows(chosen: dict[str, Any]) -> None:
    """Two rows of different length in one batch; the second has run three steps fewer."""
    scheduler = for_request(SDXL_BASE, chosen)
    plans = [scheduler.plan(8), scheduler.plan(5)]
    shape = (2, 3, 4)
    rng = np.random.default_rng(0)
    outputs, noise = rng.normal(size=(2, 8, *shape)).astype(np.float32)
    step = jax.jit(scheduler.solver.step)

    def advance(rows: list[Any], at: list[int]) -> list[Any]:
        values = [plan.at(i) for plan, i in zip(plans[-len(rows) :], at, strict=True)]
        latents, history = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
        columns = jax.tree.map(lambda *leaves: np.stack(leaves), *values)
        stepped = step(latents, outputs[at], history, noise[at], columns)
        results = [(stepped.latents[i], _row(stepped.history, i)) for i in range(len(rows))]
        return results

    start = jnp.asarray(rng.normal(size=shape), jnp.float32)
    first = single = (start, scheduler.solver.begin(start))
    for i in range(5):
        single = advance([single], [i])[0]
    ahead = first
    plans.reverse()
    for i in range(3):
        ahead = advance([ahead], [i])[0]
    plans.reverse()
    rows = [ahead, first]
    for i in range(5):
        rows = advance(rows, [i + 3, i])
    for output, expected in zip(jax.tree.leaves(rows[1]), jax.tree.leaves(single), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)  # different executables


def _row(history: Any, index: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], history)


@pytest.mark.parametrize("name", ["dpmpp_2m", "unipc", "ddim"])
def test_equal_solvers_have_equal_histories(name: str) -> None:
    """Schedules with different spacing have equal solvers."""
    default = for_request(SDXL_BASE, {"name": name})
    trailing = for_request(SDXL_BASE, {"name": name, "timestep_spacing": "trailing"})
    assert default != trailing
    assert default.solver == trailing.solver
    latents = jnp.zeros((3, 4))
    assert jax.tree.map(jnp.shape, default.solver.begin(latents)) == jax.tree.map(
        jnp.shape, trailing.solver.begin(latents)
    )


@pytest.mark.parametrize("chosen", SIDE_BY_SIDE.values(), ids=SIDE_BY_SIDE)
def test_plans_are_float32(chosen: dict[str, Any]) -> None:
    plan = for_request(SDXL_BASE, chosen).plan(6)
    arrays = [plan.timesteps, plan.input_scale, plan.clean_scale, plan.noise_scale]
    assert {array.dtype for array in (*arrays, *plan.values.values())} == {np.dtype(np.float32)}
    assert {len(column) for column in plan.values.values()} == {len(plan)}


def test_scheduler_names_in_files_match_the_automatic1111_api() -> None:
    """Requests use Atelier's name and checkpoints the class's name; both give the same sampler."""
    assert WRITTEN.keys() == CHOICES.keys()
    assert {*WRITTEN.values()} == {sampler.name for sampler in SAMPLERS if not sampler.options}
    kinds: dict[str, set[Any]] = {}
    for name, choice in CHOICES.items():
        kinds.setdefault(WRITTEN[name], set()).add(choice.kind)
    assert {name for name, classes in kinds.items() if len(classes) > 1} == {"Euler", "Heun"}
