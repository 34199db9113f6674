"""The key of a step's compiled program: a value that says all that tracing it needs.

Whatever process has it, with the same model and shapes, traces the same program: one that never
prepared a request, too. It travels between the processes of a slice, and is part of the names of
compiled programs in files, in its text form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

from models.sampling.registry import solver_of
from models.sampling.solver import Solver
from models.spec.quality_presets import CacheKind, EightBitProducts

GUIDED, NOISE = "guided", "noise"
ADAPTERS = "adapters-"
"""Beginning of the word that says how many pages of adapters a row reads."""
WORDS = frozenset({GUIDED, NOISE, *get_args(EightBitProducts), *get_args(CacheKind)})


@dataclass(frozen=True)
class StepProgram:
    """Identity of a kind of step in a bucket: rows of equal ones share a batch.

    `str` writes it as words: `transformer_2 guided unipc(order=3) w8a16 first-block adapters-4`.
    """

    network: str
    """The one that denoises, as a field of the pipeline's weights."""
    guided: bool = False
    """Whether it also answers the negative prompt."""
    solver: Solver | None = None
    """Solver; None: the family has none of this protocol."""
    noise: bool = False
    """Whether the step is given noise to add."""
    quant: EightBitProducts | None = None
    """Precision of its blocks' matrix products."""
    cache: CacheKind | None = None
    """Signal by which it decides to reuse the work of the step before."""
    adapter_pages: int = 0
    """Pages of adapters that each row reads; 0: rows have none."""

    def __post_init__(self) -> None:
        if self.network.split() != [self.network]:
            raise ValueError(f"the network {self.network!r} must be one word")

    def __str__(self) -> str:
        flags = GUIDED if self.guided else None, NOISE if self.noise else None
        adapters = f"{ADAPTERS}{self.adapter_pages}" if self.adapter_pages else None
        words = (self.network, flags[0], self.solver, flags[1], self.quant, self.cache, adapters)
        return " ".join(str(word) for word in words if word is not None)

    @classmethod
    @lru_cache(maxsize=1024)  # a process of a slice reads one with each step
    def parse(cls, text: str) -> StepProgram:
        """The inverse of `str`. Raises: ValueError: it is no text of a program."""
        network, *words = text.split()
        pages = [word.removeprefix(ADAPTERS) for word in words if word.startswith(ADAPTERS)]
        words = [word for word in words if not word.startswith(ADAPTERS)]
        solvers = [word for word in words if word not in WORDS]
        if len(solvers) > 1:
            raise ValueError(f"{text!r} names more than one solver: {', '.join(solvers)}")
        return cls(
            network,
            GUIDED in words,
            solver_of(solvers[0]) if solvers else None,
            NOISE in words,
            next((one for one in get_args(EightBitProducts) if one in words), None),
            next((one for one in get_args(CacheKind) if one in words), None),
            int(pages[0]) if pages else 0,
        )
