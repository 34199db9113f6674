"""Forms of errors: our own problem+json, and under other APIs' paths what their clients read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastapi import Request, Response

from service.errors.problems import Problem, render

ErrorForm = Callable[[Problem], Response]
"""Writer of a problem as an answer."""


class ErrorForms:
    """Form of each path, by its longest prefix of whole segments; any other path is our own."""

    def __init__(self, forms: Mapping[str, ErrorForm]) -> None:
        self._forms = sorted(forms.items(), key=lambda item: len(item[0]), reverse=True)

    def of(self, path: str) -> ErrorForm:
        """Return the form of a path's errors."""
        for prefix, form in self._forms:
            if path == prefix or path.startswith(f"{prefix}/"):
                return form
        return render


def answer(request: Request, problem: Problem) -> Response:
    """Return a problem in the form that the clients of its path read."""
    forms: ErrorForms | None = getattr(request.app.state, "error_forms", None)
    return forms.of(request.scope["path"])(problem) if forms else render(problem)
