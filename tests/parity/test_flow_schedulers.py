"""Heun and DPM-Solver++ (2M) over the sigmas of a flow-matching checkpoint, step by step.

diffusers' pipelines accept neither with their own sigmas, so its classes get Atelier's sigmas.
"""

from __future__ import annotations

from typing import Any

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from models.sampling.flow_choice import FLOW_EVALUATIONS, flow_scheduler
from models.sampling.flow_match import FlowMatchEuler
from models.spec.evaluations import ONE_A_STEP
from models.spec.option import OptionError
from tests.parity.distances import largest
from tests.parity.fake_denoising import SHAPE, compiled, network

pytestmark = pytest.mark.filterwarnings("ignore:__array_.*:DeprecationWarning")

FLUX = FlowMatchEuler(use_dynamic_shifting=True, shift=3.0)
TOKENS = 1024
PREDICT = network({}, flow=True)


def run_atelier(name: str, steps: int, strength: float | None) -> list[np.ndarray]:
    scheduler = flow_scheduler(FLUX, {"name": name})
    plan = scheduler.plan(steps, tokens=TOKENS, strength=strength)
    latents = noise()
    step = compiled(scheduler.solver)
    history = jax.tree.map(lambda leaf: leaf[None], scheduler.solver.begin(jnp.asarray(latents[0])))
    trajectory = []
    for i in range(len(plan)):
        values = {key: value[None] for key, value in plan.at(i).items()}
        stepped = step(latents, PREDICT(latents, plan.timesteps[i]), history, None, values)
        latents, history = np.asarray(stepped.latents), stepped.history
        trajectory.append(latents)
    return trajectory


def run_diffusers(scheduler: Any, sigmas: np.ndarray, strength: float | None) -> list[np.ndarray]:
    """Run a class of diffusers over sigmas that its own `set_timesteps` cannot make."""
    steps = len(sigmas) - 1
    scheduler.set_timesteps(steps)
    first = 0 if strength is None else int(max(steps - min(steps * strength, steps), 0))
    times, table = torch.from_numpy(sigmas[:-1] * np.float32(1000)), torch.from_numpy(sigmas)
    if scheduler.order == 2:
        times = torch.cat([times[:1], times[1:].repeat_interleave(2)])
        table = torch.cat([table[:1], table[1:-1].repeat_interleave(2), table[-1:]])
    scheduler.timesteps, scheduler.sigmas = times, table
    scheduler.set_begin_index(first * scheduler.order)
    latents, trajectory = torch.from_numpy(noise()), []
    for time in times[first * scheduler.order :]:
        output = torch.from_numpy(PREDICT(latents.numpy(), float(time)))
        (latents,) = scheduler.step(output, time, latents, return_dict=False)
        trajectory.append(latents.numpy())
    return trajectory


def noise() -> np.ndarray:
    return np.random.default_rng(3).normal(size=SHAPE).astype(np.float32)


REFERENCES = {
    "flow_match_heun": lambda: diffusers.FlowMatchHeunDiscreteScheduler(),
    "dpmpp_2m": lambda: diffusers.DPMSolverMultistepScheduler(
        use_flow_sigmas=True, prediction_type="flow_prediction"
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("steps", [1, 4, 20])
@pytest.mark.parametrize("strength", [None, 0.6])
def test_steps_equal_diffusers_over_the_checkpoints_sigmas(
    name: str, steps: int, strength: float | None
) -> None:
    sigmas = FLUX.sigmas(steps, TOKENS)
    expected = run_diffusers(REFERENCES[name](), sigmas, strength)
    output = run_atelier(name, steps, strength)
    assert len(output) == len(expected)
    assert max(map(largest, output, expected)) < 2e-6
    run = steps if strength is None else -int(-steps * strength // 1)
    assert len(output) == FLOW_EVALUATIONS.get(name, ONE_A_STEP).count(run)


@pytest.mark.parametrize("name", REFERENCES)
def test_other_methods_differ_from_euler(name: str) -> None:
    difference = largest(run_atelier(name, 8, None)[-1], run_atelier("euler", 8, None)[-1])
    assert difference > 1e-2


def test_options_and_unknown_names_are_refused() -> None:
    with pytest.raises(OptionError, match="shift: is not an option of flow_match_heun"):
        flow_scheduler(FLUX, {"name": "heun", "shift": 5.0})
    with pytest.raises(OptionError, match="'lms' must be one of"):
        flow_scheduler(FLUX, {"name": "lms"})
    assert flow_scheduler(FLUX, None) is FLUX
