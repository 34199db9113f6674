"""Pure Euler step of an ODE, and the clean latents that a velocity implies.

Arguments are batched by row; sigmas broadcast against the latents.
"""

from __future__ import annotations

from jaxtyping import Array, Float

Latents = Float[Array, "batch *shape"]
Sigma = Float[Array, "batch *ones"]


def euler(latents: Latents, velocity: Latents, sigma: Sigma, sigma_next: Sigma) -> Latents:
    """Take an explicit Euler step of an ODE whose velocity is d latents / d sigma.

    Source: Liu et al. 2022 (rectified flow), eq. 1.
    """
    return latents + (sigma_next - sigma) * velocity


def denoised(latents: Latents, velocity: Latents, sigma: Sigma) -> Latents:
    """Return the clean latents that a velocity implies: the end of one step to sigma 0."""
    return euler(latents, velocity, sigma, 0 * sigma)
