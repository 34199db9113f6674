"""Networks of every family from GGUF files equal those from the decoded numbers.

The files have the names and formats of public ones: quantized matrices, exact vectors, blocks
across the rows of convolutions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import MODEL_ARCH, get_tensor_name_map
from safetensors.torch import load_file

from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint
from models.checkpoint.key_mapping import target
from models.checkpoint.llama_names import ARCHITECTURES
from models.text.gemma3 import Gemma3Config, renames_of
from tests.models.chroma import original_writer as chroma_writer
from tests.models.flux import original_writer
from tests.models.gguf_files import write_gguf
from tests.models.ltx.test_names import authors as ltx_authors
from tests.models.sdxl.original_writer import unet as sdxl_unet
from tests.models.single_files import Tensors, are_equal, weights, write
from tests.models.wan.test_single_file import authors as wan_authors
from tests.models.zimage.original_writer import transformer as comfys
from tests.parity.tiny import make_flux
from tests.parity.tiny_chroma import make_chroma
from tests.parity.tiny_flux2 import make_flux2_dev
from tests.parity.tiny_ltx_pipeline import make_ltx
from tests.parity.tiny_qwenimage import make_qwenimage
from tests.parity.tiny_sdxl import make_sdxl
from tests.parity.tiny_wan import make_wan
from tests.parity.tiny_zimage import make_zimage

WEIGHTS = "diffusion_pytorch_model.safetensors"
WIDE_HEADS = {"attention_head_dim": 32, "num_attention_heads": 2, "axes_dims_rope": (8, 12, 12)}
"""Heads whose layers have whole blocks of numbers."""


def transformer(folder: Path) -> Tensors:
    return load_file(folder / "transformer" / WEIGHTS)


def flux(root: Path) -> tuple[Path, Tensors]:
    base = make_flux(root, transformer=WIDE_HEADS)
    return base, original_writer.transformer(base / "transformer")


def chroma(root: Path) -> tuple[Path, Tensors]:
    base = make_chroma(root, transformer=WIDE_HEADS)
    return base, chroma_writer.transformer(base)


def qwenimage(root: Path) -> tuple[Path, Tensors]:
    base = make_qwenimage(root)
    return base, transformer(base)


def zimage(root: Path) -> tuple[Path, Tensors]:
    base = make_zimage(root)
    return base, comfys(base)


def wan(root: Path) -> tuple[Path, Tensors]:
    base = make_wan(root)
    return base, wan_authors(transformer(base))


def ltx(root: Path) -> tuple[Path, Tensors]:
    base = make_ltx(root)
    return base, {ltx_authors(key): tensor for key, tensor in transformer(base).items()}


def sdxl(root: Path) -> tuple[Path, Tensors]:
    base = make_sdxl(root)
    return base, sdxl_unet(base / "unet")


FAMILIES = (
    ("flux", flux),
    *(
        pytest.param(*entry, marks=pytest.mark.nightly)
        for entry in (
            *(("qwen_image", qwenimage), ("lumina2", zimage), ("wan", wan), ("ltxv", ltx)),
            *(("sdxl", sdxl), ("chroma", chroma)),
        )
    ),
)
"""Architectures that the files name, and makers of a checkpoint and its transformer's arrays."""


@pytest.mark.parametrize(("architecture", "make"), FAMILIES)
def test_a_network_is_that_of_the_decoded_numbers(
    architecture: str, make: Callable[[Path], tuple[Path, Tensors]], tmp_path: Path
) -> None:
    """The file's ending does not matter, and its text encoders and autoencoder are the base's."""
    base, stored = make(tmp_path / "base")
    file = tmp_path / "quantized.bin"
    decoded = write_gguf(stored, file, architecture)
    assert any(not decoded[key].equal(stored[key].float()) for key in stored), "8 bits lose some"
    expected = weights(write(decoded, tmp_path / "plain.safetensors"), base)
    assert are_equal(weights(file, base), expected)


def test_leading_axes_that_tools_drop_are_restored(tmp_path: Path) -> None:
    base, stored = wan(tmp_path / "base")
    squeezed = {
        key: tensor[0] if tensor.ndim == 3 and len(tensor) == 1 else tensor
        for key, tensor in stored.items()
    }
    assert any(stored[key].shape != tensor.shape for key, tensor in squeezed.items())
    write_gguf(squeezed, tmp_path / "wan.gguf", "wan", lambda key, tensor: "F32")
    plain = weights(write(stored, tmp_path / "plain.safetensors"), base)
    assert are_equal(weights(tmp_path / "wan.gguf", base), plain)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            "blk.0.attn_q.weight",
            r"x\.gguf is a GGUF file of a text model \(gemma2\), whose numbers",
        ),
        ("blocks.0.self_attn.q.weight", "no Flux transformer in it"),
    ],
)
def test_a_file_of_another_model_is_named(key: str, message: str, tmp_path: Path) -> None:
    base, stored = flux(tmp_path / "base")
    write_gguf({key: stored["img_in.weight"]}, tmp_path / "x.gguf", "gemma2")
    with pytest.raises(UnsupportedCheckpoint, match=message):
        weights(tmp_path / "x.gguf", base)


TEXT_ENCODERS = (
    ("t5encoder", make_flux, "text_encoder_2", MODEL_ARCH.T5ENCODER),
    *(
        pytest.param(*entry, marks=pytest.mark.nightly)
        for entry in (
            ("t5encoder", make_wan, "text_encoder", MODEL_ARCH.T5ENCODER),
            ("qwen3", make_zimage, "text_encoder", MODEL_ARCH.QWEN3),
            ("qwen2vl", make_qwenimage, "text_encoder", MODEL_ARCH.QWEN2VL),
            ("llama", make_flux2_dev, "text_encoder", MODEL_ARCH.LLAMA),
            ("gemma3", make_ltx, "text_encoder", MODEL_ARCH.GEMMA3),
        )
    ),
)
"""Architectures of text encoders, makers of a checkpoint, and the encoder's part in it."""


def in_halves(key: str, tensor: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """Undo llama.cpp's `LlamaModel.permute`: row 2i of a head was i, and row 2i + 1 its partner."""
    kind = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    name = kind.get(key.split(".")[-2])
    if name is None:
        return tensor
    heads = tensor.chunk(config["text_config"][name])
    return torch.cat([rows for head in heads for rows in (head[0::2], head[1::2])])


@pytest.mark.parametrize(("architecture", "make", "part", "kind"), TEXT_ENCODERS)
def test_a_text_encoder_with_llama_cpps_names(
    architecture: str, make: Callable[[Path], Path], part: str, kind: MODEL_ARCH, tmp_path: Path
) -> None:
    base = make(tmp_path / "base")
    stored = {
        key.replace("language_model.", ""): tensor
        for key, tensor in load_file(base / part / "model.safetensors").items()
        if not any(part in key for part in ("visual", "vision", "projector"))
    }
    config = json.loads((base / part / "config.json").read_text())
    names = get_tensor_name_map(kind, 64)
    of_llama = {key: names.get_name(key, (".weight", ".bias")) or "" for key in stored}
    assert len({*of_llama.values(), ""}) == len(stored) + 1
    file, plain = tmp_path / "encoder.gguf", tmp_path / "plain.safetensors"
    added = {key: float(architecture == "gemma3" and "norm" in key) for key in stored}
    decoded = write_gguf(
        {of_llama[key]: tensor + added[key] for key, tensor in stored.items()}, file, architecture
    )
    assert any(not decoded[of_llama[key]].equal(stored[key].float()) for key in stored)
    authors = {key: decoded[of_llama[key]] - added[key] for key in stored}
    if architecture == "llama":
        authors = {key: in_halves(key, tensor, config) for key, tensor in authors.items()}
    write(authors, plain)
    assert are_equal(*(weights(base, parts={part: str(source)}) for source in (file, plain)))


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("output_norm", "final_norm.scale"),
        ("blk.3.attn_norm", "blocks.attention_norm.scale"),
        ("blk.3.post_attention_norm", "blocks.attended_norm.scale"),
        ("blk.3.ffn_norm", "blocks.feed_forward_norm.scale"),
        ("blk.3.post_ffw_norm", "blocks.fed_norm.scale"),
        ("blk.3.attn_q_norm", "blocks.attention.q_norm.scale"),
        ("blk.3.attn_k_norm", "blocks.attention.k_norm.scale"),
    ],
)
def test_llama_cpp_adds_one_to_norms_of_gemma(key: str, path: str) -> None:
    renames = renames_of(Gemma3Config(num_hidden_layers=6, layer_types=("full_attention",) * 6))
    goal = target(ARCHITECTURES["gemma3"].of(f"{key}.weight"), renames)
    assert goal is not None
    assert (goal.path, goal.layer) == (path, 3 if "blk" in key else None)
    (minus_one,) = renames[goal.rule][2:]
    assert minus_one(np.ones(2, np.float32)).tolist() == [0, 0]


def test_a_type_that_is_not_read_is_named(tmp_path: Path) -> None:
    base, stored = flux(tmp_path / "base")
    kinds = {"double_blocks.0.img_mlp.0.weight": "Q8_0"}
    write_gguf(stored, tmp_path / "x.gguf", kind_of=lambda key, tensor: kinds.get(key, "F32"))
    content = bytearray((tmp_path / "x.gguf").read_bytes())
    (key,) = kinds
    at = content.index(key.encode()) + len(key) + 4 + 16
    assert content[at] == 8
    content[at] = 9
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"img_mlp\.0\.weight is Q8_1, no weight that is"):
        weights(tmp_path / "x.gguf", base)
