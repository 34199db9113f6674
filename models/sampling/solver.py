"""A solver: the part of a scheduler that a step's program is traced from.

A scheduler's schedule is a table of numbers, made on the host. What is left for the device is a
frozen value with one pure step: rows of equal solvers share a program, whatever their schedules
are, and the value alone says everything that tracing the step needs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import jax
from jaxtyping import Array, Float

Latents = Float[Array, "batch *shape"]
History = Mapping[str, jax.Array]
"""Arrays with the latents' shape (or none of them), each with a leading row axis in `step`."""


class Stepped(NamedTuple):
    """Result of one step."""

    latents: Latents
    denoised: Latents
    """The step's estimate of the clean latents (x0), for previews."""
    history: History


@dataclass(frozen=True)
class Solver:
    """Method's arithmetic. Fields are plain literals: `str` writes them, `parse` reads them."""

    METHOD: ClassVar[str]
    """The first word of its text form."""

    def begin(self, latents: Float[Array, "*shape"]) -> History:
        """The history before the first step of one row (no batch axis): arrays of zeros.

        Methods of one step have none.
        """
        return {}

    def step(
        self,
        latents: Latents,
        output: Latents,
        history: History,
        noise: Latents | None,
        values: Mapping[str, Float[Array, " batch"]],
    ) -> Stepped:
        """Step a batch of rows, each at its own place in its own plan. Float32.

        Args:
            output: the network's, after guidance: epsilon, v, sample or velocity, as the
                scheduler's prediction_type says.
            noise: standard normal, of the latents' shape; None where the plan draws none at all.
            values: one step's entries of `Plan.values`, by row.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        given = [
            f"{field.name}={getattr(self, field.name)!r}".replace(" ", "")
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"{self.METHOD}({','.join(given)})" if given else self.METHOD


def parse(text: str, solvers: Iterable[type[Solver]]) -> Solver:
    """The inverse of `str`, for one of these. Raises: ValueError: it is none of them."""
    method, _, options = text.partition("(")
    kind = next((one for one in solvers if method == one.METHOD), None)
    if kind is None:
        raise ValueError(f"{text!r} names no solver that is known here")
    try:
        call = ast.parse(f"solver({options or ')'}", mode="eval").body
        assert isinstance(call, ast.Call)
        solver = kind(**{str(one.arg): ast.literal_eval(one.value) for one in call.keywords})
        assert str(solver) == text
    except (AssertionError, SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"{text!r} cannot be read as a solver") from error
    return solver
