"""Guess of an adapter's base model from its keys, for error messages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

SIGNS: tuple[tuple[str, str], ...] = (
    (r"distilled_guidance_layer", "Chroma"),
    (r"(?:double|single)_stream_blocks[._]\d", "HiDream"),
    (r"vace_blocks[._]\d", "Wan VACE"),
    (r"audio_to_video_attn|audio_patchify_proj|audio_ff[._]", "LTX-2"),
    (r"double_stream_modulation|single_transformer_blocks[._]\d+[._]attn[._]to_qkv_mlp", "Flux.2"),
    (r"individual_token_refiner|double_blocks\.\d+\.img_attn_qkv", "HunyuanVideo"),
    (r"joint_blocks|transformer_blocks[._]\d+[._]attn2[._]add_", "Stable Diffusion 3"),
    (r"transformer_blocks[._]\d+[._](?:img|txt)_m(?:lp|od)", "Qwen-Image"),
    (r"text_?fusion|txtfusion", "Krea 2"),
    (
        r"context_refiner|noise_refiner|adaLN_modulation[._]0|layers[._]\d+[._]attention[._]",
        "Z-Image or Lumina 2",
    ),
    (r"(?:double|single)_blocks[._]\d|single_transformer_blocks[._]\d", "Flux"),
    (r"transformer_blocks[._]\d+[._]attn[._]add_q_proj", "Stable Diffusion 3"),
    (r"(?<!transformer_)blocks[._]\d+[._](?:self_attn|cross_attn|attn[12]|ffn)[._]", "Wan"),
    (
        r"^(?:[a-z_]+\.|lora_unet_|lora_transformer_)?transformer_blocks[._]\d+[._]attn[12][._]",
        "LTX-Video or PixArt",
    ),
    (r"down_blocks[._]0[._]attentions|(?:input_blocks[._][12]|output_blocks[._]11)[._]1", "SD 1"),
    (r"down_blocks[._]3|up_blocks[._]3|input_blocks[._](?:9|10|11)", "SD 1"),
    (r"lora_te2_|text_encoder_2|[._]clip_g[._]|conditioner[._]embedders", "SDXL"),
    (r"(?:put_blocks[._]\d|attentions[._]\d)[._].*transformer_blocks[._][1-9]", "SDXL"),
    (r"(?:down|up|mid|input|output|middle)_blocks?[._]", "Stable Diffusion or SDXL"),
)
"""Expressions searched in the keys, and the model that the first match indicates."""
OTHER_FILES: tuple[tuple[str, str], ...] = (
    (
        r"[._]qkv_proj\.lora_(?:down|up)$",
        "an adapter that was converted for Nunchaku; name the file before its conversion",
    ),
    (r"^lllite_", "a ControlNet-LLLite, which is not served"),
    (r"^(?:lora_controlnet$|input_hint_block\.)", "a ControlNet or Control-LoRA, not an adapter"),
    (r"^(?:ip_adapter|image_proj)\.", "an IP-Adapter; name it in models.*.image_prompts"),
    (
        r"^(?:model\.diffusion_model|first_stage_model|conditioner)\.(?!.*(?:lora|lokr|hada))"
        r".*\.(?:weight|bias)$",
        "a whole checkpoint, not an adapter; name it as the source of a model",
    ),
)
"""Expressions searched in the keys, and the kind of file that the first match indicates."""
KEYS, KEY_CHARS = 5_000, 300
"""Maximum number of keys and of characters per key, to bound the time of expressions."""
CALLED = {"SD 1": "Stable Diffusion 1 or 2"}


def looks_made_for(keys: Iterable[str]) -> str | None:
    """Return the base model that the keys of an adapter's file indicate; None: unknown."""
    model = _first_match(SIGNS, keys)
    return model and CALLED.get(model, model)


def other_kind_of(keys: Iterable[str]) -> str | None:
    """Return the kind of a file that is not an adapter, by its keys; None: unknown."""
    return _first_match(OTHER_FILES, keys)


def _first_match(signs: Iterable[tuple[str, str]], keys: Iterable[str]) -> str | None:
    joined = "\n".join(key[:KEY_CHARS] for key in islice(keys, KEYS))
    matches = (name for sign, name in signs if re.search(sign, joined, re.MULTILINE))
    return next(matches, None)
