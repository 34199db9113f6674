"""Tiny random Mistral Small 3 encoders and their tokenizer, built by transformers itself."""

from __future__ import annotations

from typing import Any

from diffusers.pipelines.flux2.system_messages import SYSTEM_MESSAGE
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from tests.parity.tiny import WORDS, randomize
from tests.parity.tiny_qwen import byte_pairs

MARKERS = ("<unk>", "<s>", "</s>", "<pad>", "[INST]", "[/INST]", "[IMG]")
SYSTEM_MARKERS = ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]")
TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- set kind = 'SYSTEM_PROMPT' if message.role == 'system' else 'INST' %}"
    "{{- '[' + kind + ']' }}"
    "{%- for block in message.content %}{{- block.text }}{%- endfor %}"
    "{{- '[/' + kind + ']' }}"
    "{%- endfor %}"
)
"""Reduced form of Mistral's template, for texts without tools."""

MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 30,
    "intermediate_size": 44,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
    "rope_parameters": {"rope_theta": 1e9, "rope_type": "default"},
}
VISION = {
    "model_type": "pixtral",
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 8,
    "patch_size": 4,
    "image_size": 16,
}


def mistral_tokenizer(padding_side: str = "left") -> PreTrainedTokenizerFast:
    """Byte-pair tokenizer of a few words, with the markers of a chat and its template.

    Like the published tokenizer, it adds a beginning marker to texts that are not in the template.
    """
    vocab, merges = byte_pairs(f"{WORDS} {SYSTEM_MESSAGE}")
    pairs = Tokenizer(models.BPE(vocab, merges))
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = decoders.ByteLevel()
    markers = [*MARKERS, *SYSTEM_MARKERS]
    pairs.add_special_tokens([AddedToken(marker, normalized=False) for marker in markers])
    start = ("<s>", pairs.token_to_id("<s>"))
    pairs.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[start])
    return PreTrainedTokenizerFast(
        tokenizer_object=pairs,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        padding_side=padding_side,
        chat_template=TEMPLATE,
    )


def mistral3(seed: int, **overrides: Any) -> Mistral3ForConditionalGeneration:
    """Complete Mistral Small 3 with random weights and the tokenizer's vocabulary."""
    values = {**MISTRAL, "vocab_size": len(mistral_tokenizer()) + 5, **overrides}
    config = Mistral3Config(text_config=values, vision_config=VISION)
    return randomize(Mistral3ForConditionalGeneration(config), seed)
