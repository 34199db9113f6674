"""Random adapters of the demo Flux: their files, and their entries in requests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from models.spec.lora import RequestedLora, always, pages_of
from workers.loading.loras import digest_of

DEMO = Path(__file__).parents[2] / "models/demo/flux"
CONFIG = json.loads((DEMO / "transformer/config.json").read_text("utf-8"))
WIDTH = CONFIG["num_attention_heads"] * CONFIG["attention_head_dim"]
SCALE = 0.8


def adapter(path: Path, seed: int, rank: int = 4) -> Path:
    """Write an adapter whose random weights change the demo's images."""
    draw = np.random.default_rng(seed).standard_normal
    arrays = {}
    for block in range(4):
        name = f"transformer.single_transformer_blocks.{block}.attn.to_v"
        arrays[f"{name}.lora_A.weight"] = draw((rank, WIDTH)).astype(np.float32) / WIDTH**0.5
        arrays[f"{name}.lora_B.weight"] = 8 * draw((WIDTH, rank)).astype(np.float32)
    save_file(arrays, path)
    return path


def requested(name: str, path: Path, rank: int = 4) -> RequestedLora:
    """Return the resolved request entry of an adapter's file."""
    return RequestedLora(
        name=name,
        digest=digest_of(path),
        pages=pages_of(rank),
        networks=("transformer",),
        scales=always(SCALE),
    )
