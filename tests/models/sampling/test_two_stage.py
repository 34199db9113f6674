"""Methods with two evaluations a step: published formulas, noise, and zero terminal SNR."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.sampling.registry import for_request
from tests.models.sampling.test_registry import SDXL_BASE, ZERO_SNR

SHAPE = (1, 2, 3, 4)
STEPS = 6
RANDOM = np.random.default_rng(2)
NOISE = RANDOM.normal(size=(2 * STEPS, *SHAPE)).astype(np.float32)


def denoised_at(latents: np.ndarray, sigma: float) -> np.ndarray:
    """Return the denoiser of Gaussian data with deviation 0.5."""
    clean: np.ndarray = latents * (0.25 / (0.25 + sigma**2)) + 0.05 * np.sin(latents)
    return clean


def run(chosen: dict[str, Any], start: np.ndarray) -> np.ndarray:
    """Run a scheduler's steps, in float32, with `NOISE` in the order of its draws."""
    scheduler = for_request(SDXL_BASE, chosen)
    plan, step = scheduler.plan(STEPS), jax.jit(scheduler.solver.step)
    latents, drawn = start, iter(NOISE)
    history = {
        name: np.zeros(SHAPE, np.float32) for name in scheduler.solver.begin(jnp.asarray(start[0]))
    }
    for i in range(len(plan)):
        sigma = math.sqrt(1 / float(plan.input_scale[i]) ** 2 - 1)
        output = ((latents - denoised_at(latents, sigma)) / sigma).astype(np.float32)
        noise = next(drawn) if plan.draws[i] else np.zeros(SHAPE, np.float32)
        values = {name: value[None] for name, value in plan.at(i).items()}
        stepped = step(latents, output, history, noise, values)
        latents, history = np.asarray(stepped.latents), stepped.history
    return latents


def sigmas_of(chosen: dict[str, Any]) -> np.ndarray:
    plan = for_request(SDXL_BASE, chosen).plan(STEPS)
    return np.append(plan.noise_scale[:-1][::2], 0.0).astype(np.float64)


def ancestral(sigma: float, target: float) -> tuple[float, float]:
    up = min(target, math.sqrt(target**2 * (sigma**2 - target**2) / sigma**2))
    return math.sqrt(target**2 - up**2), up


def dpmpp_2s_ancestral(latents: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
    """Sample as k-diffusion publishes it, in float64."""
    drawn = iter(NOISE)
    for sigma, target in itertools.pairwise(sigmas):
        down, up = ancestral(sigma, target)
        clean = denoised_at(latents, sigma)
        if down == 0:
            latents = latents + (latents - clean) / sigma * (down - sigma)
            continue
        step = math.log(sigma / down)
        middle = math.exp(-(math.log(1 / sigma) + step / 2))
        halfway = middle / sigma * latents - math.expm1(-step / 2) * clean
        clean = denoised_at(halfway, middle)
        latents = down / sigma * latents - math.expm1(-step) * clean + next(drawn) * up
    return latents


@pytest.mark.parametrize("options", [{}, {"use_karras_sigmas": True}])
def test_2s_ancestral_is_the_published_method(options: dict[str, Any]) -> None:
    chosen = {"name": "dpmpp_2s_ancestral", **options}
    sigmas = sigmas_of(chosen)
    start = (RANDOM.normal(size=SHAPE) * sigmas[0]).astype(np.float32)
    expected = dpmpp_2s_ancestral(start.astype(np.float64), sigmas)
    error = np.abs(run(chosen, start) - expected).max() / np.abs(expected).max()
    assert error < 3e-6


def test_noise_of_both_stages_of_sde_is_one_brownian_motion() -> None:
    """The second stage's noise contains the first one's, and has unit variance."""
    plan = for_request(SDXL_BASE, {"name": "dpmpp_sde"}).plan(STEPS)
    sigmas = sigmas_of({"name": "dpmpp_sde"})
    for i in range(STEPS - 1):
        _, up = ancestral(sigmas[i], sigmas[i + 1])
        values = plan.at(2 * i + 1)
        parts = values["first_noise"] / up, values["noise"] / up
        assert math.isclose(parts[0] ** 2 + parts[1] ** 2, 1, rel_tol=1e-5)
        middle = math.sqrt(1 / float(plan.input_scale[2 * i + 1]) ** 2 - 1)
        share = (sigmas[i] - middle) / (sigmas[i] - sigmas[i + 1])
        assert math.isclose(parts[0] ** 2, share, rel_tol=1e-4)
    assert plan.draws.tolist() == [True] * (2 * STEPS - 2) + [False]


def test_only_second_stages_of_ancestral_methods_add_noise() -> None:
    for name in ("dpm_2_ancestral", "dpmpp_2s_ancestral"):
        draws = for_request(SDXL_BASE, {"name": name}).plan(STEPS).draws.tolist()
        assert draws == [False, True] * (STEPS - 1) + [False]
        assert for_request(SDXL_BASE, {"name": name}).plan(1).draws.tolist() == [False]


WITH_ZERO_SNR = ("heun", "lms", "dpm_2", "dpmpp_sde", "dpmpp_2s", "deis", "ddpm", "tcd")


@pytest.mark.parametrize("name", WITH_ZERO_SNR)
def test_zero_snr_begins_at_pure_noise(name: str) -> None:
    """The checkpoint's betas apply, also where diffusers' class would ignore their rescaling."""
    plan = for_request(ZERO_SNR, {"name": name}).plan(4)
    plain = for_request({**ZERO_SNR, "rescale_betas_zero_snr": False}, {"name": name}).plan(4)
    assert plan.noise_scale[0] / max(float(plan.clean_scale[0]), 1e-9) > 1000
    assert plain.noise_scale[0] / plain.clean_scale[0] < 100


def test_pndm_refuses_zero_snr_by_name() -> None:
    scheduler = for_request(ZERO_SNR, {"name": "pndm"})
    with pytest.raises(ValueError, match="rescale_betas_zero_snr: pndm cannot begin without a"):
        scheduler.plan(4)
