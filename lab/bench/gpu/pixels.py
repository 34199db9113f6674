"""Generate with one demo model on this machine, and check the pixels.

    python -m lab.bench.gpu.pixels flux --dtype float32 --json FILE

The reference is diffusers on this machine's CPU in float32. In float32, products run at full
precision and the image must match within 60 dB and two levels; in bfloat16, within
`BFLOAT16_PSNR_DB`. In both, bytes must not depend on the batch. In bfloat16 on a GPU, attention
must be cuDNN's.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import inspect
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import diffusers
import jax
import numpy as np
import torch

import models.demo
from models.interface.pipeline import Fields, Pipeline
from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from workers.engine.engine import Engine
from workers.engine.generation import EngineOutput
from workers.loading import model as loading
from workers.loading.model import MeshSlice
from workers.media.psnr import psnr_db
from workers.programs import warmup

DEMO = Path(models.demo.__file__).parent
PROMPTS = {
    "flux": ["a red circle on a blue background", "a small green cross on a white background"],
    "sdxl": ["a red circle on a blue background", "a small green cross on a white background"],
    "wan": ["a red circle moves to the right on a blue background"],
}
SEEDS = (0, 1)
PSNR_DB, LEVELS = 60.0, 2
BFLOAT16_PSNR_DB = 36.0
"""The CPU's bfloat16 images of the demo Flux have 42 to 52 dB; a device that rounds in other places
may be off by twice that error."""
CALL = re.compile(r'custom_call_target="([^"]+)"')


def main(words: Sequence[str] | None = None) -> int:
    """Check a family; returns 1 if its pixels are wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=PROMPTS)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args(words)
    result = proved(args.family, args.dtype)
    args.json.write_text(json.dumps(result, indent=1))
    for fault in result["faults"]:
        print(fault, file=sys.stderr)
    return 1 if result["faults"] else 0


def proved(family: str, dtype: str) -> dict[str, Any]:
    """Generate and compare; returns the outputs' digests, distances and faults."""
    started = time.monotonic()
    pipeline, opened = load(family, dtype)
    requests = requests_of(pipeline, family)
    alone, together, calls = asyncio.run(drawn(pipeline, opened, requests))
    references = Reference(family)
    nearness = [near(output.pixels, references(fields))
                for output, fields in zip(alone, requests, strict=True)]  # fmt: skip
    device = opened.layout.mesh.devices.flat[0]
    result = {
        "family": family,
        "dtype": dtype,
        "platform": device.platform,
        "chip": device.device_kind,
        "jax": jax.__version__,
        "torch": torch.__version__,
        "diffusers": diffusers.__version__,
        "psnr_db": [round(psnr, 2) for psnr, _ in nearness],
        "levels": [levels for _, levels in nearness],
        "alone": [digest(item) for item in alone],
        "together": [digest(item) for item in together],
        "calls": calls,
        "seconds": round(time.monotonic() - started, 1),
    }
    return {**result, "faults": faults(result)}


def faults(result: Mapping[str, Any]) -> list[str]:
    """Faults as sentences; empty if everything matches."""
    sentences = []
    if result["alone"] != result["together"]:
        sentences.append("an image beside others is not the image alone")
    is_float32 = result["dtype"] == "float32"
    psnr, levels = min(result["psnr_db"]), max(result["levels"])
    bound = PSNR_DB if is_float32 else BFLOAT16_PSNR_DB
    if psnr < bound or (is_float32 and levels > LEVELS):
        sentences.append(f"not diffusers' image: {psnr} dB, {levels} levels")
    if is_float32:
        return sentences
    if result["platform"] == "gpu" and not any("fmha" in name for name in result["calls"]):
        sentences.append("no attention is cuDNN's")
    return sentences


def load(family: str, dtype: str) -> tuple[Pipeline, MeshSlice]:
    """Load the demo model on this machine's first device, as a worker does."""
    model = ModelSettings.model_validate({"source": str(DEMO / family), "dtype": dtype})
    precision = "highest" if dtype == "float32" else "default"
    pool = PoolSettings.model_validate(
        {"model": f"{family}-demo", "precision": precision, "slots": 4}
    )
    devices = range(1)
    loading.set_up(pool, model, devices)
    return loading.load("gpu", pool, model, jax.devices()[: len(devices)])


def requests_of(pipeline: Pipeline, family: str) -> list[Fields]:
    """Every prompt with every seed."""
    fields = [{"prompt": prompt, "seed": seed} for prompt in PROMPTS[family] for seed in SEEDS]
    return warmup.requests(pipeline.spec, fields)


async def drawn(
    pipeline: Pipeline, opened: MeshSlice, requests: Sequence[Fields]
) -> tuple[list[EngineOutput], list[EngineOutput], dict[str, int]]:
    """Outputs of each request alone and of all in a batch, and counts of the libraries' kernels in
    the steps."""
    engine = Engine(pipeline, opened.layout, slots=len(requests))
    try:
        await engine.readiness.warm_up(requests[:1])
        alone = [await engine.generate(fields, {}) for fields in requests]
        together = await asyncio.gather(*(engine.generate(fields, {}) for fields in requests))
        return alone, together, calls_of(engine, warmup.prepare(pipeline, requests[0]))
    finally:
        engine.close()


def calls_of(engine: Engine, prepared: Any) -> dict[str, int]:
    """Custom calls of the compiled steps by name; a loop over layers counts once."""
    step_kinds = engine.programs.of(prepared).step_kinds.values()
    texts = [
        inspect.unwrap(program.result()).as_text() or ""
        for step_kind in step_kinds
        for program in step_kind.programs.values()
    ]
    return dict(Counter(name for text in texts for name in CALL.findall(text)))


class Reference:
    """diffusers' image or frames of a request, on the CPU in float32, as uint8."""

    def __init__(self, family: str) -> None:
        self._pipeline = diffusers.DiffusionPipeline.from_pretrained(DEMO / family)
        self._pipeline.to(torch.float32)
        self._pipeline.set_progress_bar_config(disable=True)
        self._known = inspect.signature(type(self._pipeline).__call__).parameters

    def __call__(self, fields: Fields) -> np.ndarray:
        arguments = {name: value for name, value in fields.items()
               if name in self._known and value is not None}  # fmt: skip
        generator = torch.Generator("cpu").manual_seed(fields["seed"])
        output = self._pipeline(**arguments, generator=generator, output_type="np")
        if hasattr(output, "frames"):
            return np.asarray(output.frames[0] * 255).astype(np.uint8)
        return np.asarray(output.images[0] * 255).round().astype(np.uint8)


def near(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, int]:
    """PSNR in dB, and the largest difference in levels."""
    levels = np.abs(ours.astype(int) - theirs.astype(int)).max()
    return psnr_db(ours, theirs), int(levels)


def digest(picture: EngineOutput) -> str:
    return hashlib.sha256(picture.pixels.tobytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
