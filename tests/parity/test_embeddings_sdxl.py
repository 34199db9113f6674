"""Embeddings (textual inversion) of SDXL compared with diffusers' `load_textual_inversion`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import jax
import numpy as np
import pytest
import torch

from models import registry
from models.interface.pipeline import PyTree
from models.sdxl.pipeline import SdxlPipeline
from models.spec.embeddings import path_of
from models.spec.lora import RequestedLora, always
from tests import coarse
from tests.parity.distances import relative
from tests.parity.sdxl_cases import BASE, CHECKPOINTS

# diffusers triggers NumPy's deprecation of torch tensors without the new `__array__` signature.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

RELATIVE = 1e-5
FAR = 1e-3
"""Minimum relative difference that an embedding makes."""
VECTORS = {"mood": 3, "hue": 1}
"""Number of vectors of each embedding, by name."""


@dataclass(frozen=True)
class Pair:
    pipeline: SdxlPipeline
    reference: Any
    """diffusers' pipeline of the same checkpoint, with the embeddings."""
    files: dict[str, bytes]
    """Vectors by path, as the engine passes them."""

    def run_atelier(self, *names: str, **fields: Any) -> PyTree:
        """Encoded row of a request with these embeddings."""
        loras = [embedding(name).model_dump(mode="json") for name in names]
        prepared = self.pipeline.prepare(BASE | fields | {"loras": loras}, self.files)
        assert not prepared.adapters
        with coarse.compiled():
            return jax.jit(self.pipeline.encode)(self.pipeline.weights, dict(prepared.inputs))

    def run_diffusers(self, prompt: str, negative_prompt: str) -> list[np.ndarray]:
        """Hidden states of both prompts, then the pooled output of both."""
        with torch.no_grad():
            embeds = self.reference.encode_prompt(prompt=prompt, negative_prompt=negative_prompt)
        return [embeds[index][0].numpy() for index in (0, 1, 2, 3)]


def embedding(name: str) -> RequestedLora:
    return RequestedLora(
        name=name,
        digest="",
        pages=0,
        networks=("clip", "clip_2"),
        scales=always(1.0),
        vectors=VECTORS[name],
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder: Path = CHECKPOINTS["base"].make(tmp_path_factory.mktemp("sdxl"))
    reference = diffusers.StableDiffusionXLPipeline.from_pretrained(folder)
    with coarse.compiled():
        loaded = registry.load("tiny", str(folder), "float32", {})
    assert isinstance(loaded, SdxlPipeline)
    draw = np.random.default_rng(5).standard_normal
    files = {}
    encoders = {
        "clip": (reference.text_encoder, reference.tokenizer),
        "clip_2": (reference.text_encoder_2, reference.tokenizer_2),
    }
    for encoder, (network, tokenizer) in encoders.items():
        hidden = loaded.spec.embedding_sizes[encoder]
        assert hidden == network.config.hidden_size
        for name, count in VECTORS.items():
            vectors = draw((count, hidden)).astype(np.float32)
            files[path_of(name, encoder)] = vectors.tobytes()
            reference.load_textual_inversion(
                {name: torch.from_numpy(vectors)}, text_encoder=network, tokenizer=tokenizer
            )
    yield Pair(loaded, reference, files)


@pytest.mark.parametrize(
    ("prompt", "negative", "names"),
    [
        ("a red circle, mood", "hue", ("mood", "hue")),
        ("mood", "a star", ("mood",)),
        ("a mood star in hue, mood", "mood mood", ("hue", "mood")),
        ("circle " * 73 + "mood", "star", ("mood",)),  # the end is cut off within the embedding
    ],
)
def test_prompts_are_encoded_as_diffusers_does(
    pair: Pair, prompt: str, negative: str, names: tuple[str, ...]
) -> None:
    expected = pair.run_diffusers(prompt, negative)
    row = pair.run_atelier(*names, prompt=prompt, negative_prompt=negative)
    for index in range(2):
        assert relative(row["prompt_embeds"][index], expected[index]) < RELATIVE
        assert relative(row["pooled_embeds"][index], expected[2 + index]) < RELATIVE
    plain = pair.run_atelier(prompt=prompt, negative_prompt=negative)
    assert relative(plain["prompt_embeds"][0], expected[0]) > FAR


def test_weights_and_comfyuis_names(pair: Pair) -> None:
    fields = {"prompt_syntax": "weighted", "guidance_scale": 1.0}
    row = pair.run_atelier("mood", prompt="a (mood:1.0) star", **fields)
    same = pair.run_atelier("mood", prompt="a (embedding:mood:1.0) star", **fields)
    heavy = pair.run_atelier("mood", prompt="a (embedding:mood:1.4) star", **fields)
    expected = pair.run_diffusers("a mood star", "")[0]
    assert relative(row["prompt_embeds"][0], expected) < RELATIVE
    assert np.array_equal(row["prompt_embeds"], same["prompt_embeds"])
    assert relative(heavy["prompt_embeds"][0], expected) > FAR


def test_unknown_names_are_left_out_and_the_words_that_are_cut_are_named(pair: Pair) -> None:
    fields = BASE | {"guidance_scale": 1.0}
    unknown = pair.pipeline.prepare(fields | {"prompt": "a embedding:none star"}, {})
    plain = pair.pipeline.prepare(fields | {"prompt": "a star"}, {})
    for name in ("ids", "ids_2"):
        assert np.array_equal(unknown.inputs[name], plain.inputs[name])
    assert "token_vectors" not in unknown.inputs
    loras = [embedding("mood").model_dump(mode="json")]
    long = fields | {"prompt": "circle " * 74 + "mood, star", "loras": loras}
    warnings = [warning.message for warning in pair.pipeline.prepare(long, pair.files).warnings]
    assert warnings and all("not read: 'mood, star'" in message for message in warnings)
