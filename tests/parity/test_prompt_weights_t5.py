"""Weighted prompts of Flux and Wan: features of transformers' T5 per token, times the weight.

Cases are parsed by hand, independently of Atelier's parser. The bound is a relative 1e-5 in
float32. Rounding stays below it, and each wrong reading exceeds it more than a hundredfold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import diffusers
import jax
import numpy as np
import pytest
import torch

from models import registry
from models.interface.pipeline import Pipeline, PreparedRow, PyTree
from tests import coarse
from tests.parity.distances import relative
from tests.parity.tiny import make_flux
from tests.parity.tiny_wan import make_wan

RELATIVE, FAR = 1e-5, 1e-3
LENGTH = 16
FIELDS: Mapping[str, Any] = {
    "seed": 1,
    "width": 32,
    "height": 32,
    "num_inference_steps": 1,
    "max_sequence_length": LENGTH,
    "prompt_syntax": "weighted",
}
OWN: Mapping[str, Mapping[str, Any]] = {
    "flux": {"true_cfg_scale": 2.0},
    "wan": {"num_frames": 1, "guidance_scale": 3.0},
}

Parts = Sequence[tuple[str, float]]


@dataclass(frozen=True)
class Pair:
    family: str
    pipeline: Pipeline
    tokenizer: Any
    network: Any
    clip: tuple[Any, Any] | None = None
    """Flux's CLIP tokenizer and encoder."""

    def prepare(self, **fields: Any) -> PreparedRow:
        return self.pipeline.prepare({**FIELDS, **OWN[self.family], **fields}, {})

    def run_atelier(self, **fields: Any) -> PyTree:
        with coarse.compiled():
            encode = jax.jit(self.pipeline.encode)
            return encode(self.pipeline.weights, dict(self.prepare(**fields).inputs))

    def run_diffusers(self, parts: Parts) -> np.ndarray:
        """Features of the tokens times their weights. Wan's transformer reads zeros as padding."""
        ids, weights = [], []
        for text, weight in parts:
            token_ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            ids, weights = ids + token_ids, weights + [weight] * len(token_ids)
        ids, weights = [*ids[: LENGTH - 1], 1], [*weights[: LENGTH - 1], 1.0]
        count, padding_count = len(ids), LENGTH - len(ids)
        is_text = torch.tensor([[1] * count + [0] * padding_count])
        mask_arguments = {"attention_mask": is_text} if self.family == "wan" else {}
        with torch.no_grad():
            hidden = self.network(torch.tensor([ids + [0] * padding_count]), **mask_arguments)[0][0]
        weighted = hidden * torch.tensor(weights + [1.0] * padding_count)[:, None]
        return (weighted * is_text[0][:, None] if mask_arguments else weighted).numpy()


@pytest.fixture(scope="module", params=["flux", "wan"])
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp(request.param)
    with coarse.compiled():
        if request.param == "flux":
            make_flux(folder)
            flux = diffusers.FluxPipeline.from_pretrained(folder)
            loaded = registry.load("tiny", str(folder), "float32", {})
            clip = (flux.tokenizer, flux.text_encoder)
            return Pair("flux", loaded, flux.tokenizer_2, flux.text_encoder_2, clip)
        make_wan(folder)
        wan = diffusers.WanPipeline.from_pretrained(folder)
        loaded = registry.load("tiny", str(folder), "float32", {})
    return Pair("wan", loaded, wan.tokenizer, wan.text_encoder)


CASES: dict[str, tuple[str, Parts]] = {
    "a word": ("a (red:1.4) circle", [("a ", 1), ("red", 1.4), (" circle", 1)]),
    "brackets": ("((a red) [star]) above", [("a red", 1.21), (" star", 1.1 / 1.1), (" above", 1)]),
    "nothing and less": ("(a:0) (red:-0.3)", [("a", 0), ("red", -0.3)]),
    "a break": ("(a red:2) BREAK star", [("a red", 2), ("star", 1)]),
    "cut": ("star " * 13 + "(a red blue:1.5)", [("star " * 13, 1), ("a red", 1.5)]),
}


@pytest.mark.parametrize("name", CASES)
def test_tokens_are_multiplied(pair: Pair, name: str) -> None:
    prompt, parts = CASES[name]
    row = pair.run_atelier(prompt=prompt, negative_prompt="[star]")
    assert relative(row["prompt_embeds"][0], pair.run_diffusers(parts)) < RELATIVE
    assert relative(row["prompt_embeds"][1], pair.run_diffusers([("star", 1 / 1.1)])) < RELATIVE


def test_wrong_interpretations_break_parity(pair: Pair) -> None:
    row = pair.run_atelier(prompt=CASES["a word"][0])["prompt_embeds"][0]
    right = pair.run_diffusers(CASES["a word"][1])
    plain = pair.run_diffusers([("a red circle", 1)])
    for wrong in (
        plain,
        right * plain.mean() / right.mean(),  # the mean is restored, as for CLIP
        pair.run_diffusers([("a red", 1), (" circle", 1.4)]),
        pair.run_diffusers([("a", 1.4), (" red circle", 1)]),
    ):
        assert relative(row, wrong) > FAR


@pytest.mark.parametrize("pair", ["flux"], indirect=True)
def test_pooled_clip_text_has_no_weights(pair: Pair) -> None:
    assert pair.clip is not None
    tokenizer, clip = pair.clip
    ids = tokenizer("a red circle", padding="max_length", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        pooled = clip(ids).pooler_output[0].numpy()
    row = pair.run_atelier(prompt=CASES["a word"][0])
    assert relative(row["pooled_embeds"][0], pooled) < RELATIVE


@pytest.mark.parametrize("prompt", ["a red circle", "a (red:1.0) circle", "a [(red)] circle", ""])
def test_a_weight_of_one_changes_nothing(pair: Pair, prompt: str) -> None:
    bare = "".join(letter for letter in prompt if letter not in "()[]:.10")
    plain = pair.prepare(prompt=bare, negative_prompt="a star", prompt_syntax="plain")
    weighted = pair.prepare(prompt=prompt, negative_prompt="a (star:1)")
    assert weighted.inputs.keys() == plain.inputs.keys()
    for name, value in plain.inputs.items():
        np.testing.assert_array_equal(weighted.inputs[name], value)
        assert weighted.inputs[name].dtype == value.dtype
    assert (weighted.bucket, weighted.warnings) == (plain.bucket, ())


def test_weighted_prompts_share_the_steps_of_plain_ones(pair: Pair) -> None:
    plain, weighted = (
        pair.prepare(prompt="a (red)", prompt_syntax="plain"),
        pair.prepare(prompt="a (red)"),
    )
    assert weighted.inputs.keys() - plain.inputs.keys() == {"token_weights"}
    assert (weighted.bucket, weighted.steps[0].program) == (plain.bucket, plain.steps[0].program)
    rows = (
        jax.eval_shape(pair.pipeline.encode, pair.pipeline.weights, dict(prepared.inputs))
        for prepared in (plain, weighted)
    )
    assert next(rows) == next(rows)


def test_truncated_or_broken_prompt_is_a_warning(pair: Pair) -> None:
    prepared = pair.prepare(prompt="(star:1.2) BREAK " + "a red circle " * 6)
    (cut,) = [warning for warning in prepared.warnings if "T5 reads" in warning.message]
    assert cut.field == "prompt"
    assert cut.message.endswith("reads 16 tokens; not read: 'circle a red circle'")
    (broken,) = [warning for warning in prepared.warnings if "BREAK" in warning.message]
    assert broken.message == "BREAK acts as a space: this model encodes a prompt in one chunk"
