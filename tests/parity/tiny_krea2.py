"""Tiny random Krea 2 checkpoints, built by the reference libraries themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diffusers import FlowMatchEulerDiscreteScheduler, Krea2Pipeline, Krea2Transformer2DModel

from tests.parity.tiny import Config, randomize
from tests.parity.tiny_qwen import qwen_tokenizer
from tests.parity.tiny_qwenimage import make_vae
from tests.parity.tiny_qwenimage21 import qwen3_vl

_TRANSFORMER: Config = {
    "num_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "axes_dims_rope": (4, 6, 10),
    "intermediate_size": 50,
    "timestep_embed_dim": 32,
    "text_num_attention_heads": 3,
    "text_num_key_value_heads": 1,
    "text_intermediate_size": 20,
}
_SCHEDULER: Config = {
    "use_dynamic_shifting": True,
    "base_image_seq_len": 4,
    "max_image_seq_len": 60,
    "base_shift": 0.5,
    "max_shift": 0.9,
}


def make_krea2(
    folder: Path,
    *,
    transformer: Config | None = None,
    vae: Config | None = None,
    text_encoder: Config | None = None,
    scheduler: Config | None = None,
    states: tuple[int, ...] = (1, 3),
    is_distilled: bool = False,
    seed: int = 0,
    **save_kwargs: Any,
) -> Path:
    """Write a complete checkpoint in diffusers' layout to `folder` and return it.

    Each dict overrides single values of that part's small default config; shared sizes follow the
    part that determines them.
    """
    text = qwen3_vl(seed + 2, **(text_encoder or {})).model
    image = make_vae(seed + 1, **(vae or {}))
    config = _TRANSFORMER | (transformer or {})
    sizes = {
        "attention_head_dim": sum(config["axes_dims_rope"]),
        "in_channels": 4 * image.config.z_dim,
        "text_hidden_dim": text.config.text_config.hidden_size,
        "num_text_layers": len(states),
    }
    network = randomize(Krea2Transformer2DModel(**(config | sizes)), seed + 3)
    for name, parameter in network.named_parameters():
        if ".norm_" in name:
            parameter.data *= 1.5  # sharper attention, so single words matter
        if name.rpartition(".")[0].endswith(("norm", "norm1", "norm2", "norm_q", "norm_k")):
            parameter.data -= 1  # the norm adds 1 to it
    Krea2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**(_SCHEDULER | (scheduler or {}))),
        vae=image,
        text_encoder=text,
        tokenizer=qwen_tokenizer(),
        transformer=network,
        text_encoder_select_layers=states,
        is_distilled=is_distilled,
    ).save_pretrained(folder, **save_kwargs)
    return folder
