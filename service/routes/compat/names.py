"""Names of this API's fields in another vendor's API, for errors that name the client's fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from service.errors.problems import FieldError, Invalid, NotFound, Problem


@dataclass(frozen=True)
class FieldNames:
    """Names of fields in another vendor's API.

    Args:
        vendor_names: vendor's name by field, or by dotted path, where the names differ.
        prefix: prefix of all other fields.
    """

    vendor_names: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""

    def of(self, path: str) -> str:
        """Convert a path of this API's fields to the vendor's."""
        if path in self.vendor_names:
            return self.vendor_names[path]
        first, dot, rest = path.partition(".")
        return f"{self.vendor_names.get(first, self.prefix + first)}{dot}{rest}"


SAME_NAMES = FieldNames()
"""Field names that are identical in both APIs."""


@contextmanager
def renaming(names: FieldNames) -> Iterator[None]:
    """Rename fields in errors raised inside to the vendor's names. Raises: Invalid, NotFound."""
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


def _renamed(problem: Problem, names: FieldNames) -> list[FieldError]:
    return [FieldError(names.of(error.field), error.message) for error in problem.errors]
