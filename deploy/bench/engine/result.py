"""Measurements of one model, and the statistics derived from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

from deploy.bench.engine.case import EngineCase
from deploy.bench.engine.matrix import Rate
from deploy.bench.engine.memory import Memory
from models.interface.pipeline import Fields


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of a benchmark's repeated measurements."""

    median: float
    low: float
    """The lower quartile; with fewer than four repeats, the minimum."""
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the median with the quartiles; with fewer than four values, with the extremes."""
        if len(values) < 4:
            return cls(median(values), min(values), max(values))
        low, middle, high = quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)


@dataclass(frozen=True)
class AdapterTimes:
    """Rounds in which each row has adapters; each follows a round without adapters."""

    seconds: Mapping[str, Sequence[float]]
    """Seconds by stage, for each repeat."""
    file_bytes: int
    """Size of one row's adapter files."""
    bank_bytes: int
    """Bytes of the banks on each device, with pages for the adapters of all rows."""
    load_s: float
    """Median seconds of loading an adapter from local files."""


@dataclass(frozen=True)
class Result:
    """Measurements of one model at one size. Seconds are of a whole batch; FLOPs of one request."""

    case: EngineCase
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
    """FLOPs of all steps of one request: products and convolutions."""
    seconds: Mapping[str, Sequence[float]]
    """Seconds by stage, for each repeat."""
    matrix: tuple[Rate, Rate]
    """Matrix rates before and after the rounds."""
    memory: Memory
    weights_s: float
    """Seconds of generating the weights, including the search for a layout."""
    compile_s: float
    adapted: AdapterTimes | None = None
    """Measurements with adapters, or None."""

    @property
    def step_s(self) -> list[float]:
        """Seconds per step of the batch, over the denoising loop."""
        return [seconds / self.steps for seconds in self.seconds["denoise"]]

    @property
    def matrix_flops(self) -> float:
        """Median matrix rate in FLOP/s of all devices together."""
        return median([*self.matrix[0].flops, *self.matrix[1].flops])

    @property
    def mfu(self) -> list[float]:
        """Denoising loop's share of the matrix rate (MFU)."""
        work = self.work * self.case.batch
        return [work / seconds / self.matrix_flops for seconds in self.seconds["denoise"]]

    @property
    def encode_decode_share(self) -> list[float]:
        """Share of encoding and decoding in a request."""
        stages = zip(*(self.seconds[name] for name in ("encode", "denoise", "decode")), strict=True)
        return [(encode + decode) / (encode + steps + decode) for encode, steps, decode in stages]

    def as_json(self) -> dict[str, Any]:
        """Return seconds, bytes and FLOPs as JSON; lists have one entry per repeat."""
        prompts = ("prompt", "negative_prompt", "seed", "num_images")
        return {
            "model": self.case.model,
            "tiny": self.case.tiny,
            "family": self.family,
            "request": {name: x for name, x in self.fields.items() if name not in prompts},
            "bucket": self.bucket,
            "batch": self.case.batch,
            "exact_rows": self.case.exact_rows or self.case.batch,
            "batching": self.case.batching,
            "dtype": self.case.dtype,
            "activation_dtype": self.case.activation_dtype or self.case.dtype,
            "eight_bit": self.case.eight_bit,
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
            "around": self.encode_decode_share,
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
            "rank": self.case.lora_rank,
            "seconds": {
                **self.adapted.seconds,
                "step": [seconds / self.steps for seconds in times],
            },
            "of_plain": [seconds / plain for seconds, plain in pairs],
        }
