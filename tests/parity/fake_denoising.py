"""A denoising loop with a fake network, run with diffusers' scheduler and with Atelier's.

The network is a smooth NumPy function, so both loops use the same one. The noise comes from the
same seed, by torch's generator and by Atelier's equivalent.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import torch

from models.sampling.base import Plan, Scheduler
from models.sampling.registry import from_config
from models.sampling.solver import Solver
from models.sampling.torch_rng import TorchGenerator
from tests.parity.distances import largest

SHAPE = (1, 3, 5, 7)
CLEAN = np.random.default_rng(7).normal(size=SHAPE).astype(np.float32)
SEED = 5


@dataclass(frozen=True)
class Case:
    """A configuration of a scheduler run."""

    name: str
    """Class name in diffusers."""
    options: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 4
    strength: float | None = None
    custom: Mapping[str, Any] = field(default_factory=dict)
    """Explicit `timesteps` or `sigmas` of the request."""
    eta: float | None = None

    @property
    def config(self) -> dict[str, Any]:
        return {"_class_name": self.name, **self.options}


@dataclass(frozen=True)
class Run:
    """Record of a loop."""

    timesteps: np.ndarray
    latents: list[np.ndarray]
    """Latents before the first step and after each step."""
    denoised: list[np.ndarray]
    """Each step's estimate of the clean latents; empty if diffusers does not return it."""

    @property
    def finite(self) -> bool:
        return all(np.isfinite(latents).all() for latents in self.latents)


def network(options: Mapping[str, Any], flow: bool) -> Callable[[np.ndarray, float], np.ndarray]:
    """Make a predictor for Gaussian data of deviation 0.5, with a ripple.

    The predictor is contractive, so rounding errors do not grow from step to step.
    """
    kind = options.get("prediction_type", "flow_prediction" if flow else "epsilon")
    continuous = options.get("timestep_type") == "continuous" and kind == "v_prediction"
    train_steps = options.get("num_train_timesteps", 1000)

    def predict(latents: np.ndarray, timestep: float) -> np.ndarray:
        time = float(timestep) / train_steps
        if continuous:
            sigma = np.exp(4 * float(timestep))
            alpha, sigma = 1 / np.hypot(sigma, 1), sigma / np.hypot(sigma, 1)
        elif flow:
            alpha, sigma = 1 - time, time
        else:
            alpha, sigma = np.cos(1.54 * time), np.sin(1.54 * time + 0.02)
        shrunk = 0.25 * alpha / (0.25 * alpha**2 + sigma**2)
        with np.errstate(invalid="ignore"):  # diffusers may already have produced NaN
            clean = shrunk * latents.astype(np.float64) + 0.05 * np.sin(2 * latents + time)
        noise = (latents - alpha * clean) / max(sigma, 0.02)
        predictions = {
            "epsilon": noise,
            "sample": clean,
            "v_prediction": alpha * noise - sigma * clean,
            "flow_prediction": noise - clean,
        }
        return predictions[kind].astype(np.float32)

    return predict


def run_diffusers(case: Case) -> Run | None:
    """Run diffusers' loop as its pipelines do; None if it raises or produces NaN."""
    try:
        run = _reference(case)
    except (ValueError, RuntimeError, TypeError, IndexError, UnboundLocalError, RuntimeWarning):
        return None
    return run if run.finite else None


def reference_class(name: str) -> Any:
    """Return a class of diffusers; the SDE's imports torchsde, which only its own noise needs."""
    if name != "DPMSolverSDEScheduler":
        return getattr(diffusers, name)
    if "torchsde" not in sys.modules and importlib.util.find_spec("torchsde") is None:
        sys.modules["torchsde"] = types.ModuleType("torchsde")
    return importlib.import_module("diffusers.schedulers.scheduling_dpmsolver_sde").__dict__[name]


class BrownianNoise:
    """Noise of both stages of a step, from one Brownian motion, for diffusers' SDE scheduler."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._first: tuple[float, torch.Tensor] | None = None

    def __call__(self, sigma: torch.Tensor, sigma_next: torch.Tensor) -> torch.Tensor:
        drawn = torch.randn(SHAPE, generator=self._generator)
        if self._first is None:
            self._first = (float(sigma_next), drawn)
            return drawn
        (middle, first), self._first = self._first, None
        parts = first * (sigma - middle) ** 0.5 + drawn * (middle - sigma_next) ** 0.5
        return parts / (sigma - sigma_next) ** 0.5


def _reference(case: Case) -> Run:
    scheduler = reference_class(case.name)(**case.options)
    scheduler.set_timesteps(**(case.custom or {"num_inference_steps": case.steps}))
    generator = torch.Generator().manual_seed(SEED)
    noise = torch.randn(SHAPE, generator=generator)
    steps = len(scheduler.timesteps) if case.custom else case.steps
    skipped = 0
    if case.strength is not None:
        skipped = max(steps - min(int(steps * case.strength), steps), 0) * scheduler.order
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(skipped)
    timesteps = scheduler.timesteps[skipped:]
    if case.strength is None:
        latents = noise * getattr(scheduler, "init_noise_sigma", 1.0)
    elif hasattr(scheduler, "add_noise"):
        latents = scheduler.add_noise(torch.from_numpy(CLEAN), noise, timesteps[:1])
    else:
        latents = scheduler.scale_noise(torch.from_numpy(CLEAN), timesteps[:1], noise)
    predict = network(case.options, "FlowMatch" in case.name or _is_flow(case))
    extra: dict[str, Any] = {} if case.eta is None else {"eta": case.eta}
    if case.name == "TCDScheduler":  # the pipelines' default, not the scheduler's
        extra = {"eta": case.eta or 0.0}
    accepted = inspect.signature(scheduler.step).parameters
    if "generator" in accepted and "FlowMatch" not in case.name:
        extra["generator"] = generator
    if hasattr(scheduler, "noise_sampler"):
        scheduler.noise_sampler = BrownianNoise(generator)
    trajectory, denoised = [latents.numpy()], []
    for timestep in timesteps:
        scale = getattr(scheduler, "scale_model_input", lambda latents, _: latents)
        output = torch.from_numpy(predict(scale(latents, timestep).numpy(), timestep))
        latents, *clean = scheduler.step(output, timestep, latents, return_dict=False, **extra)
        trajectory.append(latents.numpy())
        if case.name != "TCDScheduler":  # which returns noisy latents there
            denoised.extend(estimate.numpy() for estimate in clean)
    return Run(timesteps.numpy().astype(np.float32), trajectory, denoised)


def _is_flow(case: Case) -> bool:
    return bool(case.options.get("use_flow_sigmas"))


def run_atelier(case: Case, scheduler: Scheduler | None = None) -> Run:
    """Run the same case with the scheduler's plan and step; each program compiles once."""
    if scheduler is None:
        scheduler = from_config(case.config)
    plan = scheduler.plan(case.steps, strength=case.strength, **case.custom)
    generator = TorchGenerator(SEED)
    noise = generator.randn(SHAPE)
    if case.strength is None:
        latents = noise * np.float32(plan.init_noise_sigma)
    else:
        latents = CLEAN * plan.clean_scale[0] + noise * plan.noise_scale[0]
    predict = network(case.options, "FlowMatch" in case.name or _is_flow(case))
    step = compiled(scheduler.solver)
    history = jax.tree.map(lambda leaf: leaf[None], scheduler.solver.begin(jnp.asarray(latents[0])))
    trajectory, denoised = [latents], []
    for i in range(len(plan)):
        output = predict(latents * plan.input_scale[i], float(plan.timesteps[i]))
        noise_of_step = generator.randn(SHAPE) if plan.draws[i] else np.zeros(SHAPE, np.float32)
        noise_added = noise_of_step if plan.draws.any() else None
        stepped = step(latents, output, history, noise_added, _values(plan, i))
        latents, history = np.asarray(stepped.latents), stepped.history
        trajectory.append(latents)
        denoised.append(np.asarray(stepped.denoised))
    return Run(plan.timesteps, trajectory, denoised)


def _values(plan: Plan, step: int) -> dict[str, np.ndarray]:
    return {name: value[None] for name, value in plan.at(step).items()}


@cache
def compiled(solver: Solver) -> Callable[..., Any]:
    """Compiled step, shared by all schedulers with an equal solver."""
    return jax.jit(solver.step)


def distance(first: Run, second: Run) -> float:
    """Largest relative difference of any step's latents."""
    pairs = zip(first.latents, second.latents, strict=True)
    return max(largest(a, b) for a, b in pairs)
