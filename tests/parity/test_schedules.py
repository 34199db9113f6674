"""Sigmas and Euler steps compared with diffusers' FlowMatchEulerDiscreteScheduler, over its
options.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.flux.pipeline_flux import calculate_shift

from models.sampling.flow_choice import checkpoint_scheduler
from models.sampling.flow_schedule import FlowMatchSchedule, img2img_start
from models.sampling.flow_step import denoised, euler

OPTIONS = {
    "none": {},
    "static": {"shift": 3.0},
    "exponential": {"use_dynamic_shifting": True},
    "linear": {"use_dynamic_shifting": True, "time_shift_type": "linear"},
    "own range": {
        "use_dynamic_shifting": True,
        "base_shift": 0.3,
        "max_shift": 2.1,
        "base_image_seq_len": 64,
        "max_image_seq_len": 1000,
    },
    "terminal": {"shift": 2.0, "shift_terminal": 0.1},
    "dynamic terminal": {"use_dynamic_shifting": True, "shift_terminal": 0.02},
    "karras": {"shift": 3.0, "use_karras_sigmas": True},
    "exponential spacing": {"use_dynamic_shifting": True, "use_exponential_sigmas": True},
    "beta": {"use_beta_sigmas": True},
    "other clock": {"num_train_timesteps": 500, "shift": 1.7},
}


@pytest.mark.parametrize("tokens", [6, 256, 4096])
@pytest.mark.parametrize("steps", [2, 4, 28])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_sigmas_are_bitwise_diffusers(options: dict, steps: int, tokens: int) -> None:
    reference = FlowMatchEulerDiscreteScheduler(**options)
    config = reference.config
    mu = calculate_shift(
        tokens,
        config.base_image_seq_len,
        config.max_image_seq_len,
        config.base_shift,
        config.max_shift,
    )
    reference.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
    sigmas = FlowMatchSchedule.from_dict(dict(reference.config)).sigmas(steps, tokens)
    np.testing.assert_array_equal(sigmas, reference.sigmas.numpy())


def test_single_step_starts_at_one_and_ends_at_zero() -> None:
    """A single step starts at one and ends at zero, also with a terminal shift, where the reference
    divides 0 by 0."""
    for options in OPTIONS.values():
        sigmas = FlowMatchSchedule.from_dict(options).sigmas(1, 256)
        np.testing.assert_array_equal(sigmas, [1.0, 0.0])


def test_custom_sigmas_are_shifted_too() -> None:
    reference = FlowMatchEulerDiscreteScheduler(shift=3.0)
    reference.set_timesteps(sigmas=[1.0, 0.7, 0.2])
    sigmas = FlowMatchSchedule(shift=3.0).sigmas(28, 256, [1.0, 0.7, 0.2])
    np.testing.assert_array_equal(sigmas, reference.sigmas.numpy())


def test_single_euler_step() -> None:
    reference = FlowMatchEulerDiscreteScheduler(shift=3.0)
    reference.set_timesteps(sigmas=np.linspace(1.0, 0.25, 4))
    rng = np.random.default_rng(0)
    latents, velocity = (rng.normal(size=(1, 6, 8)).astype(np.float32) for _ in range(2))
    arrays = jnp.asarray(latents), jnp.asarray(velocity)
    expected = reference.step(
        torch.from_numpy(velocity), reference.timesteps[0], torch.from_numpy(latents)
    ).prev_sample.numpy()
    sigma, sigma_next = (jnp.full((1, 1, 1), reference.sigmas[i].item()) for i in (0, 1))
    np.testing.assert_array_equal(euler(*arrays, sigma, sigma_next), expected)
    clean = latents - reference.sigmas[0].item() * velocity
    np.testing.assert_allclose(denoised(*arrays, sigma), clean, rtol=1e-6)  # an ulp or two


@pytest.mark.parametrize(("steps", "strength", "start"), [(28, 0.6, 11), (4, 1.0, 0), (5, 0.1, 4)])
def test_image_to_image_skips_the_first_steps(steps: int, strength: float, start: int) -> None:
    assert img2img_start(steps, strength) == start


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"_class_name": "DDIMScheduler"}, "DDIMScheduler"),
        ({"time_shift_type": "cubic"}, "cubic"),
        ({"invert_sigmas": True}, "invert_sigmas"),
        ({"stochastic_sampling": True}, "stochastic_sampling"),
        ({"use_karras_sigmas": True, "use_beta_sigmas": True}, "use_beta_sigmas"),
    ],
)
def test_unsupported_config_is_named(config: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        checkpoint_scheduler(config, None)
