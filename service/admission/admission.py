"""Admission: take a request or refuse it, in five steps."""

from __future__ import annotations

import time
from collections.abc import Mapping

from service.admission.caller import Caller
from service.admission.parse import parse
from service.admission.price import price
from service.admission.resolve import resolve_request
from service.admission.safety import check_safety
from service.admission.submit import submit
from service.front_end.front_end import FrontEnd
from service.jobs.model.job import Job
from service.schemas.request import GenerateRequest
from service.tracing.log_context import hide_prompts


async def admit(
    front: FrontEnd,
    caller: Caller,
    body: GenerateRequest,
    headers: Mapping[str, str],
    media_types: tuple[str, ...] = (),
) -> Job:
    """Return the job that a request asks for: a new one, or the one its key stands for.

    Args:
        headers: of the request, by lower-case name.
        media_types: what the Accept header wants, best first, where it wants bytes.

    Raises:
        Problem: it was refused, and nothing was kept.
        ClientDisconnect: the client left before it was taken.
    """
    began = time.perf_counter()
    hide_prompts(dict(body))
    parsed = parse(body, headers, media_types)
    resolved = await resolve_request(front, caller, parsed)
    await check_safety(front, caller, resolved)
    priced = await price(front, caller, resolved)
    job = await submit(front, priced)
    front.telemetry.admissions.labels(job.model).observe(time.perf_counter() - began)
    return job
