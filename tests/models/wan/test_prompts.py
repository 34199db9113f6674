"""Cleaning and tokenization of prompts as in diffusers' Wan pipelines."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from diffusers import WanPipeline
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from flax import nnx

from models.checkpoint.folder import read_config
from models.loading.abstract import abstract_module
from models.text import umt5
from models.text.tokenizer import T5Tokenizer
from models.wan.prompts import clean, prompt_embeds
from models.weights.loader import load
from tests.parity.tiny import WORDS, randomize, t5_tokenizer

TEXTS = (
    "  A  red\tcircle \n\r moves\u00a0to the\u2003right  ",
    "schÃ¶n â€œquotedâ€\x9d &amp;amp; &lt;b&gt; &#8230; &amp;nbsp; end&nbsp;",
    "ｆｕｌｌ ｗｉｄｔｈ, “curly” ﬁne \x1b[31mred\x1b[0m \x00\x07\x85 a\u200bb\ufeff",
    "",
    " &nbsp; ",
    "一只猫在草地上奔跑。 &#28; &#x85; &#x2028; \u2029",
)

BOUND = 1e-5
"""Tolerance relative to the largest value: rounding of float32 in another order."""


@pytest.mark.parametrize("text", TEXTS)
def test_cleaning_matches_diffusers(text: str) -> None:
    assert clean(text) == prompt_clean(text)


def test_prompt_embeds(tmp_path: Path) -> None:
    """Ids, mask, features and the zeros after them, for short, empty and truncated prompts."""
    words = t5_tokenizer(512)
    sizes = {"d_model": 34, "d_kv": 9, "d_ff": 51, "num_layers": 3, "num_heads": 3}
    config = transformers.UMT5Config(vocab_size=len(words) + 3, **sizes)
    reference = randomize(transformers.UMT5EncoderModel(config), seed=5)
    words.save_pretrained(tmp_path / "tokenizer")
    reference.save_pretrained(tmp_path / "text_encoder")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    pipeline = WanPipeline(tokenizer, reference, None, None)
    texts = ["a red  circle &amp; a star", "", f"{WORDS} {WORDS}"]
    with torch.no_grad():
        expected = pipeline._get_t5_prompt_embeds(texts, max_sequence_length=21).numpy()

    config_of_encoder = umt5.UMT5Config.from_dict(read_config(tmp_path, "text_encoder"))
    abstract = abstract_module(umt5.UMT5Encoder, config_of_encoder)
    encoder = load(abstract, tmp_path / "text_encoder", umt5.RENAMES, dtype=jnp.float32)
    tokens = T5Tokenizer(tmp_path / "tokenizer").encode_with_mask(
        [clean(text) for text in texts], 21
    )
    output = np.asarray(nnx.jit(prompt_embeds)(encoder, *tokens))
    assert tokens.mask.sum(axis=1).tolist()[1:] == [1, 21]
    np.testing.assert_allclose(output, expected, rtol=0, atol=BOUND * np.abs(expected).max())
    assert not output[1, 1:].any() and np.abs(output[1, 0]).max() > 0.1
