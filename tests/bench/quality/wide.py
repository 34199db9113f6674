"""Networks of full width with random weights: what the levers change where nothing was learnt.

A whole pipeline draws, of whose networks the denoising one alone is as published: text encoders and
autoencoder are thin, prompts are random words. All is computed in float32, as in the tables of the
demo models, whatever the weights are stored in. Nobody would know these images again, so what is
compared is what all steps together added to the noise.
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

from models import published, registry
from models.interface.pipeline import Pipeline, PyTree
from models.loading.random_weights import RandomWeights
from models.loading.sources import Reader
from models.spec.quality_presets import EXACT, LEVERS, Quality, StepCache
from models.spec.step_plan import PlannedCache
from models.text.tokenizer import BlankTokenizer, Tokenizer, Tokens
from models.weights.quantize import Rounding
from tests.bench.quality.drawing import Cost, Drawer, cost, drawn
from workers.media.psnr import psnr_db

WORDS = 512
SMALL = 1 << 24
"""Bytes of an array that stays in memory, whatever the others do."""
_T5 = {"num_layers": 1, "num_heads": 4, "d_ff": 64, "vocab_size": WORDS}
_CLIP = {"num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": WORDS}
_VAE = {"block_out_channels": [32] * 4, "layers_per_block": 1}

Changes = Mapping[str, Mapping[str, Any]]
"""Component → what its config has otherwise than the published one."""

PLANNED = {
    f"planned, {len(whole)} of 8": Quality(
        step_cache=PlannedCache(kind="planned", steps=8, whole=whole, estimate="taylor")
    )
    for whole in ((0, 1, 3, 5), (0, 1, 4), (0, 1))
}
"""Plans of the usual form: their time is asked here, since random networks cannot be foretold."""
LOOSE = PLANNED | {
    "first-block, 0.6": Quality(step_cache=StepCache(kind="first-block", threshold=0.6)),
    "teacache, 1.0": Quality(step_cache=StepCache(kind="teacache", threshold=1.0)),
}
"""Thresholds at which such networks leave steps out; the presets' own are for trained ones."""


@dataclass(frozen=True)
class Wide:
    """A published network, and what it draws."""

    title: str
    checkpoint: str
    """A name of `models.published.CHECKPOINTS`."""
    thin: Changes
    fields: Mapping[str, Any]
    """Of the request, beyond the model's defaults."""
    network: Changes = field(default_factory=dict)
    """Of the denoising network, where not all of it is run."""
    loose: Mapping[str, Quality] = field(default_factory=lambda: LOOSE)
    stored: str = "float32"
    """Dtype of the weights: bfloat16 takes half the memory, and a second or two more a step."""


def _flux(double: int, single: int, stored: str) -> Wide:
    of = f"{double} of 19 double and {single} of 38 single blocks"
    return Wide(
        f"FLUX.1 dev, {'whole' if (double, single) == (19, 38) else of}, 96 x 96, true CFG 2",
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
"""Their weights take 5.7, 0.9, 5.2, 1.4 and 24 GB."""


def costs(
    wide: Wide,
    seeds: int,
    steps: int,
    presets: Sequence[str] | None,
    scratch: Path | None = None,
) -> dict[str, Cost]:
    """Args:
    presets: in their order; None: all that the model has.
    scratch: a folder in whose files the weights lie; None: they lie in memory.
    """
    pipeline = opened(wide, Mapped(scratch) if scratch else None)
    names = list(pipeline.spec.qualities) if presets is None else presets
    drawings = drawn(
        Drawer(pipeline, added),
        requests(wide, pipeline, seeds, steps),
        unlike(pipeline.spec.qualities, names),
    )
    return {name: cost(own, drawings[EXACT], near_db) for name, own in drawings.items()}


def opened(wide: Wide, reader: Reader | None = None) -> Pipeline:
    """Args: reader: left out: weights and words are drawn."""
    with TemporaryDirectory() as made:
        folder = Path(made)
        published.write(wide.checkpoint, folder)
        for component, change in {**wide.thin, **wide.network}.items():
            file = folder / component / "config.json"
            file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
        return registry.load(
            wide.checkpoint,
            made,
            wide.stored,
            {},
            activation_dtype="float32",
            reader=reader or RandomWords(),
            qualities=wide.loose,
            rounding=Rounding("beside"),
        )


def requests(wide: Wide, pipeline: Pipeline, seeds: int, steps: int) -> list[dict[str, Any]]:
    """Each of words of its own."""
    given = {**pipeline.spec.defaults, **wide.fields, "num_inference_steps": steps}
    return [
        {**given, "prompt": f"asked {seed}", "negative_prompt": f"not {seed}", "seed": seed}
        for seed in range(seeds)
    ]


def unlike(qualities: Mapping[str, Quality], names: Sequence[str]) -> list[str]:
    """Of presets that pull the same levers as far, the first."""
    first: dict[Quality, str] = {}
    for name in names:
        first.setdefault(qualities[name].only(LEVERS), name)
    return list(first.values())


def added(first: PyTree, last: PyTree) -> np.ndarray:
    """What the network made of the noise; without it the noise itself would look like likeness."""
    return np.asarray(last["latents"]) - np.asarray(first["latents"])


def near_db(result: np.ndarray, exact: np.ndarray) -> float:
    return psnr_db(result, exact, float(np.ptp(exact)))


class Words(BlankTokenizer):
    """Random words, the same ones for the same prompt."""

    def encode_with_mask(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        blank = super().encode_with_mask(texts, max_length)
        drawn = [np.random.default_rng(zlib.crc32(text.encode())) for text in texts]
        ids = [rng.integers(WORDS, size=blank.ids.shape[1], dtype=np.int32) for rng in drawn]
        return Tokens(np.stack(ids), blank.mask)


class RandomWords(RandomWeights):
    """A `models.loading.sources.Reader`: weights are drawn, and so are the words of
    prompts."""

    def clip_tokenizer(self, folder: Path) -> Tokenizer:
        return Words()

    def t5_tokenizer(self, folder: Path) -> Tokenizer:
        return Words()


class Mapped(RandomWords):
    """As `RandomWords`; large arrays lie in files, of which memory has as much as it has room for.

    A step reads them in their order, at what the disk gives. CPUs alone compute on such memory.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def _transfer(self, array: Array) -> Array:
        if array.nbytes < SMALL:
            return array
        with TemporaryFile(dir=self._folder) as file:  # its pages stay until nobody maps them
            np.asarray(array).tofile(file)
            file.flush()
            os.fsync(file.fileno())
            pages = np.memmap(file, array.dtype, mode="r", shape=array.shape)
        array.delete()
        return jax.device_put(pages, may_alias=True)
