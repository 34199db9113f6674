"""Networks of every family from GGUF files equal those from the decoded numbers.

The files have the names and formats of public ones: quantized matrices, exact vectors, blocks
across the rows of convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from models.checkpoint.folder import CheckpointError, UnsupportedCheckpoint
from tests.models.flux import original_writer
from tests.models.gguf_files import write_gguf
from tests.models.ltx.test_names import authors as ltx_authors
from tests.models.sdxl.original_writer import unet as sdxl_unet
from tests.models.single_files import Tensors, are_equal, weights, write
from tests.models.wan.test_single_file import authors as wan_authors
from tests.models.zimage.original_writer import transformer as comfys
from tests.parity.tiny import make_flux
from tests.parity.tiny_ltx_pipeline import make_ltx
from tests.parity.tiny_qwenimage import make_qwenimage
from tests.parity.tiny_sdxl import make_sdxl
from tests.parity.tiny_wan import make_wan
from tests.parity.tiny_zimage import make_zimage

WEIGHTS = "diffusion_pytorch_model.safetensors"


def transformer(folder: Path) -> Tensors:
    return load_file(folder / "transformer" / WEIGHTS)


def flux(root: Path) -> tuple[Path, Tensors]:
    sizes = {"attention_head_dim": 32, "num_attention_heads": 2, "axes_dims_rope": (8, 12, 12)}
    base = make_flux(root, transformer=sizes)
    return base, original_writer.transformer(base / "transformer")


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
            ("sdxl", sdxl),
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
        ("enc.blk.0.attn_q.weight", r"t5\.gguf is a GGUF file of a text model \(t5encoder\)"),
        ("blocks.0.self_attn.q.weight", "no Flux transformer in it"),
    ],
)
def test_a_file_of_another_model_is_named(key: str, message: str, tmp_path: Path) -> None:
    base, stored = flux(tmp_path / "base")
    write_gguf({key: stored["img_in.weight"]}, tmp_path / "t5.gguf", "t5encoder")
    with pytest.raises(UnsupportedCheckpoint, match=message):
        weights(tmp_path / "t5.gguf", base)


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
