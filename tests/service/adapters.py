"""A model that accepts LoRA adapters, and adapter files for it: valid files, and files with one
defect each."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from models.adapters.files.adapter import KernelShape, LayerPosition
from models.adapters.files.name_table import Names, NetworkNames, packed
from models.spec.lora import Lora
from tests.service.standin import MODEL, SPEC

WIDTH = 8
LAYERS = {
    f"blocks.{number}.q": {LayerPosition(f"blocks.{number}.q"): KernelShape(WIDTH, WIDTH)}
    for number in range(2)
}
NAMES = Names((NetworkNames("transformer", LAYERS, ("transformer.", ""), ("lora_unet_",)),))

INK = Lora(
    name="ink",
    model=MODEL,
    digest="11" * 32,
    bytes=1000,
    rank=16,
    networks=("transformer",),
    trigger="in ink",
)
SECRET = INK.model_copy(update={"name": "secret", "tenants": ("acme",)})
BROKEN = INK.model_copy(update={"name": "broken", "error": "NaN in blocks.0.q", "digest": ""})
OIL = INK.model_copy(update={"name": "oil", "rank": 100, "digest": "22" * 32, "trigger": ""})
SPECS_LORAS = {lora.name: lora for lora in (INK, SECRET, BROKEN, OIL)}

TAKING = SPEC.model_copy(
    update={
        "fields": SPEC.fields | {"loras"},
        "lora_pages": 8,
        "lora_layers": packed(NAMES),
        "loras": SPECS_LORAS,
    }
)
"""Stand-in model with the operator's LoRA adapters and memory for rank 128."""
OTHER = TAKING.model_copy(
    update={
        "name": "other",
        "loras": {"chalk": INK.model_copy(update={"name": "chalk", "model": "other"})},
    }
)


def arrays(rank: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    """LoRA tensors of every layer, under PEFT's names."""
    random = np.random.default_rng(seed)
    shapes = {"lora_A": (rank, WIDTH), "lora_B": (WIDTH, rank)}
    return {
        f"transformer.{layer}.{matrix}.weight": random.normal(size=shape).astype(np.float32)
        for layer in LAYERS
        for matrix, shape in shapes.items()
    }


def file_of(tensors: dict[str, np.ndarray], **header: Any) -> bytes:
    """A safetensors file of these tensors; `header` replaces entries of its header."""
    entries: dict[str, Any] = {}
    data = b""
    for name, array in tensors.items():
        stop = len(data) + array.nbytes
        entries[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [len(data), stop]}
        data += array.tobytes()
    head = json.dumps(entries | header).encode()
    return len(head).to_bytes(8, "little") + head + data


def adapter(rank: int = 4, seed: int = 0) -> bytes:
    """A complete, valid adapter file."""
    return file_of(arrays(rank, seed))
