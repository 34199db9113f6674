"""Tiny random Qwen-Image checkpoints, built by the reference libraries themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diffusers import (
    AutoencoderKLQwenImage,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    QwenImageControlNetModel,
    QwenImageEditInpaintPipeline,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from transformers import BatchEncoding
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.parity.tiny import Config, randomize
from tests.parity.tiny_qwen import OF_IMAGES, VISION, qwen25, qwen_tokenizer

_TRANSFORMER: Config = {
    "num_layers": 3,
    "num_attention_heads": 3,
    "axes_dims_rope": (4, 6, 10),
}
_VAE: Config = {
    "base_dim": 8,
    "z_dim": 4,
    "dim_mult": [1, 2, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [False, True],
}
_SCHEDULER: Config = {
    "use_dynamic_shifting": True,
    "base_image_seq_len": 4,
    "max_image_seq_len": 60,
    "base_shift": 0.5,
    "max_shift": 0.9,
    "shift_terminal": 0.02,
}


def make_qwenimage(
    folder: Path,
    *,
    transformer: Config | None = None,
    vae: Config | None = None,
    text_encoder: Config | None = None,
    scheduler: Config | None = None,
    seed: int = 0,
    kind: type[DiffusionPipeline] = QwenImagePipeline,
    markers: tuple[str, ...] = (),
    **save_kwargs: Any,
) -> Path:
    """Write a complete checkpoint in diffusers' layout to `folder` and return it.

    Each dict overrides single values of that part's small default config; shared sizes follow the
    part that determines them.
    """
    text = qwen25(seed + 2, **(text_encoder or {}))
    image = make_vae(seed + 1, **(vae or {}))
    config = _TRANSFORMER | (transformer or {})
    sizes = {
        "attention_head_dim": sum(config["axes_dims_rope"]),
        "in_channels": 4 * image.config.z_dim,
        "out_channels": image.config.z_dim,
        "joint_attention_dim": text.config.text_config.hidden_size,
    }
    network = randomize(QwenImageTransformer2DModel(**(config | sizes)), seed + 3)
    for name, parameter in network.named_parameters():
        if ".norm_" in name and name.endswith("weight"):
            parameter.data *= 1.5  # sharper attention, so single words matter
    kind(
        scheduler=FlowMatchEulerDiscreteScheduler(**(_SCHEDULER | (scheduler or {}))),
        vae=image,
        text_encoder=text,
        tokenizer=qwen_tokenizer(markers),
        transformer=network,
    ).save_pretrained(folder, **save_kwargs)
    return folder


CONTROL_SHARED = (
    *("in_channels", "out_channels", "attention_head_dim", "num_attention_heads"),
    *("joint_attention_dim", "axes_dims_rope"),
)
"""Fields that a ControlNet takes from its transformer by default."""


def make_control(folder: Path, checkpoint: Path, seed: int, **overrides: Any) -> Any:
    """Write a ControlNet of two blocks for that checkpoint's transformer; return it."""
    base = QwenImageTransformer2DModel.load_config(checkpoint / "transformer")
    shared: dict[str, Any] = {name: base[name] for name in CONTROL_SHARED}
    config = {**shared, "num_layers": 2, **overrides}
    network = randomize(QwenImageControlNetModel(**config), seed)
    network.save_pretrained(folder)
    return network


_SMALLER: Config = {
    "base_dim": 2,
    "dim_mult": [1, 1, 2, 2, 2],
    "temperal_downsample": [False, False, True, True],
}
"""Autoencoder config for images of a megapixel, the size of every edit."""


def make_edit(
    folder: Path,
    *,
    processor: Config | None = None,
    vae: Config | None = None,
    text_encoder: Config | None = None,
    vision: Config | None = None,
    kind: type[DiffusionPipeline] = QwenImageEditPipeline,
    **how: Any,
) -> Path:
    """Write a complete Qwen-Image-Edit checkpoint whose encoder reads few patches."""
    text = {**(text_encoder or {}), "vision": vision or {}}
    vae_config = _SMALLER | (vae or {})
    make_qwenimage(folder, vae=vae_config, text_encoder=text, markers=OF_IMAGES, **how)
    vision_config = {**VISION, **(vision or {})}
    sizes = {
        "patch_size": vision_config["patch_size"],
        "merge_size": vision_config.get("spatial_merge_size", 2),
        "temporal_patch_size": vision_config.get("temporal_patch_size", 2),
        "size": {"shortest_edge": 256, "longest_edge": 2500},
    }
    Qwen2VLImageProcessorPil(**(sizes | (processor or {}))).save_pretrained(folder / "processor")
    index = folder / "model_index.json"
    index.write_text(index.read_text().replace("QwenImagePipeline", kind.__name__))
    return folder


class Processor:
    """Replacement for Qwen2VLProcessor with texts of images.

    The original requires torchvision for its video processor.
    """

    def __init__(self, tokenizer: Any, image_processor: Any) -> None:
        self.tokenizer, self.image_processor = tokenizer, image_processor

    def __call__(self, text: list[str], images: Any, **how: Any) -> BatchEncoding:
        features = self.image_processor(images, return_tensors=how["return_tensors"])
        patches = features["image_grid_thw"].prod(dim=-1).tolist()
        marks = [OF_IMAGES[2] * (count // self.image_processor.merge_size**2) for count in patches]
        texts = [_filled(prompt.split(OF_IMAGES[2]), marks) for prompt in text]
        return BatchEncoding({**self.tokenizer(texts, **how), **features})


def _filled(parts: list[str], marks: list[str]) -> str:
    return "".join(part + mark for part, mark in zip(parts, [*marks, ""], strict=True))


EDITS = {
    kind.__name__: kind
    for kind in (QwenImageEditPipeline, QwenImageEditInpaintPipeline, QwenImageEditPlusPipeline)
}


def edits(folder: Path, kind: str | None = None) -> Any:
    """diffusers' pipeline of a checkpoint whose encoder gets a mask of the image tokens.

    Without the mask, transformers 5 positions image tokens like words; version 4 computed it
    itself.

    Args:
        kind: class of the pipeline; None for the class in the checkpoint's index.
    """
    parts = QwenImagePipeline.from_pretrained(folder).components
    patches = Qwen2VLImageProcessorPil.from_pretrained(folder / "processor")
    kind = kind or json.loads((folder / "model_index.json").read_text())["_class_name"]
    pipeline = EDITS[kind](**parts, processor=Processor(parts["tokenizer"], patches))
    original = pipeline.text_encoder.forward
    pad = parts["tokenizer"].convert_tokens_to_ids(OF_IMAGES[2])
    pipeline.text_encoder.config.image_token_id = pad

    def forward(input_ids: Any, **given: Any) -> Any:
        return original(input_ids, mm_token_type_ids=(input_ids == pad).int(), **given)

    pipeline.text_encoder.forward = forward
    return pipeline


def make_vae(seed: int, **overrides: Any) -> AutoencoderKLQwenImage:
    """Autoencoder whose latents have means and deviations by channel."""
    config = _VAE | overrides
    channels = range(config["z_dim"])
    statistics = {
        "latents_mean": [0.3 * channel - 0.5 for channel in channels],
        "latents_std": [0.8 + 0.2 * channel for channel in channels],
    }
    model = randomize(AutoencoderKLQwenImage(**config, **statistics), seed)
    for name, parameter in model.named_parameters():
        if name.endswith("gamma"):
            parameter.data = 1 + 0.2 * parameter.data
    model.decoder.conv_out.weight.data *= 1.2  # most pixels in [-1, 1]; clipping hides errors
    return model
