"""Admission's question to the safety hook: the request and its input images."""

from __future__ import annotations

from models.spec.request_images import without_images
from service.admission.caller import Caller
from service.admission.resolve import ResolvedRequest
from service.errors.problems import Unavailable, Unservable
from service.front_end.front_end import FrontEnd
from service.safety.question import Question, ShownImage
from service.safety.verdict import SafetyAbsent, SafetyBusy, SafetyRefused

RETRY_AFTER_S = 5.0


async def check_safety(front: FrontEnd, caller: Caller, resolved: ResolvedRequest) -> None:
    """Ask the hook, where there is one.

    Raises:
        Unservable: it refuses; says why.
        Unavailable: it gives no verdict, or too many wait for theirs.
        ClientDisconnect: the client has left meanwhile.
    """
    if front.safety is None:
        return
    question = _question(caller, resolved)
    try:
        await caller.connected(front.safety.check(question, caller.client))
    except SafetyRefused as refused:
        said = f"this server's safety check refuses the request: {refused}"
        raise Unservable(said, code="refused_by_safety") from None
    except SafetyBusy as busy:
        said = f"{busy}; try again"
        raise Unavailable(said, code="too_many_checks", retry_after_s=RETRY_AFTER_S) from None
    except SafetyAbsent:
        said = "the request could not be checked for safety; try again"
        raise Unavailable(said, code="safety_unavailable", retry_after_s=RETRY_AFTER_S) from None


def _question(caller: Caller, resolved: ResolvedRequest) -> Question:
    return Question(
        when="before",
        tenant=caller.tenant,
        model=resolved.spec.name,
        request=without_images(resolved.fields.fields),
        images=tuple(
            ShownImage(name, image.file.media_type, image.data)
            for name, image in resolved.images.items()
        ),
    )
