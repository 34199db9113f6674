"""Guidance: how predictions with and without the prompt become one."""

from __future__ import annotations

from jaxtyping import Array, Float


def classifier_free(
    positive: Float[Array, "batch ..."],
    negative: Float[Array, "batch ..."],
    scale: Float[Array, "batch ..."],
) -> Float[Array, "batch ..."]:
    """From the negative prediction towards and beyond the positive one.

    Source: Ho and Salimans 2022, eq. 6, in the form negative + scale · (positive - negative).
    """
    return negative + scale * (positive - negative)
