"""Full-width networks with random weights: effects of the optimizations without training.

A complete pipeline runs, but only its denoising network has published sizes: text encoders and
autoencoder are thin, prompts are random words. Computation is in float32, as in the tables of the
demo models, whatever the weights' dtype. The images are noise-like, so the compared quantity is the
sum of all steps' changes.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from lab.bench.quality.drawing import Cost, ImageGenerator, cost, drawn
from models import published, registry
from models.interface.pipeline import Pipeline, PyTree
from models.loading.random_weights import RandomWeights
from models.loading.sources import Reader
from models.spec.quality_presets import EXACT, OPTIMIZATIONS, Quality, StepCache
from models.spec.step_plan import PlannedCache
from models.text.tokenizer import BlankTokenizer, Tokenizer, Tokens
from models.weights.quantize import Rounding
from workers.media.psnr import psnr_db

WORDS = 512
SMALL = 1 << 24
"""Bytes below which an array stays in memory instead of a file."""
_T5 = {"num_layers": 1, "num_heads": 4, "d_ff": 64, "vocab_size": WORDS}
_CLIP = {"num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": WORDS}
_VAE = {"block_out_channels": [32] * 4, "layers_per_block": 1}

Changes = Mapping[str, Mapping[str, Any]]
"""Changes of published configs, by component."""

PLANNED = {
    f"planned, {len(whole)} of 8": Quality(
        step_cache=PlannedCache(kind="planned", steps=8, whole=whole, estimate="taylor")
    )
    for whole in ((0, 1, 3, 5), (0, 1, 4), (0, 1))
}
"""Plans of the usual form, measured only for time, because random networks are unpredictable."""
LOOSE = PLANNED | {
    "first-block, 0.6": Quality(step_cache=StepCache(kind="first-block", threshold=0.6)),
    "teacache, 1.0": Quality(step_cache=StepCache(kind="teacache", threshold=1.0)),
}
"""Thresholds at which random networks skip steps; the presets' thresholds are for trained
networks."""


@dataclass(frozen=True)
class Wide:
    """A published network and the request to run."""

    title: str
    checkpoint: str
    """A name of `models.published.CHECKPOINTS`."""
    thin: Changes
    fields: Mapping[str, Any]
    """Fields of the request in addition to the model's defaults."""
    network: Changes = field(default_factory=dict)
    """Changes of the denoising network, if only part of it runs."""
    loose: Mapping[str, Quality] = field(default_factory=lambda: LOOSE)
    stored: str = "float32"
    """Dtype of the weights: bfloat16 halves the memory and adds a second or two per step."""


def _flux(double: int, single: int, stored: str) -> Wide:
    partial = f"{double} of 19 double and {single} of 38 single blocks"
    return Wide(
        f"FLUX.1 dev, {'whole' if (double, single) == (19, 38) else partial}, 96 x 96, true CFG 2",
        "flux-dev",
        {"text_encoder": _CLIP, "text_encoder_2": _T5, "vae": _VAE},
        {"width": 96, "height": 96, "max_sequence_length": 32, "true_cfg_scale": 2.0},
        {"transformer": {"num_layers": double, "num_single_layers": single}},
        stored=stored,
    )


WIDE: Mapping[str, Wide] = {
    "wan": Wide(
        "Wan 2.1 T2V 1.3B, whole, 96 x 96, 1 frame, guidance 5",
        "wan2.1-1.3b",
        {"text_encoder": _T5, "vae": {"base_dim": 8, "num_res_blocks": 1}},
        {"width": 96, "height": 96, "num_frames": 1, "max_sequence_length": 32},
    ),
    "wan-few": Wide(
        "Wan 2.1 T2V 1.3B, 4 of 30 layers, 128 x 128, 9 frames, guidance 5",
        "wan2.1-1.3b",
        {"text_encoder": _T5, "vae": {"base_dim": 8, "num_res_blocks": 1}},
        {"width": 128, "height": 128, "num_frames": 9, "max_sequence_length": 32},
        {"transformer": {"num_layers": 4}},
    ),
    "sdxl": Wide(
        "SDXL base 1.0, whole, 128 x 128, guidance 5",
        "sdxl",
        {"text_encoder": _CLIP, "text_encoder_2": _CLIP, "vae": _VAE},
        {"width": 128, "height": 128},
        loose={},
        stored="bfloat16",
    ),
    "flux": _flux(1, 2, "bfloat16"),
    "flux-whole": _flux(19, 38, "bfloat16"),
}
"""The weights take 5.7, 0.9, 5.2, 1.4 and 24 GB."""


def costs(
    wide: Wide,
    seeds: int,
    steps: int,
    presets: Sequence[str] | None,
    scratch: Path | None = None,
) -> dict[str, Cost]:
    """Measure presets of a network.

    Args:
        presets: presets in order; None: all of the model.
        scratch: folder for files with the weights; None: weights stay in memory.
    """
    pipeline = opened(wide, Mapped(scratch) if scratch else None)
    names = list(pipeline.spec.qualities) if presets is None else presets
    drawings = drawn(
        ImageGenerator(pipeline, added),
        requests(wide, pipeline, seeds, steps),
        unlike(pipeline.spec.qualities, names),
    )
    return {
        name: cost(preset_drawings, drawings[EXACT], near_db)
        for name, preset_drawings in drawings.items()
    }


def opened(wide: Wide, reader: Reader | None = None) -> Pipeline:
    """Load a network's pipeline. Args: reader: default: random weights and words."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        published.write(wide.checkpoint, folder)
        for component, change in {**wide.thin, **wide.network}.items():
            file = folder / component / "config.json"
            file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
        return registry.load(
            wide.checkpoint,
            temporary,
            wide.stored,
            {},
            activation_dtype="float32",
            reader=reader or RandomWords(),
            qualities=wide.loose,
            rounding=Rounding("beside"),
        )


def requests(wide: Wide, pipeline: Pipeline, seeds: int, steps: int) -> list[dict[str, Any]]:
    """Requests with different random words."""
    fields = {**pipeline.spec.defaults, **wide.fields, "num_inference_steps": steps}
    return [
        {**fields, "prompt": f"asked {seed}", "negative_prompt": f"not {seed}", "seed": seed}
        for seed in range(seeds)
    ]


def unlike(qualities: Mapping[str, Quality], names: Sequence[str]) -> list[str]:
    """Names of presets with distinct optimizations; the first of equal presets stays."""
    first: dict[Quality, str] = {}
    for name in names:
        first.setdefault(qualities[name].restricted_to(OPTIMIZATIONS), name)
    return list(first.values())


def added(first: PyTree, last: PyTree) -> np.ndarray:
    """Total change of the latents; with the noise included, all results would look alike."""
    return np.asarray(last["latents"]) - np.asarray(first["latents"])


def near_db(result: np.ndarray, exact: np.ndarray) -> float:
    return psnr_db(result, exact, float(np.ptp(exact)))


class Words(BlankTokenizer):
    """Tokenizer that returns random words, the same for the same prompt."""

    def encode_with_mask(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        blank = super().encode_with_mask(texts, max_length)
        generators = [np.random.default_rng(zlib.crc32(text.encode())) for text in texts]
        ids = [rng.integers(WORDS, size=blank.ids.shape[1], dtype=np.int32) for rng in generators]
        return Tokens(np.stack(ids), blank.mask)


class RandomWords(RandomWeights):
    """A `models.loading.sources.Reader` with random weights and random words."""

    def clip_tokenizer(self, folder: Path) -> Tokenizer:
        return Words()

    def t5_tokenizer(self, folder: Path) -> Tokenizer:
        return Words()


class Mapped(RandomWords):
    """Like `RandomWords`, with large arrays in memory-mapped files.

    A step reads them in order at the disk's speed. Only CPUs compute on such memory.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def _transfer(self, array: Array) -> Array:
        if array.nbytes < SMALL:
            return array
        with TemporaryFile(dir=self._folder) as file:  # the pages exist until they are unmapped
            np.asarray(array).tofile(file)
            file.flush()
            os.fsync(file.fileno())
            pages = np.memmap(file, array.dtype, mode="r", shape=array.shape)
        array.delete()
        return jax.device_put(pages, may_alias=True)
