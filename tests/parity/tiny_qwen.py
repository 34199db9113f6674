"""Tiny random Qwen encoders and their tokenizer, built by transformers itself."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, pre_tokenizers
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2TokenizerFast,
    Qwen3Config,
    Qwen3Model,
)

from tests.parity.tiny import WORDS, randomize

MARKERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THOUGHTS = ("<think>", "</think>")
OF_IMAGES = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}{%- endif %}"
)
"""Reduced form of Qwen3's template, for users' messages without tools."""

QWEN3 = {
    "hidden_size": 30,
    "intermediate_size": 44,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
}

QWEN25 = {
    "hidden_size": 40,
    "intermediate_size": 44,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 5e5, "rope_type": "default", "mrope_section": [1, 2, 2]},
}
VISION = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_heads": 2,
    "patch_size": 4,
    "window_size": 16,
    "fullatt_block_indexes": [1],
}


def byte_pairs(words: str = WORDS) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a few words."""
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges: list[tuple[str, str]] = []
    for word in words.split():
        head = "Ġ"
        for letter in word:
            if head + letter not in pieces:
                merges.append((head, letter))
                pieces.append(head + letter)
            head += letter
    return {piece: index for index, piece in enumerate(pieces)}, merges


def qwen_tokenizer(further: tuple[str, ...] = ()) -> Qwen2TokenizerFast:
    """Byte-pair tokenizer of a few words, with the markers of a chat and its template.

    Args:
        further: markers; a model's vocabulary has room for five.
    """
    vocab, merges = byte_pairs()
    tokenizer = Qwen2TokenizerFast(
        vocab={**vocab, MARKERS[0]: len(vocab)}, merges=merges, chat_template=TEMPLATE
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [*MARKERS[1:]]})
    tokenizer.add_tokens([AddedToken(thought, normalized=False) for thought in THOUGHTS])
    if further:
        every = [*MARKERS[1:], *further]
        tokenizer.add_special_tokens({"additional_special_tokens": every})
    return tokenizer


def qwen3(seed: int, **overrides: Any) -> Qwen3Model:
    """Qwen3 with random weights and the tokenizer's vocabulary."""
    values = {**QWEN3, "vocab_size": len(qwen_tokenizer()) + 5, **overrides}
    return randomize(Qwen3Model(Qwen3Config(**values)), seed)


def qwen25(
    seed: int, vision: dict[str, Any] | None = None, **overrides: Any
) -> Qwen2_5_VLForConditionalGeneration:
    """Complete Qwen2.5-VL with random weights and the tokenizer's vocabulary."""
    values = {**QWEN25, "vocab_size": len(qwen_tokenizer()) + 5, **overrides}
    values |= {"bos_token_id": None, "eos_token_id": None}
    vision_config = {**VISION, **(vision or {}), "out_hidden_size": values["hidden_size"]}
    config = Qwen2_5_VLConfig(text_config=values, vision_config=vision_config)
    return randomize(Qwen2_5_VLForConditionalGeneration(config), seed)
