"""Key of a step's compiled program: contains everything that tracing needs.

Any process with the key, the model and the shapes traces the same program, even if it never
prepared a request. The text form is sent between the processes of a slice and is part of the file
names of compiled programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

from models.sampling.registry import solver_of
from models.sampling.solver import Solver
from models.spec.quality_presets import CacheKind, EightBitProducts

GUIDED, NOISE, MAGNITUDES = "guided", "noise", "magnitudes"
ADAPTERS = "adapters-"
"""Prefix of the word with the number of adapter pages per row."""
WORDS = frozenset({GUIDED, NOISE, MAGNITUDES, *get_args(EightBitProducts), *get_args(CacheKind)})


@dataclass(frozen=True)
class StepProgram:
    """Step kind within a bucket: rows with equal step programs share a batch.

    The text form consists of words: `transformer_2 guided unipc(order=3) w8a16 first-block
    adapters-4`.
    """

    network: str
    """Denoising network, as a field of the pipeline's weights."""
    guided: bool = False
    """Whether the network also evaluates the negative prompt."""
    solver: Solver | None = None
    """Solver; None: the family does not use the solver protocol."""
    noise: bool = False
    """Whether the step adds noise from its values."""
    quant: EightBitProducts | None = None
    """Precision of the blocks' matrix products."""
    cache: CacheKind | None = None
    """Kind of step cache; None: all blocks run in every step."""
    adapter_pages: int = 0
    """Adapter pages that each row reads; 0: no adapters."""
    adapter_magnitudes: bool = False
    """Whether adapters of some rows set magnitudes (DoRA)."""

    def __post_init__(self) -> None:
        if self.network.split() != [self.network]:
            raise ValueError(f"the network {self.network!r} must be one word")

    def __str__(self) -> str:
        flags = GUIDED if self.guided else None, NOISE if self.noise else None
        adapters = f"{ADAPTERS}{self.adapter_pages}" if self.adapter_pages else None
        words = (self.network, flags[0], self.solver, flags[1], self.quant, self.cache, adapters)
        magnitudes = MAGNITUDES if self.adapter_magnitudes else None
        return " ".join(str(word) for word in (*words, magnitudes) if word is not None)

    @classmethod
    @lru_cache(maxsize=1024)  # a process of a slice parses a key for each step
    def parse(cls, text: str) -> StepProgram:
        """Parse the text form of a step program, the inverse of `str`. Raises: ValueError."""
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
            next((option for option in get_args(EightBitProducts) if option in words), None),
            next((option for option in get_args(CacheKind) if option in words), None),
            int(pages[0]) if pages else 0,
            MAGNITUDES in words,
        )
