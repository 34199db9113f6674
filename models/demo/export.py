"""Writes the trained demo as a checkpoint folder in diffusers' layout."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from models.demo.configs import CLIP, FLUX, SHIFT, STEPS, T5, TRUE_CFG_SCALE, VAE
from models.demo.model import TextToVelocity
from models.demo.scenes import SIZE_PX
from models.demo.tokenizers import T5_LENGTH, write_clip, write_t5
from models.flux import weights as flux_weights
from models.renames import Renames, source
from models.text import clip as clip_text
from models.text import t5 as t5_text
from models.vae import weights as vae_weights
from models.vae.image import AutoencoderKL
from models.weights import flat_parameters

DIFFUSERS_FILE = "diffusion_pytorch_model.safetensors"
TRANSFORMERS_FILE = "model.safetensors"
STORED = np.float16
"""On disk; half the size, and ten bits of every number."""

T5_RENAMES: Renames = (
    # A gated T5's name for it, which the table allows beside the plain T5's.
    (
        r"encoder\.block\.(\d+)\.layer\.1\.DenseReluDense\.wi_1\.weight",
        r"blocks.feed_forward.up.kernel[\1]",
    ),
    *t5_text.RENAMES,
)

MODEL_INDEX = {
    "_class_name": "FluxPipeline",
    "_diffusers_version": "0.36.0",
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "text_encoder_2": ["transformers", "T5EncoderModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "tokenizer_2": ["transformers", "T5TokenizerFast"],
    "transformer": ["diffusers", "FluxTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "feature_extractor": [None, None],
    "image_encoder": [None, None],
}
SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": SHIFT,
    "use_dynamic_shifting": False,
}
DEFAULTS = {
    "num_inference_steps": STEPS,
    "max_sequence_length": T5_LENGTH,
    "width": SIZE_PX,
    "height": SIZE_PX,
    "true_cfg_scale": TRUE_CFG_SCALE,
    "negative_prompt": "",
}


def export(model: TextToVelocity, vae: AutoencoderKL, folder: Path) -> None:
    """Write `folder` anew: it is replaced whole, once all its files are there."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    write_clip(partial / "tokenizer")
    write_t5(partial / "tokenizer_2")
    _write_json(partial / "model_index.json", MODEL_INDEX)
    _write_json(partial / "scheduler" / "scheduler_config.json", SCHEDULER)
    _write_json(partial / "atelier.json", {"defaults": DEFAULTS})
    for name, module, renames, config, file in (
        ("transformer", model.transformer, flux_weights.RENAMES, _flux(), DIFFUSERS_FILE),
        ("vae", vae, vae_weights.RENAMES, _vae(), DIFFUSERS_FILE),
        ("text_encoder", model.clip, clip_text.RENAMES, _clip(), TRANSFORMERS_FILE),
        ("text_encoder_2", model.t5, T5_RENAMES, _t5(), TRANSFORMERS_FILE),
    ):
        _write_json(partial / name / "config.json", config)
        save_file(tensors(module, renames), partial / name / file, metadata={"format": "pt"})
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def tensors(module: nnx.Module, renames: Renames) -> dict[str, np.ndarray]:
    """Every parameter under its checkpoint key, laid out as torch lays it out."""
    stored = {}
    for path, leaf in flat_parameters(module).items():
        whole = source(path, None, renames)
        array = np.asarray(leaf[...], STORED)
        if whole is not None:
            stored[whole] = _as_torch(path, array)
            continue
        for layer, part in enumerate(array):
            key = source(path, layer, renames)
            if key is None:
                raise ValueError(f"{path}[{layer}] has no name in the checkpoint")
            stored[key] = _as_torch(path, part)
    return stored


def _as_torch(path: str, array: np.ndarray) -> np.ndarray:
    if path.endswith("kernel"):
        array = np.moveaxis(array, (-1, -2), (0, 1))
    return np.ascontiguousarray(array)


def _flux() -> dict[str, Any]:
    return {"_class_name": "FluxTransformer2DModel", **dataclasses.asdict(FLUX)}


def _vae() -> dict[str, Any]:
    return {"_class_name": "AutoencoderKL", **dataclasses.asdict(VAE)}


def _clip() -> dict[str, Any]:
    special = {"bos_token_id": CLIP.vocab_size - 2, "pad_token_id": CLIP.eos_token_id}
    return {
        "architectures": ["CLIPTextModel"],
        "model_type": "clip_text_model",
        **dataclasses.asdict(CLIP),
        **special,
    }


def _t5() -> dict[str, Any]:
    return {
        "architectures": ["T5EncoderModel"],
        "model_type": "t5",
        **dataclasses.asdict(T5),
        "is_encoder_decoder": False,
        "use_cache": False,
        "tie_word_embeddings": False,
        "dropout_rate": 0.0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


def _write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
