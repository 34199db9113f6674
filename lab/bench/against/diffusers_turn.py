"""A turn of diffusers with torch.compile: the same requests, stages and JSON as `atelier bench
engine`.

    python -m lab.bench.against.diffusers_turn FOLDER --request '{"width": 1024, …}' --json FILE

FOLDER has configs in diffusers' layout; the request is the one that `atelier bench engine` reports.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lab.bench.against.pipelines import made

BACKENDS: Mapping[str, list[SDPBackend]] = {
    "cudnn": [SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH],
    "flash": [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH],
    "efficient": [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
}
"""torch's GPU attentions, each with `math` as the fallback for unsupported cases."""
AUTO, USUAL = "auto", "default"
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
PRODUCTS, MATRIX_REPEATS = 8, 10


def main() -> None:
    args = parsed()
    Path(args.json).write_text(json.dumps(turn(args)))


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--request", type=json.loads, required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--attention", choices=(AUTO, USUAL, *BACKENDS), default=AUTO)
    parser.add_argument("--mode", choices=MODES, default="default", help="of torch.compile")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--count", action="store_true", help="a step's FLOPs, too")
    parser.add_argument("--side", type=int, default=1024, help="of the matrix product")
    parser.add_argument("--json", required=True)
    return parser.parse_args(words)


@torch.inference_mode()
def turn(args: argparse.Namespace) -> dict[str, Any]:
    device, dtype = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, args.dtype)
    eager = args.eager or not can_compile(device)
    pipeline = made(args.folder, device, dtype)
    request = arguments(pipeline, args.request)
    channels_last(pipeline)
    flops = step_flops(pipeline, request, device) if args.count else None
    attention = chosen(args.attention, pipeline, request, device)
    with using(attention):
        if not eager:
            compiled(pipeline, args.mode)
        warm_s = seconds(lambda: pipeline(**request), device)
        stages = Stages(pipeline, device)
        rate = matrix_flops(args.side, device, dtype)
        forget_peak(device)
        rounds = [stages.of(request) for _ in range(args.repeats)]
    return {
        "seconds": {name: [times[name] for times in rounds] for name in rounds[0]},
        "steps": request["num_inference_steps"],
        "step_flops": flops,
        "matrix_flops": sorted(rate)[len(rate) // 2],
        "peak_bytes": peak_bytes(device),
        "attention": attention,
        "how": "eager" if eager else f"torch.compile, {args.mode}",
        "chip": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "warm_up_s": warm_s,
        "versions": {
            **{name: version(name) for name in ("torch", "diffusers", "transformers")},
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        },
    }


def arguments(pipeline: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the request that the pipeline accepts, and a blank prompt."""
    accepted = inspect.signature(type(pipeline).__call__).parameters
    fields = {
        name: value for name, value in request.items() if name in accepted and value is not None
    }
    fields.pop("sigmas", None)
    negative = {"negative_prompt": ""} if fields.get("true_cfg_scale", 1) > 1 else {}
    return {"prompt": " ", "output_type": "np", **negative, **fields}


def denoisers(pipeline: Any) -> list[Any]:
    names = ("unet", "transformer", "transformer_2")
    return [part for name in names if (part := pipeline.components.get(name)) is not None]


def channels_last(pipeline: Any) -> None:
    """Use channels-last memory in convolutional networks: SDXL's UNet and image VAEs."""
    for name in ("unet", "vae"):
        part = pipeline.components.get(name)
        if part is not None and not is_video(part):
            part.to(memory_format=torch.channels_last)


def is_video(network: Any) -> bool:
    return any(weight.ndim == 5 for weight in network.parameters())


def compiled(pipeline: Any, mode: str) -> None:
    """Compile the denoising networks and an image's decoder. Text encoders run once, uncompiled. A
    video's decoder loops over frames in Python and would be compiled for each frame."""
    for network in denoisers(pipeline):
        network.compile(fullgraph=True, mode=mode)
    if not is_video(pipeline.vae):
        pipeline.vae.decode = torch.compile(pipeline.vae.decode, mode=mode)


def can_compile(device: str) -> bool:
    """Whether torch.compile works; on a CPU it needs a C++ compiler."""
    return device == "cuda" or bool(
        shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    )


def chosen(attention: str, pipeline: Any, request: Mapping[str, Any], device: str) -> str:
    """The fastest of torch's attentions, by one eager step of each."""
    if attention != AUTO or device != "cuda":
        return USUAL if attention == AUTO else attention
    short_request = {**request, "num_inference_steps": 1, "output_type": "latent"}
    times_s = {}
    for name in BACKENDS:
        with using(name):
            try:
                seconds(lambda: pipeline(**short_request), device)
                times_s[name] = min(
                    seconds(lambda: pipeline(**short_request), device) for _ in range(2)
                )
            except (RuntimeError, torch.cuda.OutOfMemoryError):
                torch.cuda.empty_cache()
    return min(times_s, key=lambda name: times_s[name]) if times_s else USUAL


def using(attention: str) -> Any:
    return nullcontext() if attention == USUAL else sdpa_kernel(BACKENDS[attention])


class Stages:
    """Times the stages of a pipeline's requests; each stage waits for the device."""

    def __init__(self, pipeline: Any, device: str) -> None:
        self._pipeline = pipeline
        self._device = device
        self._at: dict[str, float] = {}
        pipeline.encode_prompt = self._noted(pipeline.encode_prompt, after="encoded")
        pipeline.vae.decode = self._noted(pipeline.vae.decode, before="denoised")

    def of(self, request: Mapping[str, Any]) -> dict[str, float]:
        """Seconds of a request's stages. Decoding ends with pixels on the host."""
        self._at = {}
        started = self._now()
        self._pipeline(**request)
        ended = self._now()
        encoded, denoised = self._at["encoded"], self._at["denoised"]
        return {
            "encode": encoded - started,
            "denoise": denoised - encoded,
            "decode": ended - denoised,
            "request": ended - started,
            "step": (denoised - encoded) / request["num_inference_steps"],
        }

    def _noted(self, function: Callable[..., Any], before: str = "", after: str = "") -> Any:
        def timed(*args: Any, **options: Any) -> Any:
            if before:
                self._at.setdefault(before, self._now())
            result = function(*args, **options)
            if after:
                self._at[after] = self._now()
            return result

        return timed

    def _now(self) -> float:
        synchronize(self._device)
        return time.perf_counter()


def step_flops(pipeline: Any, request: Mapping[str, Any], device: str) -> float:
    """FLOPs of a denoising step by torch's count: two steps minus one. On a CPU with plain
    attention, because torch does not count its fused attention there."""
    counts = []
    for steps in (1, 2):
        short_request = {**request, "num_inference_steps": steps, "output_type": "latent"}
        attention = sdpa_kernel([SDPBackend.MATH]) if device == "cpu" else nullcontext()
        with attention, FlopCounterMode(display=False) as counter:
            pipeline(**short_request)
        counts.append(counter.get_total_flops())
    return float(counts[1] - counts[0])


def matrix_flops(side: int, device: str, dtype: torch.dtype) -> list[float]:
    """Matrix FLOP/s, measured like `deploy.bench.engine.matrix`."""
    left, right = (torch.randn(side, side, device=device).to(dtype) / side**0.5 for _ in range(2))

    def products() -> None:
        value = left
        for _ in range(PRODUCTS):
            value = value @ right

    products()
    work = 2.0 * side**3 * PRODUCTS
    return [work / seconds(products, device) for _ in range(MATRIX_REPEATS)]


def seconds(function: Callable[[], Any], device: str) -> float:
    with timing(device) as times_s:
        function()
    return times_s[0]


@contextmanager
def timing(device: str) -> Iterator[list[float]]:
    times_s: list[float] = []
    synchronize(device)
    started = time.perf_counter()
    yield times_s
    synchronize(device)
    times_s.append(time.perf_counter() - started)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def forget_peak(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(device: str) -> int | None:
    """Peak bytes of torch's allocator, weights included; None on a CPU."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else None


if __name__ == "__main__":
    main()
