"""An outcome for people, in one line."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

Json = dict[str, Any]


def line(one: Json) -> str:
    return f"{one['stage']:22} {one['state']:8} {one['seconds']:5.0f} s  {told(one)}"


def told(one: Json) -> str:
    """The figures of a stage, and why it did not end well."""
    result = one["result"] or {}
    figures = speed(result["results"]) if "results" in result else pixels(result)
    return "; ".join(part for part in (figures, *result.get("faults", ()), one["why"]) if part)


def pixels(result: Json) -> str:
    if not result:
        return ""
    same = "same bytes in company" if result["alone"] == result["together"] else "not the same"
    attention = sum(count for name, count in result["calls"].items() if "fmha" in name)
    return (
        f"{min(result['psnr_db'])} dB and {max(result['levels'])} levels from diffusers, {same},"
        f" {attention} calls of cuDNN's attention, {result['chip']}"
    )


def speed(results: Sequence[Json]) -> str:
    """Of one model against diffusers: ratios above one are ours."""
    return "; ".join(
        f"step {1000 * step(one):.1f} ms, MFU {one['mfu']['ours']:.0%}, {against(one['ratios'])}"
        for one in results
    )


def against(ratios: dict[str, list[float]]) -> str:
    if not ratios["step"]:
        return "theirs was not measured"
    step, request = (median(ratios[stage]) for stage in ("step", "request"))
    return f"{step:.2f} times theirs by step, {request:.2f} by request"


def step(one: Json) -> float:
    """Seconds of one of ours, the median."""
    return median(seconds for turn in one["ours"] for seconds in turn["seconds"]["step"])
