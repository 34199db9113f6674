"""Solver interface: the part of a scheduler from which a step's program is traced.

A schedule is a table of numbers, made on the host. The solver is a frozen value with one pure step.
Rows with equal solvers share a program for any schedules, and tracing the step needs only this
value.
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
"""Arrays with the latents' shape, possibly none; `step` has a leading row axis in each."""


class SolverOutput(NamedTuple):
    """Result of a solver's step: the next latents, denoised latents and history."""

    latents: Latents
    denoised: Latents
    """Estimate of the clean latents (x0) at this step, for previews."""
    history: History


@dataclass(frozen=True)
class Solver:
    """Arithmetic of one denoising method. Fields are literals, written by `str` and parsed."""

    METHOD: ClassVar[str]
    """First word of the text form."""

    def begin(self, latents: Float[Array, "*shape"]) -> History:
        """Return the history before the first step of one row (no batch axis): arrays of zeros.

        One-step methods have none.
        """
        return {}

    def step(
        self,
        latents: Latents,
        output: Latents,
        history: History,
        noise: Latents | None,
        values: Mapping[str, Float[Array, " batch"]],
    ) -> SolverOutput:
        """Step a batch of rows, each at its own position in its plan. Float32.

        Args:
            output: network's output after guidance: epsilon, v, sample or velocity, by the
                scheduler's prediction_type.
            noise: standard normal, of the latents' shape; None if the plan never draws any.
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
    """Parse the text form of one of these solvers, as `str` writes it.

    Raises: ValueError: no solver of that form.
    """
    method, _, options = text.partition("(")
    kind = next((option for option in solvers if method == option.METHOD), None)
    if kind is None:
        raise ValueError(f"{text!r} names an unknown solver")
    try:
        call = ast.parse(f"solver({options or ')'}", mode="eval").body
        assert isinstance(call, ast.Call)
        solver = kind(
            **{str(option.arg): ast.literal_eval(option.value) for option in call.keywords}
        )
        assert str(solver) == text
    except (AssertionError, SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"{text!r} cannot be read as a solver") from error
    return solver
