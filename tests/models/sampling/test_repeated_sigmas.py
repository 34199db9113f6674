"""Schedules with equal sigmas, between which no solver may divide by zero."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from models.sampling.base import Plan, Scheduler
from models.sampling.dpm_terms import multistep_terms
from models.sampling.flow_choice import flow_scheduler
from models.sampling.flow_match import FlowMatchEuler
from models.sampling.multistep import half_log_snr
from models.sampling.registry import CLASSES, for_request, from_config
from models.sampling.unipc_terms import corrector_terms, predictor_terms
from tests.models.sampling.test_registry import SDXL_BASE

LEVEL = 2.0
SPACED = [name for name, kind in CLASSES.items() if hasattr(kind, "sigma_max")]
ALGORITHMS = ("dpmsolver++", "dpmsolver", "sde-dpmsolver++")


def run(scheduler: Scheduler, plan: Plan) -> list[np.ndarray]:
    """Run the solver on a network with a constant output; return the latents of each step."""
    latents, output = jnp.asarray([[1.0, -2.0, 0.5]]), jnp.asarray([[0.3, 0.1, -0.2]])
    history = {name: leaf[None] for name, leaf in scheduler.solver.begin(latents[0]).items()}
    trajectory = [np.asarray(latents)]
    for i in range(len(plan)):
        values = {name: jnp.asarray(value[None]) for name, value in plan.at(i).items()}
        noise = jnp.ones_like(latents) if plan.draws[i] else None
        stepped = scheduler.solver.step(latents, output, history, noise, values)
        latents, history = stepped.latents, stepped.history
        trajectory.append(np.asarray(latents))
    return trajectory


@pytest.mark.parametrize("order", [{}, {"solver_order": 3}], ids=["order 2", "order 3"])
@pytest.mark.parametrize("name", SPACED)
def test_steps_between_equal_sigmas_leave_the_latents(name: str, order: dict[str, int]) -> None:
    ends = {"sigma_min": LEVEL, "sigma_max": LEVEL, "use_exponential_sigmas": True}
    scheduler = from_config({**SDXL_BASE, **ends, **order, "_class_name": name})
    *steps, last = run(scheduler, scheduler.plan(4))
    assert np.isfinite(last).all()
    for latents in steps[-2:]:
        np.testing.assert_allclose(latents, steps[0], rtol=1e-6)


@pytest.mark.parametrize("name", ["dpmpp_2m", "dpmpp_2m_sde", "dpmpp_3m_sde", "deis", "unipc"])
def test_as_many_steps_as_training_timesteps(name: str) -> None:
    few = {**SDXL_BASE, "num_train_timesteps": 20}
    plan = for_request(few, {"name": name, "timestep_spacing": "linspace"}).plan(20)
    after = np.flatnonzero(np.diff(plan.timesteps) == 0) + 1
    assert after.size
    slope = plan.values.get("difference_1", plan.values.get("predict_1"))
    assert slope is not None
    assert not slope[after].any()


@pytest.mark.parametrize("name", ["flow_match_euler", "flow_match_heun", "dpmpp_2m"])
@pytest.mark.parametrize("sigmas", [None, [1.0, 1.0, 0.6, 0.6, 0.2]], ids=["shift", "custom"])
def test_flows_with_equal_sigmas(name: str, sigmas: list[float] | None) -> None:
    scheduler = flow_scheduler(FlowMatchEuler(use_dynamic_shifting=True), {"name": name})
    plan = scheduler.plan(5, tokens=256, sigmas=sigmas, mu=0.0 if sigmas else 50.0)
    assert np.isfinite(run(scheduler, plan)[-1]).all()


@pytest.mark.parametrize("name", ["dpmpp_2m", "dpmpp_2m_sde", "dpmpp_3m_sde", "dpmpp_2s", "unipc"])
def test_first_sigmas_of_flows_may_round_to_one(name: str) -> None:
    flow = {"use_flow_sigmas": True, "flow_shift": 1e7, "prediction_type": "flow_prediction"}
    for_request(SDXL_BASE, {"name": name, "solver_order": 3, **flow}).plan(20)


@pytest.mark.parametrize(
    "terms",
    [
        *(
            partial(multistep_terms, name, kind)
            for name in ALGORITHMS
            for kind in ("midpoint", "heun")
        ),
        *(
            partial(of, for_noise=for_noise, solver_type="bh2")
            for of in (predictor_terms, corrector_terms)
            for for_noise in (True, False)
        ),
    ],
)
def test_repeated_points_lower_the_order(terms: partial[dict[str, float]]) -> None:
    def of(*sigmas: float) -> dict[str, float]:
        sigma = np.array(sigmas, np.float32)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = terms(alpha=1 - sigma, sigma=sigma, clock=half_log_snr(1 - sigma, sigma))
        return {name: float(value) for name, value in values.items()}

    assert of(0.3, 0.5, 0.5, 0.8) == of(0.3, 0.5)
    assert of(0.3, 0.5, 0.8, 0.8) == of(0.3, 0.5, 0.8)
    assert of(0.3, 0.5, 1.0, 1.0) == of(0.3, 0.5)
    assert of(0.5, 0.5, 0.8, 0.8) == of(0.5, 0.5)
