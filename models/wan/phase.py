"""What one step's program depends on, as the name of a phase."""

from __future__ import annotations

from typing import NamedTuple

from models.wan.experts import Expert

GUIDED, PLAIN = "guided", "plain"


class Phase(NamedTuple):
    """One kind of step; its text form is what the engine knows it by."""

    expert: Expert
    guided: bool
    """Whether a negative prompt goes along."""
    program: str
    """The scheduler's."""

    def __str__(self) -> str:
        return "|".join((self.expert, GUIDED if self.guided else PLAIN, self.program))

    @classmethod
    def parse(cls, name: str) -> Phase:
        """The inverse of `str`."""
        expert, guided, program = name.split("|", 2)
        return cls(
            "transformer_2" if expert == "transformer_2" else "transformer",
            guided == GUIDED,
            program,
        )


def unguided(name: str) -> str:
    """The same phase without a negative prompt."""
    return str(Phase.parse(name)._replace(guided=False))
