"""One-sentence explanation of a layout, for logs."""

from __future__ import annotations

from collections.abc import Sequence

from workers.plan.duration import duration
from workers.plan.estimate import Estimate
from workers.plan.trace import Sketch
from workers.slice.chips import GIB


def why(chosen: Estimate, sketch: Sketch, refused: Sequence[Estimate]) -> str:
    """Explain the chosen layout: the purpose of each split axis, estimated time and memory."""
    reasons = [
        reason(chosen, sketch, refused) for reason in (_cfg, _context, _tensor, _fsdp, _data)
    ]
    parts = "; ".join(part for part in reasons if part) or "nothing is split"
    return (
        f"{parts}; estimated {duration(chosen.step_s)} a step, of "
        f"which {duration(chosen.step.traffic_s)} are for exchange, and "
        f"{chosen.total_bytes / GIB:.1f} of {chosen.chip.memory_bytes / GIB:.1f} GiB a device"
    )


def _cfg(chosen: Estimate, sketch: Sketch, refused: Sequence[Estimate]) -> str:
    size = chosen.shape.size("cfg")
    if size == 1:
        return ""
    if sketch.prompts == 1:
        return "without guidance cfg serves rows"
    return f"cfg {size} halves each step's two guidance passes for one small exchange"


def _context(chosen: Estimate, sketch: Sketch, refused: Sequence[Estimate]) -> str:
    size = chosen.shape.size("context")
    if size == 1:
        return ""
    how = "a ring" if chosen.shape.ring == size else "Ulysses" if chosen.shape.ring == 1 else "both"
    return f"context {size} shares {sketch.tokens} tokens by {how}"


def _tensor(chosen: Estimate, sketch: Sketch, refused: Sequence[Estimate]) -> str:
    size = chosen.shape.size("tensor")
    return f"tensor {size} splits heads and feed-forward with their weights" if size > 1 else ""


def _fsdp(chosen: Estimate, sketch: Sketch, refused: Sequence[Estimate]) -> str:
    size = chosen.shape.size("fsdp")
    if size == 1:
        return ""
    smaller = [estimate for estimate in refused if estimate.shape.size("fsdp") < size]
    if not smaller:
        return f"fsdp {size} spreads weights of {sum(sketch.networks.values()) / GIB:.1f} GiB"
    least = min(estimate.total_bytes for estimate in smaller) / GIB
    limit = chosen.chip.memory_bytes / GIB
    return f"fsdp {size} because with less a device would need {least:.1f} of {limit:.1f} GiB"


def _data(chosen: Estimate, sketch: Sketch, refused: Sequence[Estimate]) -> str:
    size = chosen.shape.size("data")
    return f"data {size} has {size} requests side by side" if size > 1 else ""
