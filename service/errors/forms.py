"""Error formats: problem+json for this API, and each compatible endpoint's own format."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastapi import Request, Response

from service.errors.problems import Problem, render

ErrorForm = Callable[[Problem], Response]
"""Function that converts a problem to an HTTP response."""


class ErrorForms:
    """Formats of error responses by path prefix.

    The longest prefix of whole segments wins; other paths have problem+json.
    """

    def __init__(self, forms: Mapping[str, ErrorForm]) -> None:
        self._forms = sorted(forms.items(), key=lambda item: len(item[0]), reverse=True)

    def of(self, path: str) -> ErrorForm:
        """Return the error format of a request path."""
        for prefix, form in self._forms:
            if path == prefix or path.startswith(f"{prefix}/"):
                return form
        return render


def answer(request: Request, problem: Problem) -> Response:
    """Convert a problem to a response in the format of the request's path."""
    forms: ErrorForms | None = getattr(request.app.state, "error_forms", None)
    return forms.of(request.scope["path"])(problem) if forms else render(problem)
