"""diffusers' pipelines from the same configs, with random weights made on the device.

Prompts are blank, as they are on the other side: as many tokens as the encoders take, all of them
text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

Json = Mapping[str, Any]

CONFIGS: Mapping[str, tuple[str, str]] = {
    "CLIPTextModel": ("CLIPTextConfig", "CLIPTextModel"),
    "CLIPTextModelWithProjection": ("CLIPTextConfig", "CLIPTextModelWithProjection"),
    "T5EncoderModel": ("T5Config", "T5EncoderModel"),
    "UMT5EncoderModel": ("UMT5Config", "UMT5EncoderModel"),
}
"""Text encoder → its config's class and its own in transformers."""

FLUX = {
    "transformer": "FluxTransformer2DModel",
    "vae": "AutoencoderKL",
    "text_encoder": "CLIPTextModel",
    "text_encoder_2": "T5EncoderModel",
}
SDXL = {
    "unet": "UNet2DConditionModel",
    "vae": "AutoencoderKL",
    "text_encoder": "CLIPTextModel",
    "text_encoder_2": "CLIPTextModelWithProjection",
}
WAN = {
    "transformer": "WanTransformer3DModel",
    "transformer_2": "WanTransformer3DModel",
    "vae": "AutoencoderKLWan",
    "text_encoder": "UMT5EncoderModel",
}
PARTS: Mapping[str, Mapping[str, str]] = {
    "FluxPipeline": FLUX,
    "StableDiffusionXLPipeline": SDXL,
    "WanPipeline": WAN,
}
"""Pipeline → its networks and their classes."""

FLOAT32 = ("AutoencoderKLWan",)
"""Networks that both sides have in float32, as diffusers advises."""


class BlankTokenizer:
    """Text without words."""

    def __init__(self, length: int) -> None:
        self.model_max_length = length

    def __call__(
        self,
        prompt: str | Sequence[str],
        padding: Any = None,
        max_length: int | None = None,
        **how: Any,
    ) -> transformers.BatchEncoding:
        count = 1 if isinstance(prompt, str) else len(prompt)
        length = 1 if padding == "longest" else max_length or self.model_max_length
        ids = torch.zeros(count, length, dtype=torch.long)
        return transformers.BatchEncoding({"input_ids": ids, "attention_mask": ids + 1})

    def tokenize(self, prompt: str) -> list[str]:
        """What diffusers looks for textual inversions in."""
        return []


def made(folder: Path, device: str, dtype: torch.dtype) -> Any:
    """The pipeline of a folder of configs.

    Raises: ValueError: of a kind that is not compared here.
    """
    index = read(folder / "model_index.json")
    kind = index["_class_name"]
    if kind not in PARTS:
        raise ValueError(f"{kind} is not compared here, but {', '.join(PARTS)}")
    names = {name: which for name, which in PARTS[kind].items() if (folder / name).is_dir()}
    networks = {
        name: network(read(folder / name / "config.json"), which, device, dtype)
        for name, which in names.items()
    }
    clip = networks["text_encoder"].config
    length = getattr(clip, "max_position_embeddings", None) or 512
    tokenizers = {"tokenizer": BlankTokenizer(length)}
    if kind != "WanPipeline":
        tokenizers["tokenizer_2"] = BlankTokenizer(length)
    options = {
        "WanPipeline": lambda: {
            "transformer_2": networks.get("transformer_2"),
            "boundary_ratio": index.get("boundary_ratio"),
            "expand_timesteps": bool(index.get("expand_timesteps")),
        },
        "StableDiffusionXLPipeline": lambda: {"add_watermarker": False},
        "FluxPipeline": dict,
    }[kind]()
    pipeline = getattr(diffusers, kind)(
        scheduler=scheduler(folder, index), **{**networks, **tokenizers, **options}
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def network(config: Json, which: str, device: str, dtype: torch.dtype) -> Any:
    """Made where it stays, in its dtype, with torch's own random numbers."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if which in FLOAT32 else dtype)
    try:
        with torch.device(device):
            return maker(config, which)().eval().requires_grad_(False)
    finally:
        torch.set_default_dtype(usual)


def maker(config: Json, which: str) -> Callable[[], Any]:
    if which in CONFIGS:
        of_config, own = (getattr(transformers, name) for name in CONFIGS[which])
        return lambda: own(of_config(**config))
    kind = getattr(diffusers, which)
    return lambda: kind.from_config(
        {name: value for name, value in config.items() if not name.startswith("_")}
    )


def scheduler(folder: Path, index: Json) -> Any:
    config = read(folder / "scheduler" / "scheduler_config.json")
    return getattr(diffusers, index["scheduler"][-1]).from_config(config)


def read(file: Path) -> Any:
    return json.loads(file.read_text())
