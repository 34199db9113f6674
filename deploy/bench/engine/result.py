"""Measurements of one model, and the figures that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

from deploy.bench.engine.ask import EngineCase
from deploy.bench.engine.matrix import Rate
from deploy.bench.engine.memory import Memory
from models.interface.pipeline import Fields


@dataclass(frozen=True)
class Spread:
    """Spread of several repeats."""

    median: float
    low: float
    """The lower quartile; of fewer than four repeats the least."""
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the median with the quartiles, or the extremes of fewer than four values."""
        if len(values) < 4:
            return cls(median(values), min(values), max(values))
        low, middle, high = quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)


@dataclass(frozen=True)
class Adapted:
    """Rounds in which each row had adapters; each followed one without any."""

    seconds: Mapping[str, Sequence[float]]
    """Seconds by stage, of each repeat."""
    file_bytes: int
    """Size of one row's adapters, as files."""
    bank_bytes: int
    """Bytes of the banks on each device, with room for the adapters of all rows."""
    load_s: float
    """Median seconds from a request for an adapter to its being there, from local files."""


@dataclass(frozen=True)
class Result:
    """Seconds are of a whole batch, each on its own clock; FLOPs are of one request."""

    ask: EngineCase
    fields: Fields
    bucket: str
    family: str
    devices: int
    chip: str
    layout: str
    why: str
    """Reason for the layout."""
    is_tiled: bool
    """Whether images are decoded in tiles."""
    steps: int
    work: float
    """Operations of all steps of one request: products and convolutions."""
    seconds: Mapping[str, Sequence[float]]
    """Seconds by stage, of each repeat."""
    matrix: tuple[Rate, Rate]
    """Matrix rates before and after."""
    memory: Memory
    weights_s: float
    """Seconds of making the weights, the layout's search included."""
    compile_s: float
    adapted: Adapted | None = None
    """Measurements with adapters; None: there are none."""

    @property
    def step_s(self) -> list[float]:
        """Seconds a step of the batch, over its denoising loop."""
        return [seconds / self.steps for seconds in self.seconds["denoise"]]

    @property
    def matrix_flops(self) -> float:
        """A second, of all devices together."""
        return median([*self.matrix[0].flops, *self.matrix[1].flops])

    @property
    def mfu(self) -> list[float]:
        """Share of that rate over the denoising loop."""
        work = self.work * self.ask.batch
        return [work / seconds / self.matrix_flops for seconds in self.seconds["denoise"]]

    @property
    def around(self) -> list[float]:
        """Share of a request that encodes and decodes."""
        stages = zip(*(self.seconds[name] for name in ("encode", "denoise", "decode")), strict=True)
        return [(encode + decode) / (encode + steps + decode) for encode, steps, decode in stages]

    def as_json(self) -> dict[str, Any]:
        """Seconds, bytes and FLOPs; lists have one entry a repeat."""
        prompts = ("prompt", "negative_prompt", "seed", "num_images")
        return {
            "model": self.ask.model,
            "tiny": self.ask.tiny,
            "family": self.family,
            "request": {name: x for name, x in self.fields.items() if name not in prompts},
            "bucket": self.bucket,
            "batch": self.ask.batch,
            "exact_rows": self.ask.exact_rows or self.ask.batch,
            "batching": self.ask.batching,
            "dtype": self.ask.dtype,
            "activation_dtype": self.ask.activation_dtype or self.ask.dtype,
            "eight_bit": self.ask.eight_bit,
            "vae_tiling": self.is_tiled,
            "chip": self.chip,
            "devices": self.devices,
            "layout": self.layout,
            "why": self.why,
            "steps": self.steps,
            "request_flops": self.work,
            "step_flops": self.work / self.steps,
            "seconds": {**self.seconds, "step": self.step_s},
            "median_s": {
                name: Spread.of(times).median
                for name, times in {**self.seconds, "step": self.step_s}.items()
            },
            "mfu": self.mfu,
            "around": self.around,
            "matrix": [asdict(rate) for rate in self.matrix],
            "matrix_flops": self.matrix_flops,
            "memory": asdict(self.memory),
            "weights_s": self.weights_s,
            "compile_s": self.compile_s,
            "adapters": self._adapters(),
        }

    def _adapters(self) -> dict[str, Any] | None:
        if self.adapted is None:
            return None
        times = self.adapted.seconds["denoise"]
        pairs = zip(times, self.seconds["denoise"], strict=True)
        return {
            **asdict(self.adapted),
            "rank": self.ask.lora_rank,
            "seconds": {**self.adapted.seconds, "step": [one / self.steps for one in times]},
            "of_plain": [one / plain for one, plain in pairs],
        }
