"""Names of llama.cpp's arrays in GGUF files of text models, and those of the models' authors.

Source: llama.cpp, gguf-py/gguf/tensor_mapping.py, and its conversion of these architectures, which
changes no numbers except the order of Llama's rows and Gemma's norms, to which it adds 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

BEGINNINGS = ("blk.", "enc.blk.", "dec.blk.", "token_embd.")
"""Beginnings of names that llama.cpp gives to arrays."""


class ArrayNames(NamedTuple):
    """Authors' names of an architecture's arrays, by llama.cpp's, without `weight` or `bias`."""

    outer: Mapping[str, str]
    """Arrays outside of blocks."""
    blocks: tuple[str, str]
    """Beginnings of the names in blocks: llama.cpp's, and the authors'."""
    inner: Mapping[str, str]
    """Arrays of a block, after its number."""

    def of(self, key: str) -> str:
        """Return the authors' key for a key of llama.cpp; unknown keys stay as they are."""
        if key.startswith("dec."):
            return f"decoder.{key.removeprefix('dec.')}"
        stem, _, leaf = key.rpartition(".")
        if stem in self.outer:
            return f"{self.outer[stem]}.{leaf}"
        beginning, target = self.blocks
        number, _, layer = stem.removeprefix(beginning).partition(".")
        if not stem.startswith(beginning) or layer not in self.inner:
            return key
        return f"{target}{number}.{self.inner[layer]}.{leaf}"


_HEADS, _FEED_FORWARD = "layer.0.SelfAttention", "layer.1.DenseReluDense"
T5 = ArrayNames(
    {"token_embd": "shared", "enc.output_norm": "encoder.final_layer_norm"},
    ("enc.blk.", "encoder.block."),
    {
        **{f"attn_{letter}": f"{_HEADS}.{letter}" for letter in "qkvo"},
        "attn_rel_b": f"{_HEADS}.relative_attention_bias",
        "attn_norm": "layer.0.layer_norm",
        "ffn_gate": f"{_FEED_FORWARD}.wi_0",
        "ffn_up": f"{_FEED_FORWARD}.wi_1",
        "ffn_down": f"{_FEED_FORWARD}.wo",
        "ffn_norm": "layer.1.layer_norm",
    },
)
QWEN = ArrayNames(
    {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"},
    ("blk.", "model.layers."),
    {
        **{f"attn_{letter}": f"self_attn.{letter}_proj" for letter in "qkv"},
        **{f"attn_{letter}_norm": f"self_attn.{letter}_norm" for letter in "qk"},
        "attn_output": "self_attn.o_proj",
        "attn_norm": "input_layernorm",
        **{f"ffn_{layer}": f"mlp.{layer}_proj" for layer in ("gate", "up", "down")},
        "ffn_norm": "post_attention_layernorm",
    },
)
INTERLEAVED = "interleaved"
"""Part of the names of Llama's queries and keys, whose rotated pairs are adjacent rows."""
LLAMA = QWEN._replace(
    inner={
        **QWEN.inner,
        **{f"attn_{letter}": f"self_attn.{letter}_proj.{INTERLEAVED}" for letter in "qk"},
    }
)
PLUS_ONE = "plus_one"
"""Part of the names of Gemma's norms, which have 1 more than the authors'."""
GEMMA = QWEN._replace(
    outer={**QWEN.outer, "output_norm": f"model.norm.{PLUS_ONE}"},
    inner={
        **QWEN.inner,
        **{f"attn_{letter}_norm": f"self_attn.{letter}_norm.{PLUS_ONE}" for letter in "qk"},
        "attn_norm": f"input_layernorm.{PLUS_ONE}",
        "post_attention_norm": f"post_attention_layernorm.{PLUS_ONE}",
        "ffn_norm": f"pre_feedforward_layernorm.{PLUS_ONE}",
        "post_ffw_norm": f"post_feedforward_layernorm.{PLUS_ONE}",
    },
)
ARCHITECTURES: Mapping[str, ArrayNames] = {
    **dict.fromkeys(("t5", "t5encoder"), T5),
    **dict.fromkeys(("qwen2", "qwen2vl", "qwen3", "qwen3vl"), QWEN),
    **dict.fromkeys(("llama", "mistral3"), LLAMA),
    "gemma3": GEMMA,
}
"""Names by `general.architecture` of the files that are read."""


def separated(heads: int, rows: np.ndarray) -> np.ndarray:
    """Return Llama's queries or keys with the halves of each head separate, as the authors do.

    Args:
        rows: [out, in], with the two numbers of a rotated pair next to each other.
    """
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    halves: np.ndarray = pairs.swapaxes(1, 2).reshape(rows.shape)
    return halves
