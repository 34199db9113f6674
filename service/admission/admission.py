"""Admission: take a request or refuse it, in five steps."""

from __future__ import annotations

import time
from collections.abc import Mapping

from service.admission.caller import Caller
from service.admission.drafts import Drafts
from service.admission.parse import parse
from service.admission.price import price
from service.admission.resolve import resolve_request
from service.admission.safety import check_safety
from service.admission.submit import submit
from service.front_end.front_end import FrontEnd
from service.jobs.queue import Accepted
from service.schemas.request import GenerateRequest
from service.tracing import spans
from service.tracing.log_context import hide_prompts


async def admit(
    front: FrontEnd,
    caller: Caller,
    body: GenerateRequest,
    headers: Mapping[str, str],
    media_types: tuple[str, ...] = (),
    drafts: Drafts | None = None,
) -> Accepted:
    """Return the job that a request asks for: a new one, or the one its key stands for.

    Args:
        headers: of the request, by lower-case name.
        media_types: what the Accept header wants, best first, where it wants bytes.
        drafts: what its images go on from; None: they begin anew.

    Raises:
        Problem: it was refused, and nothing was kept.
        ClientDisconnect: the client left before it was taken.
    """
    began = time.perf_counter()
    hide_prompts({name: getattr(body, name) for name in body.model_fields_set})
    parsed = parse(body, headers, media_types, drafts.name if drafts else "")
    resolved = await resolve_request(front, caller, parsed)
    await check_safety(front, caller, resolved)
    priced = await price(front, caller, resolved, drafts)
    accepted = await submit(front, priced)
    exemplar = spans.exemplar_of(caller.traceparent)
    model = accepted.job.model
    front.telemetry.admissions.labels(model).observe(time.perf_counter() - began, exemplar)
    return accepted
