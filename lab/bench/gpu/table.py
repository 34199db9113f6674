"""An outcome as one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

Json = dict[str, Any]


def line(outcome: Json) -> str:
    facts = f"{outcome['stage']:24} {outcome['state']:8} {outcome['seconds']:5.0f} s"
    return f"{facts}  {describe(outcome)}"


def describe(outcome: Json) -> str:
    """Figures of a stage, and the reason of a failure."""
    result = outcome["result"] or {}
    figures = speeds(result["results"]) if "results" in result else pixels(result)
    return "; ".join(part for part in (figures, *result.get("faults", ()), outcome["why"]) if part)


def pixels(result: Json) -> str:
    if not result:
        return ""
    same = "same bytes in company" if result["alone"] == result["together"] else "not the same"
    attention = sum(count for name, count in result["calls"].items() if "fmha" in name)
    return (
        f"{min(result['psnr_db'])} dB and {max(result['levels'])} levels from diffusers, {same},"
        f" {attention} calls of cuDNN's attention, {result['chip']}"
    )


def speeds(results: Sequence[Json]) -> str:
    """Figures of comparisons, or of the engine alone."""
    return "; ".join(speed(row) if "ratios" in row else engine(row) for row in results)


def engine(row: Json) -> str:
    """Times, MFU and memory of a batch of requests, or the reason why they were refused."""
    if "refused" in row:
        return str(row["refused"])
    times = ", ".join(f"{name} {1000 * row['median_s'][name]:.1f} ms"
                      for name in ("step", "encode", "decode"))  # fmt: skip
    peak = row["memory"]["peak_bytes"] / 2**30
    return (
        f"{row['batch']} at once: {times}, MFU {median(row['mfu']):.0%}, peak {peak:.2f} GiB by the"
        f" {row['memory']['by']}, compiled in {row['compile_s']:.0f} s"
    )


def speed(row: Json) -> str:
    """Step time, MFU and ratios of a model against diffusers; ratios above one favor Atelier."""
    mfu = row["mfu"]["ours"]
    return f"step {1000 * step(row):.1f} ms, MFU {mfu:.0%}, {against(row['ratios'])}"


def against(ratios: dict[str, list[float]]) -> str:
    if not ratios["step"]:
        return "theirs was not measured"
    step, request = (median(ratios[stage]) for stage in ("step", "request"))
    return f"{step:.2f} times theirs by step, {request:.2f} by request"


def step(model: Json) -> float:
    """Median seconds of Atelier's steps."""
    return median(seconds for turn in model["ours"] for seconds in turn["seconds"]["step"])
