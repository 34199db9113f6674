"""Orders of clients: few distinct requests, each made once undisturbed, and many orders of them."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

from PIL import Image

PICTURES, CLIPS = "pictures", "clips"
"""Names of the two models."""
TENANTS = {"acme": 3.0, "bolt": 1.0, "coop": 1.0}
"""Weights by tenant."""
MAX_STEPS = 1000
"""Steps of an image that takes a second or two, enough to interrupt it midway."""
STORM = 20
"""Number of orders in a storm."""
LONG_S, SHORT_S = 3600.0, 2.0
"""A deadline that every job meets, and one that few meet."""


def _picture() -> str:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((32, 32)).convert("RGB").save(file, "png")
    return base64.b64encode(file.getvalue()).decode()


def _pictures(seed: int, **fields: Any) -> dict[str, Any]:
    sizes = {"width": 32, "height": 32, "max_sequence_length": 16}
    return {"model": PICTURES, "prompt": "a red circle", "seed": seed, **sizes, **fields}


def _clip(seed: int) -> dict[str, Any]:
    sizes = {"width": 32, "height": 32, "num_frames": 5, "max_sequence_length": 16}
    steps = {"num_inference_steps": 400, "output": {"format": "gif"}}
    return {"model": CLIPS, "prompt": "a blue star", "seed": seed, **sizes, **steps}


AUDITION, FINISHED = "audition", "finished"
"""An audition, and the request whose outputs its continuation has."""
AGAIN = "again"
"""Request that may reuse an equal job's files; all others are denoised."""
REQUESTS: dict[str, dict[str, Any]] = {
    "short": _pictures(1, num_inference_steps=40),
    "long": _pictures(2, num_inference_steps=MAX_STEPS),
    "longest": _pictures(7, num_inference_steps=MAX_STEPS, num_images=4),
    "three": _pictures(3, num_inference_steps=400, num_images=3),
    "wide": _pictures(4, num_inference_steps=600, width=48),
    "from an image": _pictures(5, num_inference_steps=400, image=_picture(), strength=0.9),
    "clip": _clip(6),
    FINISHED: _pictures(8, num_inference_steps=400, num_images=2),
    AGAIN: _pictures(9, num_inference_steps=600, num_images=2),
    AUDITION: _pictures(8, num_inference_steps=400, num_images=2, stop_at_step=200),
}


class FollowUp(StrEnum):
    """Action of a client after its request was accepted."""

    WAITS = "waits"
    CANCELS = "cancels"
    DELETES = "deletes"
    VERIFIES = "verifies"
    """Has an output of the job generated again and compared, once the job has succeeded."""


@dataclass(frozen=True)
class Order:
    """A client's request, with its repetitions and the action after it."""

    number: int
    at_s: float
    """Seconds since the start."""
    tenant: str
    request: str
    priority: str
    deadline_s: float | None
    key: str | None
    """Idempotency key."""
    repeats: int
    """Number of further posts of the same request."""
    at_once: bool = False
    """Whether repetitions are sent without waiting for an answer."""
    then: FollowUp = FollowUp.WAITS

    @property
    def body(self) -> dict[str, Any]:
        deadline = {} if self.deadline_s is None else {"deadline_s": self.deadline_s}
        fields = {"priority": self.priority, "metadata": {"order": str(self.number)}}
        reuse = {} if self.request == AGAIN else {"reuse": False}
        return {**REQUESTS[self.request], **fields, **deadline, **reuse}


def make(seed: int, span_s: float, count: int) -> tuple[Order, ...]:
    """Make orders of a time span in order of time, half of them at the start so that pools are
    busy. Two of three have an idempotency key. In addition, each `STORM` orders bring a storm of as
    many orders that are stopped once accepted."""
    random = Random(f"orders {seed}")
    later = sorted(round(random.uniform(0, span_s), 3) for _ in range(count // 2))
    times = [0.0] * (count - count // 2) + later
    placed = [_order(random, number, at_s) for number, at_s in enumerate(times)]
    for _ in range(count // STORM):
        placed += _storm(random, len(placed), round(random.uniform(0, span_s), 3))
    return tuple(placed)


def _storm(random: Random, first: int, at_s: float) -> list[Order]:
    """Jobs of one tenant that each fill a pool and are stopped before or as they start."""
    tenant = random.choice(sorted(TENANTS))
    return [
        Order(
            number=first + index,
            at_s=at_s,
            tenant=tenant,
            request="longest",
            priority="high",
            deadline_s=None,
            key=None,
            repeats=0,
            then=random.choice((FollowUp.CANCELS, FollowUp.DELETES)),
        )
        for index in range(STORM)
    ]


def _order(random: Random, number: int, at_s: float) -> Order:
    has_key = random.random() < 2 / 3
    return Order(
        number=number,
        at_s=at_s,
        tenant=random.choice(sorted(TENANTS)),
        request=random.choice(sorted(REQUESTS)),
        priority=random.choice(("low", "normal", "normal", "high")),
        deadline_s=random.choice((None, None, None, LONG_S, SHORT_S)),
        key=f"order {number}" if has_key else None,
        repeats=random.choice((0, 0, 1, 2)) if has_key else 0,
        at_once=random.random() < 1 / 2,
        then=random.choices(list(FollowUp), (75, 5, 5, 15))[0],
    )
