"""Weighted prompts compared with AUTOMATIC1111's arithmetic, rewritten for transformers' encoders.

Cases are parsed by hand into weighted parts and chunks, independently of Atelier's parser. The
bound is a relative 1e-5 in float32. Rounding stays ten times below it, and each wrong reading
exceeds it more than a hundredfold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import jax
import numpy as np
import pytest
import torch

from models import registry
from models.interface.pipeline import PyTree, denoise
from models.sdxl.pipeline import SdxlPipeline
from tests import coarse
from tests.parity.distances import relative
from tests.parity.sdxl_cases import BASE, CHECKPOINTS, EXACT

# diffusers triggers NumPy's deprecation of torch tensors without the new `__array__` signature.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

RELATIVE = 1e-5
FAR = 1e-3
"""Minimum relative error of a wrong reading."""
WORDS = 75
"""Tokens of a chunk without its markers."""

SIZES = ("width", "height", "num_inference_steps", "guidance_scale")

Part = tuple[str, float]
Chunk = Sequence[Part]


def a1111(hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """`EmphasisOriginal`: apply the weights, then restore the chunk's mean."""
    weighted = hidden * weights[:, None]
    return weighted * (hidden.mean() / weighted.mean())


def without_the_mean(hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return hidden * weights[:, None]


def one_token_late(hidden: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return a1111(hidden, torch.roll(weights, 1))


Emphasis = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Encoder:
    tokenizer: Any
    network: Any
    padding: str | None = None
    """Padding token; None for the tokenizer's own."""

    def chunk(self, parts: Chunk) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and weights of one chunk."""
        start, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        ids, weights = [start], [1.0]
        for text, weight in parts:
            token_ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            ids, weights = ids + token_ids, weights + [weight] * len(token_ids)
        padding = self.tokenizer.convert_tokens_to_ids(self.padding or self.tokenizer.pad_token)
        padding_count = WORDS + 1 - len(ids)
        return torch.tensor([*ids, end, *[padding] * padding_count]), torch.tensor(
            [*weights, 1.0, *[1.0] * padding_count]
        )

    def encode(
        self, chunks: Sequence[Chunk], emphasis: Emphasis = a1111
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Penultimate hidden states of all chunks, concatenated, and the first chunk's pooled
        output.
        """
        states, pooled = [], []
        for parts in chunks:
            ids, weights = self.chunk(parts)
            with torch.no_grad():
                output = self.network(ids[None], output_hidden_states=True)
            states.append(emphasis(output.hidden_states[-2][0], weights))
            pooled.append(output[0][0])
        return torch.cat(states), pooled[0]


@dataclass(frozen=True)
class Pair:
    pipeline: SdxlPipeline
    reference: Any
    """diffusers' pipeline of the same checkpoint."""
    encoders: tuple[Encoder, Encoder]

    def run_atelier(self, **fields: Any) -> PyTree:
        """Encoded row of a weighted request."""
        prepared = self.pipeline.prepare(BASE | {"prompt_syntax": "weighted"} | fields, {})
        with coarse.compiled():
            return jax.jit(self.pipeline.encode)(self.pipeline.weights, dict(prepared.inputs))

    def run_diffusers(
        self, chunks: Sequence[Chunk], emphasis: Emphasis = a1111
    ) -> tuple[np.ndarray, np.ndarray]:
        (first, _), (second, pooled) = (
            encoder.encode(chunks, emphasis) for encoder in self.encoders
        )
        return torch.cat([first, second], dim=-1).numpy(), pooled.numpy()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder: Path = CHECKPOINTS["base"].make(tmp_path_factory.mktemp("sdxl"))
    reference = diffusers.StableDiffusionXLPipeline.from_pretrained(folder)
    with coarse.compiled():
        loaded = registry.load("tiny", str(folder), "float32", {})
    assert isinstance(loaded, SdxlPipeline)
    first = Encoder(reference.tokenizer, reference.text_encoder)
    second = Encoder(reference.tokenizer_2, reference.text_encoder_2)
    reference.set_progress_bar_config(disable=True)
    return Pair(loaded, reference, (first, second))


CASES: dict[str, tuple[str, Sequence[Chunk]]] = {
    "a word": ("a (red:1.4) circle", [[("a ", 1), ("red", 1.4), (" circle", 1)]]),
    "brackets": (
        "((a red) [star]) above",
        [[("a red", 1.21), (" ", 1.1), ("star", 1.0), (" above", 1)]],
    ),
    "a word in two": ("yel(low:0.5)", [[("yel", 1), ("low", 0.5)]]),
    "nothing and less": (
        "(a:0) (red:-0.3) star",
        [[("a", 0), (" ", 1), ("red", -0.3), (" star", 1)]],
    ),
    "a break": (
        "a (red:1.3) star BREAK blue",
        [[("a ", 1), ("red", 1.3), (" star", 1)], [("blue", 1)]],
    ),
    "a break ahead": ("BREAK (blue)", [[], [("blue", 1.1)]]),
    "more than a chunk": (
        "(red star:1.2) " + "circle " * 80,
        [[("red star", 1.2), ("circle " * 73, 1)], [("circle " * 7, 1)]],
    ),
    "a comma near the end": (
        "circle " * 60 + ", (red:1.5) " + "star " * 20,
        [[("circle " * 60 + ",", 1)], [("red", 1.5), ("star " * 20, 1)]],
    ),
    "a comma too far from the end": (
        "circle " * 54 + ", (red:1.5) " + "star " * 20,
        [[("circle " * 54 + ",", 1), ("red", 1.5), ("star " * 19, 1)], [("star", 1)]],
    ),
    "a comma right behind the end": (
        "circle, " + "star " * 73 + ", (red:1.5)",
        [[("circle, " + "star " * 73, 1)], [(",", 1), ("red", 1.5)]],
    ),
    "as many chunks as are read": (
        " BREAK ".join(["(red)", "(blue:0.7)", "star", "circle", "square"]),
        [[("red", 1.1)], [("blue", 0.7)], [("star", 1)], [("circle", 1)]],
    ),
}


@pytest.mark.parametrize(("prompt", "chunks"), CASES.values(), ids=CASES)
def test_sdxl_weighs_as_published(pair: Pair, prompt: str, chunks: Sequence[Chunk]) -> None:
    row = pair.run_atelier(prompt=prompt, guidance_scale=1.0)
    embeds, pooled = pair.run_diffusers(chunks)
    assert row["prompt_embeds"].shape == (1, len(chunks) * (WORDS + 2), embeds.shape[-1])
    assert relative(row["prompt_embeds"][0], embeds) < RELATIVE
    assert relative(row["pooled_embeds"][0], pooled) < RELATIVE


@pytest.mark.parametrize("wrong", [without_the_mean, one_token_late], ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", ["a word", "brackets", "more than a chunk"])
def test_wrong_weights_break_parity(pair: Pair, name: str, wrong: Emphasis) -> None:
    prompt, chunks = CASES[name]
    embeds, _ = pair.run_diffusers(chunks, wrong)
    row = pair.run_atelier(prompt=prompt, guidance_scale=1.0)
    assert relative(row["prompt_embeds"][0], embeds) > FAR


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("a word", [[("a red circle", 1)]]),
        ("a word in two", [[("yellow", 0.5)]]),
        ("a break", [[("a ", 1), ("red", 1.3), (" star blue", 1)]]),
        ("more than a chunk", [CASES["more than a chunk"][1][0], []]),
        (
            "a comma near the end",
            [[("circle " * 60 + ",", 1), ("red", 1.5), ("star " * 13, 1)], [("star " * 7, 1)]],
        ),
    ],
)
def test_wrong_chunks_break_parity(pair: Pair, name: str, wrong: Sequence[Chunk]) -> None:
    embeds, _ = pair.run_diffusers(wrong)
    output = pair.run_atelier(prompt=CASES[name][0], guidance_scale=1.0)["prompt_embeds"][0]
    assert len(output) != len(embeds) or relative(output, embeds) > FAR


def test_the_padding_is_each_tokenizers_own(pair: Pair) -> None:
    """The second encoder pads with "!" after the end of a short chunk."""
    prompt, chunks = CASES["a break"]
    first, second = pair.encoders
    wrong = Encoder(second.tokenizer, second.network, padding=first.tokenizer.pad_token)
    output = pair.run_atelier(prompt=prompt, guidance_scale=1.0)["prompt_embeds"][0]
    embeds, _ = Pair(pair.pipeline, pair.reference, (first, wrong)).run_diffusers(chunks)
    assert relative(output, embeds) > FAR


def test_the_shorter_of_two_prompts_is_repeated(pair: Pair) -> None:
    """Two and three chunks become six each. Attention over copies equals attention over one of
    them.
    """
    row = pair.run_atelier(
        prompt="(red) BREAK star", negative_prompt="[blue] BREAK a (star:2) BREAK circle"
    )
    positive, pooled = pair.run_diffusers([[("red", 1.1)], [("star", 1)]])
    negative, _ = pair.run_diffusers(
        [[("blue", 1 / 1.1)], [("a ", 1), ("star", 2)], [("circle", 1)]]
    )
    assert relative(row["prompt_embeds"][0], np.tile(positive, (3, 1))) < RELATIVE
    assert relative(row["prompt_embeds"][1], np.tile(negative, (2, 1))) < RELATIVE
    assert relative(row["pooled_embeds"][0], pooled) < RELATIVE


def test_absent_negative_prompt_is_zero_with_chunks(pair: Pair) -> None:
    row = pair.run_atelier(prompt="(red) BREAK star", negative_prompt=None)
    assert row["prompt_embeds"].shape[:2] == (2, 2 * (WORDS + 2))
    assert not np.asarray(row["prompt_embeds"][1]).any()


def test_the_second_encoders_own_text_gets_empty_chunks(pair: Pair) -> None:
    row = pair.run_atelier(prompt="(red) BREAK star", prompt_2="[blue]", guidance_scale=1.0)
    first, _ = pair.encoders[0].encode([[("red", 1.1)], [("star", 1)]])
    second, pooled = pair.encoders[1].encode([[("blue", 1 / 1.1)], []])
    embeds = torch.cat([first, second], dim=-1).numpy()
    assert relative(row["prompt_embeds"][0], embeds) < RELATIVE
    assert relative(row["pooled_embeds"][0], pooled.numpy()) < RELATIVE


def test_published_embeddings_match_diffusers(pair: Pair) -> None:
    prompt, chunks = CASES["a break"]
    fields = BASE | {"prompt": prompt, "negative_prompt": "(blue:1.5)", "guidance_scale": 4.0}
    embeds, pooled = pair.run_diffusers(chunks)
    negative, negative_pooled = pair.run_diffusers([[("blue", 1.5)]])
    embeddings = {
        "prompt_embeds": embeds,
        "pooled_prompt_embeds": pooled,
        "negative_prompt_embeds": np.tile(negative, (2, 1)),
        "negative_pooled_prompt_embeds": negative_pooled,
    }
    reference_latents = pair.reference(
        **{name: torch.tensor(value)[None] for name, value in embeddings.items()},
        **{name: fields[name] for name in SIZES},
        generator=torch.Generator("cpu").manual_seed(fields["seed"]),
        output_type="latent",
    ).images[0]
    prepared = pair.pipeline.prepare(fields | {"prompt_syntax": "weighted"}, {})
    with coarse.compiled():
        *_, row = denoise(pair.pipeline, prepared)
    latents = reference_latents.numpy().transpose(1, 2, 0)
    assert relative(row["latents"], latents) < EXACT.relative


def test_repeated_prompt_changes_only_the_rounding(pair: Pair) -> None:
    """Prompts of different lengths need no masks, because copies change only the rounding."""
    unet = pair.reference.unet
    embeds, pooled = (torch.tensor(array)[None] for array in pair.run_diffusers([[("red", 1.1)]]))
    latents = torch.randn((1, 4, 16, 16), generator=torch.Generator("cpu").manual_seed(1))
    conditioning = {"text_embeds": pooled, "time_ids": torch.zeros((1, 6))}
    with torch.no_grad():
        once, thrice = (
            unet(
                latents, 500, embeds.repeat(1, times, 1), added_cond_kwargs=conditioning
            ).sample.numpy()
            for times in (1, 3)
        )
    assert relative(thrice, once) < RELATIVE
