"""Embeddings (textual inversion) of Flux compared with diffusers' `load_textual_inversion`."""

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
from models.flux.pipeline import FluxPipeline
from models.interface.pipeline import PyTree
from models.spec.embeddings import path_of
from models.spec.lora import RequestedLora, always
from tests import coarse
from tests.parity.distances import relative
from tests.parity.tiny import make_flux

RELATIVE = 1e-5
FAR = 1e-3
"""Minimum relative difference that an embedding makes."""
VECTORS = {"mood": 2, "hue": 1}
"""Number of vectors of each embedding, by name."""
TOKENS = 24
BASE = {"width": 32, "height": 32, "num_inference_steps": 1, "seed": 1, "guidance_scale": 1.0}


@dataclass(frozen=True)
class Pair:
    pipeline: FluxPipeline
    reference: Any
    """diffusers' pipeline of the same checkpoint, with a token for each vector."""
    files: dict[str, bytes]
    """Vectors by path, as the engine passes them."""

    def run_atelier(self, *names: str, **fields: Any) -> PyTree:
        """Encoded row of a request with these embeddings."""
        loras = [embedding(name).model_dump(mode="json") for name in names]
        request = self.pipeline.spec.defaults | BASE | fields | {"loras": loras}
        request["max_sequence_length"] = TOKENS
        prepared = self.pipeline.prepare(request, self.files)
        assert not prepared.adapters
        with coarse.compiled():
            return jax.jit(self.pipeline.encode)(self.pipeline.weights, dict(prepared.inputs))

    def run_diffusers(self, prompt: str, prompt_2: str) -> list[np.ndarray]:
        """T5's hidden states, then CLIP's pooled output."""
        with torch.no_grad():
            embeds = self.reference.encode_prompt(
                prompt=prompt, prompt_2=prompt_2, max_sequence_length=TOKENS
            )
        return [embeds[index][0].numpy() for index in (0, 1)]


def embedding(name: str) -> RequestedLora:
    return RequestedLora(
        name=name,
        digest="",
        pages=0,
        networks=("clip", "t5"),
        scales=always(1.0),
        vectors=VECTORS[name],
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder: Path = make_flux(tmp_path_factory.mktemp("flux"))
    reference = diffusers.FluxPipeline.from_pretrained(folder)
    with coarse.compiled():
        loaded = registry.load("tiny", str(folder), "float32", {})
    assert isinstance(loaded, FluxPipeline)
    draw = np.random.default_rng(5).standard_normal
    files = {}
    encoders = {
        "clip": (reference.text_encoder, reference.tokenizer),
        "t5": (reference.text_encoder_2, reference.tokenizer_2),
    }
    for encoder, (network, tokenizer) in encoders.items():
        hidden = loaded.spec.embedding_sizes[encoder]
        assert hidden == network.get_input_embeddings().weight.shape[1]
        for name, count in VECTORS.items():
            vectors = draw((count, hidden)).astype(np.float32)
            files[path_of(name, encoder)] = vectors.tobytes()
            for index, vector in enumerate(vectors):
                reference.load_textual_inversion(
                    torch.from_numpy(vector)[None],
                    token=f"<{name}{index}>",
                    text_encoder=network,
                    tokenizer=tokenizer,
                )
    yield Pair(loaded, reference, files)


@pytest.mark.parametrize(
    ("prompt", "theirs", "names"),
    [
        ("a red circle, mood", "a red circle, <mood0><mood1>", ("mood",)),
        ("hue", "<hue0>", ("hue",)),
        ("a mood star in hue", "a <mood0><mood1> star in <hue0>", ("hue", "mood")),
        ("circle " * 22 + "mood", "circle " * 22 + "<mood0><mood1>", ("mood",)),  # T5 cuts it
    ],
)
def test_prompts_are_encoded_as_diffusers_does(
    pair: Pair, prompt: str, theirs: str, names: tuple[str, ...]
) -> None:
    expected = pair.run_diffusers(theirs, theirs)
    row = pair.run_atelier(*names, prompt=prompt)
    assert relative(row["prompt_embeds"][0], expected[0]) < RELATIVE
    assert relative(row["pooled_embeds"][0], expected[1]) < RELATIVE
    plain = pair.run_atelier(prompt=prompt)
    assert relative(plain["prompt_embeds"][0], expected[0]) > FAR
    assert relative(plain["pooled_embeds"][0], expected[1]) > FAR


def test_second_prompts_weights_and_comfyuis_names(pair: Pair) -> None:
    fields = {"prompt": "a star", "prompt_2": "a (embedding:mood:1.0) star"}
    row = pair.run_atelier("mood", prompt_syntax="weighted", **fields)
    expected = pair.run_diffusers("a star", "a <mood0><mood1> star")
    assert relative(row["prompt_embeds"][0], expected[0]) < RELATIVE
    assert relative(row["pooled_embeds"][0], expected[1]) < RELATIVE
