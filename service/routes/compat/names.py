"""Names of our fields in another API, so that its errors name what its client sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from service.errors.problems import FieldError, Invalid, NotFound, Problem


@dataclass(frozen=True)
class Names:
    """Names of fields in another API.

    Args:
        foreign: name of each field, or path of fields, that has another one there.
        prefix: of every other field.
    """

    foreign: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""

    def of(self, path: str) -> str:
        """Return a path of our fields as the other API spells it."""
        if path in self.foreign:
            return self.foreign[path]
        first, dot, rest = path.partition(".")
        return f"{self.foreign.get(first, self.prefix + first)}{dot}{rest}"


SAME = Names()
"""Every field is called as here."""


@contextmanager
def renaming(names: Names) -> Iterator[None]:
    """Name fields at fault as the other API does. Raises: Invalid, NotFound."""
    try:
        yield
    except Invalid as problem:
        raise Invalid(
            _renamed(problem, names),
            code=problem.code,
            headers=problem.headers,
            members=problem.members,
        ) from problem
    except NotFound as problem:
        problem.errors = tuple(_renamed(problem, names))
        raise


def _renamed(problem: Problem, names: Names) -> list[FieldError]:
    return [FieldError(names.of(error.field), error.message) for error in problem.errors]
