"""Tiny random Qwen-Image 2.1 checkpoints, built by the reference libraries themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diffusers import (
    AutoencoderKLQwenImage21,
    FlowMatchEulerDiscreteScheduler,
    QwenImage21Pipeline,
    QwenImage21Transformer2DModel,
)
from transformers import (
    BatchEncoding,
    Qwen2TokenizerFast,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.parity.tiny import Config, randomize
from tests.parity.tiny_qwen import OF_IMAGES, QWEN3, qwen_tokenizer

_TRANSFORMER: Config = {
    "in_channels": 8,
    "num_layers": 3,
    "num_attention_heads": 3,
    "axes_dims_rope": (4, 6, 10),
    "context_in_dim": 30,
}
_VAE: Config = {
    "base_dim": 4,
    "decoder_base_dim": 6,
    "z_dim": 8,
    "dim_mult": [1, 2, 2, 4, 4],
    "num_res_blocks": 1,
    "temperal_downsample": [False, True, True, True],
}
_SCHEDULER: Config = {
    "use_dynamic_shifting": True,
    "base_image_seq_len": 4,
    "max_image_seq_len": 600,
    "base_shift": 0.5,
    "max_shift": 0.9,
    "shift_terminal": 0.02,
}
_VISION: Config = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_heads": 2,
    "patch_size": 4,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}


def make_qwenimage21(
    folder: Path,
    *,
    transformer: Config | None = None,
    vae: Config | None = None,
    text_encoder: Config | None = None,
    scheduler: Config | None = None,
    sample_sigmas: list[float] | None = None,
    vision: Config | None = None,
    seed: int = 0,
    **save_kwargs: Any,
) -> Path:
    """Write a complete checkpoint in diffusers' layout to `folder` and return it.

    Each dict overrides single values of that part's small default config; shared sizes follow the
    part that determines them.
    """
    text = qwen3_vl(seed + 2, vision, **(text_encoder or {}))
    image = make_vae(seed + 1, **(vae or {}))
    sizes = {
        "in_channels": image.config.z_dim,
        "context_in_dim": text.config.text_config.hidden_size,
    }
    network = qwenimage21_transformer(seed + 3, **((transformer or {}) | sizes))
    networks = {"transformer": network, "vae": image, "text_encoder": text}
    for name, model in networks.items():
        model.save_pretrained(folder / name, **save_kwargs)
    qwen_tokenizer(OF_IMAGES).save_pretrained(folder / "processor")
    schedule = FlowMatchEulerDiscreteScheduler(**(_SCHEDULER | (scheduler or {})))
    schedule.save_pretrained(folder / "scheduler")
    index = {
        "_class_name": "QwenImage21Pipeline",
        "sample_sigmas": sample_sigmas,
        "processor": ["transformers", "Qwen3VLProcessor"],
        "scheduler": ["diffusers", type(schedule).__name__],
        "text_encoder": ["transformers", type(text).__name__],
        "transformer": ["diffusers", type(network).__name__],
        "vae": ["diffusers", type(image).__name__],
    }
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


_DEEP: Config = {
    "base_dim": 2,
    "decoder_base_dim": 2,
    "dim_mult": [1, 1, 1, 1, 2, 2, 2],
    "temperal_downsample": [False] * 3 + [True] * 3,
}
"""Autoencoder config for images of a megapixel, the size of every reference."""


def make_edit(folder: Path, vae: Config | None = None, **how: Any) -> Path:
    """Write a checkpoint that reads images of a megapixel as few tokens."""
    make_qwenimage21(folder, vae=_DEEP | (vae or {}), vision={"patch_size": 64}, **how)
    size = {"shortest_edge": 256, "longest_edge": 1 << 24}
    Qwen2VLImageProcessorPil(patch_size=64, merge_size=2, size=size).save_pretrained(
        folder / "processor"
    )
    return folder


class Processor:
    """Replacement for Qwen3VLProcessor, whose original requires torchvision."""

    def __init__(self, tokenizer: Any, images: Any) -> None:
        self.tokenizer, self.images = tokenizer, images

    def __call__(self, text: list[str], images: Any = None, **how: Any) -> BatchEncoding:
        if images is None:
            encoding: BatchEncoding = self.tokenizer(text, **how)
            return encoding
        features = self.images(images, return_tensors=how["return_tensors"])
        patches = features["image_grid_thw"].prod(dim=-1).tolist()
        marks = [OF_IMAGES[2] * (count // self.images.merge_size**2) for count in patches]
        parts = text[0].split(OF_IMAGES[2])
        filled = "".join(part + mark for part, mark in zip(parts, [*marks, ""], strict=True))
        tokens = self.tokenizer([filled], **how)
        pad = self.tokenizer.convert_tokens_to_ids(OF_IMAGES[2])
        is_image = (tokens["input_ids"] == pad).int()
        return BatchEncoding({**tokens, **features, "mm_token_type_ids": is_image})

    def apply_chat_template(self, messages: list[Any], **how: Any) -> list[list[int]]:
        """Return the token ids of one chat message."""
        (message,) = messages
        text = "".join(part["text"] for part in message["content"])
        rendered = f"<|im_start|>{message['role']}\n{text}<|im_end|>\n"
        return [self.tokenizer(rendered)["input_ids"]]


def _processor(folder: Path) -> Processor:
    reads_images = (folder / "preprocessor_config.json").is_file()
    images = Qwen2VLImageProcessorPil.from_pretrained(folder) if reads_images else None
    return Processor(Qwen2TokenizerFast.from_pretrained(folder), images)


def pipeline_of(folder: Path) -> QwenImage21Pipeline:
    """diffusers' pipeline of a checkpoint."""
    pipeline = QwenImage21Pipeline(
        FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        AutoencoderKLQwenImage21.from_pretrained(folder / "vae"),
        Qwen3VLForConditionalGeneration.from_pretrained(folder / "text_encoder"),
        _processor(folder / "processor"),
        QwenImage21Transformer2DModel.from_pretrained(folder / "transformer"),
        json.loads((folder / "model_index.json").read_text())["sample_sigmas"],
    )
    pipeline.vae_scale_factor = pipeline.vae.config.scale_factor_spatial
    return pipeline


def qwen3_vl(
    seed: int, vision: Config | None = None, **overrides: Any
) -> Qwen3VLForConditionalGeneration:
    """Complete Qwen3-VL with random weights and the tokenizer's vocabulary."""
    values = {**QWEN3, "vocab_size": len(qwen_tokenizer()) + 5, **overrides}
    values["rope_parameters"] = {
        "mrope_section": [2, 2, 1],
        "mrope_interleaved": True,
        **values["rope_parameters"],
    }
    tower = {**_VISION, **(vision or {}), "out_hidden_size": values["hidden_size"]}
    pad = qwen_tokenizer(OF_IMAGES).convert_tokens_to_ids(OF_IMAGES[2])
    config = Qwen3VLConfig(text_config=values, vision_config=tower, image_token_id=pad)
    return randomize(Qwen3VLForConditionalGeneration(config), seed)


def qwenimage21_transformer(seed: int, **overrides: Any) -> QwenImage21Transformer2DModel:
    """Transformer with random weights; sizes follow those that determine them."""
    config = _TRANSFORMER | overrides
    sizes = {
        "attention_head_dim": sum(config["axes_dims_rope"]),
        "out_channels": config["in_channels"],
    }
    network = randomize(QwenImage21Transformer2DModel(**(config | sizes)), seed)
    for name, parameter in network.named_parameters():
        if name.endswith(("norm_q.weight", "norm_k.weight")):
            parameter.data *= 1.5  # sharper attention, so single words matter
        if name.endswith("text_norm.weight"):
            parameter.data -= 1  # the norm adds 1 to it
    return network


def make_vae(seed: int, **overrides: Any) -> AutoencoderKLQwenImage21:
    """Autoencoder whose latents have means and deviations by channel."""
    config = _VAE | overrides
    config["scale_factor_spatial"] = 2 ** (len(config["dim_mult"]) - 1)
    channels = range(config["z_dim"])
    statistics = {
        "latents_mean": [0.3 * channel - 0.5 for channel in channels],
        "latents_std": [0.8 + 0.2 * channel for channel in channels],
    }
    model = randomize(AutoencoderKLQwenImage21(**config, **statistics), seed)
    for name, parameter in model.named_parameters():
        if name.endswith("gamma"):
            parameter.data = 1 + 0.2 * parameter.data
    model.decoder.conv_out.weight.data *= 0.5  # most pixels in [-1, 1]; clipping hides errors
    return model
