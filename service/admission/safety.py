"""Third step of admission: send the request and its input images to the safety hook."""

from __future__ import annotations

from models.spec.request_images import without_images
from service.admission.caller import Caller
from service.admission.resolve import ResolvedRequest
from service.errors.problems import Unavailable, Unservable
from service.front_end.front_end import FrontEnd
from service.safety.safety_check import SafetyCheck, ShownImage
from service.safety.verdict import NoVerdict, SafetyBusy, SafetyRefused

RETRY_AFTER_S = 5.0


async def check_safety(front: FrontEnd, caller: Caller, resolved: ResolvedRequest) -> None:
    """Wait for the safety hook's verdict on a request, if a hook is configured.

    Raises:
        Unservable: the hook rejects the request; the message contains its reason.
        Unavailable: the hook returns no verdict, or too many checks are waiting.
        ClientDisconnect: the client disconnected.
    """
    if front.safety is None:
        return
    question = _question(caller, resolved)
    try:
        await caller.while_connected(front.safety.check(question, caller.client))
    except SafetyRefused as refused:
        message = f"this server's safety check refuses the request: {refused}"
        raise Unservable(message, code="refused_by_safety") from None
    except SafetyBusy as busy:
        message = f"{busy}; try again"
        raise Unavailable(message, code="too_many_checks", retry_after_s=RETRY_AFTER_S) from None
    except NoVerdict:
        message = "the request could not be checked for safety; try again"
        raise Unavailable(message, code="safety_unavailable", retry_after_s=RETRY_AFTER_S) from None


def _question(caller: Caller, resolved: ResolvedRequest) -> SafetyCheck:
    return SafetyCheck(
        when="before",
        tenant=caller.tenant,
        model=resolved.spec.name,
        request=without_images(resolved.fields.fields),
        images=tuple(
            ShownImage(name, image.file.media_type, image.data)
            for name, image in resolved.images.items()
        ),
    )
