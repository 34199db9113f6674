"""Entry: a request of another API on its way in, from its body to its job."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel

from service.admission import caller, quotas
from service.admission.admission import admit
from service.admission.parse import parse_as
from service.admission.refusals import Attempt, counting_refusals
from service.http.body import read_json
from service.http.inflight_limits import Hold
from service.http.request_ids import request_id_of
from service.jobs import job_spans
from service.jobs.model.job import Job
from service.responses.wait import unless_left
from service.routes.compat import forms
from service.routes.compat.call import Call
from service.routes.compat.names import SAME, Names, renaming
from service.schemas.request import GenerateRequest
from service.tracing import spans
from service.tracing.span import Span

M = TypeVar("M", bound=BaseModel)
ModelOf = Callable[[Mapping[str, Any]], Any]

_OURS = frozenset(GenerateRequest.model_fields)


def _in_the_body(fields: Mapping[str, Any]) -> Any:
    return fields.get("model")


@dataclass(frozen=True)
class Entry:
    """Request whose body is held until its job is admitted."""

    call: Call
    _hold: Hold
    _attempt: Attempt
    _span: Span
    _parent: str | None

    def names(self, model: Any) -> None:
        """Note the model that a request names, under which it is counted if it is refused."""
        self._attempt.names(model)

    async def json(self, kind: type[M], model_of: ModelOf = _in_the_body) -> M:
        """Read the body as JSON.

        Args:
            model_of: what the other API names a model by, of a body that was not checked yet.

        Raises: Problem.
        """

        def read(fields: Mapping[str, Any]) -> M:
            self._attempt.names(model_of(fields))
            return parse_as(kind, fields)

        most = self.call.front.settings.limits.max_body_bytes
        return await read_json(self.call.request, most, self._hold, read)

    async def form(self, kind: type[M], files: Collection[str]) -> tuple[M, dict[str, list[bytes]]]:
        """Read the body as a form: its texts, and the files of each part named.

        A kind that allows further fields takes those of `POST /v1/generate`.

        Raises: Problem.
        """
        most = self.call.front.settings.limits.max_body_bytes
        own = [one.alias or name for name, one in kind.model_fields.items()]
        allows_more = kind.model_config.get("extra") == "allow"
        further = sorted(_OURS - {*own, *files}) if allows_more else ()
        form = await forms.read(self.call.request, [*own, *further], files, self._hold, most)
        fields = {
            name: forms.typed(name, text) if name in further else text
            for name, text in form.fields.items()
        }
        self._attempt.names(fields.get("model"))
        return parse_as(kind, fields), form.files

    async def admit(
        self,
        fields: Mapping[str, Any],
        names: Names = SAME,
        headers: Mapping[str, str] | None = None,
        previews: int = 0,
    ) -> Job:
        """Return the job of a request in our fields.

        Args:
            names: of our fields in the other API, for its errors.
            headers: by lower-case name. Default: the request's.
            previews: number of previews that the client has asked for.

        Raises: Problem, ClientDisconnect: as `admit`.
        """
        call = self.call
        sender = caller.Caller(
            call.tenant,
            call.client,
            partial(unless_left, call.request),
            self._parent,
            previews,
            call.key_id,
            request_id_of(call.request),
        )
        with renaming(names):
            body = self._attempt.read(fields)
            job = (await admit(call.front, sender, body, headers or call.request.headers)).job
        self._span.set(job_spans.about(job))
        if job.traceparent != self._parent:
            self._span.link(spans.parse(job.traceparent))
        return job


@asynccontextmanager
async def entry(call: Call) -> AsyncIterator[Entry]:
    """Hold a request's body, and count what is refused in here.

    Raises: Problem: with the tenant's quotas in its headers.
    """
    front, parent = call.front, spans.here().traceparent
    async with quotas.QuotaHeaders(front, call.tenant):
        with front.bodies.holding(call.client) as hold:
            async with counting_refusals(front, call.tenant) as attempt:
                with spans.span("admission") as span:
                    yield Entry(call, hold, attempt, span, parent)
