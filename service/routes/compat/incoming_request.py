"""Parse a compatible endpoint's request body and admit it as a job."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from opentelemetry.trace import Span
from pydantic import BaseModel

from service.admission import quotas
from service.admission.admit import admit
from service.admission.parse import Caller, parse_as
from service.admission.refusals import Attempt, counting_refusals
from service.http.body import read_json
from service.http.headers import request_id_of
from service.http.inflight_limits import Hold
from service.jobs import job_spans
from service.jobs.model.job import FieldWarning, Job
from service.responses.wait import while_connected
from service.routes.compat import forms
from service.routes.compat.call import Call
from service.routes.compat.hosted_fields import without_effect
from service.routes.compat.names import SAME_NAMES, FieldNames, renaming
from service.schemas.request import GenerateRequest
from service.tracing import spans

M = TypeVar("M", bound=BaseModel)
ModelOf = Callable[[Mapping[str, Any]], Any]

_NATIVE_FIELDS = frozenset(GenerateRequest.model_fields)


def _model_field(fields: Mapping[str, Any]) -> Any:
    return fields.get("model")


@dataclass(frozen=True)
class IncomingRequest:
    """Request whose body counts against the limits until its job is admitted."""

    call: Call
    _hold: Hold
    _attempt: Attempt
    _span: Span
    _parent: str | None

    def record_model(self, model: Any) -> None:
        """Record the model that a request names, for the metrics of rejected requests."""
        self._attempt.record_model(model)

    async def json(self, kind: type[M], model_of: ModelOf = _model_field) -> M:
        """Parse the body as JSON.

        Args:
            model_of: returns the model that an unvalidated body names.

        Raises: Problem.
        """

        def read(fields: Mapping[str, Any]) -> M:
            self._attempt.record_model(model_of(fields))
            return parse_as(kind, fields)

        max_bytes = self.call.front.settings.limits.max_body_bytes
        return await read_json(self.call.request, max_bytes, self._hold, read)

    async def form(self, kind: type[M], files: Collection[str]) -> tuple[M, dict[str, list[bytes]]]:
        """Parse the body as a form: its text fields, and the files of each named part.

        If `kind` allows extra fields, those of `POST /v1/generate` are accepted, too.

        Raises: Problem.
        """
        max_bytes = self.call.front.settings.limits.max_body_bytes
        known_names = [field.alias or name for name, field in kind.model_fields.items()]
        allows_more = kind.model_config.get("extra") == "allow"
        extra_names = sorted(_NATIVE_FIELDS - {*known_names, *files}) if allows_more else ()
        texts = [*known_names, *extra_names]
        form = await forms.read(
            self.call.request, texts, files, self._hold, max_bytes, self.record_model
        )
        fields = {
            name: forms.typed(name, text) if name in extra_names else text
            for name, text in form.fields.items()
        }
        self._attempt.record_model(fields.get("model"))
        return parse_as(kind, fields), form.files

    async def admit(
        self,
        fields: Mapping[str, Any],
        names: FieldNames = SAME_NAMES,
        headers: Mapping[str, str] | None = None,
        previews: int = 0,
        warnings: Sequence[FieldWarning] = (),
    ) -> Job:
        """Admit a request in this API's fields; return its job.

        Args:
            names: names of this API's fields in the vendor's API, for errors.
            headers: by lower-case name. Default: the request's.
            previews: number of previews that the client requested.
            warnings: about fields of the vendor's API that have no effect here.

        Raises: Problem, ClientDisconnect: as `admit`.
        """
        call = self.call
        fields, passed_over = without_effect(forms.plain_values(fields), names)
        sender = Caller(
            call.tenant,
            call.client,
            partial(while_connected, call.request),
            self._parent,
            previews,
            call.key_id,
            request_id_of(call.request),
            (*warnings, *passed_over),
        )
        with renaming(names):
            body = self._attempt.read(fields)
            job = (await admit(call.front, sender, body, headers or call.request.headers)).job
        self._span.set_attributes(job_spans.job_attributes(job))
        if job.traceparent != self._parent:
            spans.link(self._span, job.traceparent)
        return job


@asynccontextmanager
async def receive_request(call: Call) -> AsyncIterator[IncomingRequest]:
    """Count the body against the limits, and errors raised inside as rejected requests.

    Raises: Problem: with the tenant's quota headers.
    """
    front, parent = call.front, spans.current_traceparent()
    async with quotas.QuotaHeaders(front, call.tenant):
        with front.bodies.holding(call.client) as hold:
            async with counting_refusals(front, call.tenant) as attempt:
                with spans.span("admission") as span:
                    yield IncomingRequest(call, hold, attempt, span, parent)
