"""Flux adapters compared with diffusers, from files of each format: transformer and CLIP.

diffusers' converters support only the published sizes if layers are fused with the MLP's, and omit
layers outside the blocks. These files are compared with PEFT's file of the same changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline

from models import registry
from models.interface.pipeline import generate
from tests.parity import tiny
from tests.parity.adapter_files import (
    AtelierRunner,
    Change,
    Changes,
    LoadedAdapter,
    Tensors,
    assert_far,
    assert_same,
    diffusers_pixels,
    kohya,
    peft,
    peft_with_metadata,
    random_changes,
    turned,
    without,
    write,
)
from tests.parity.distances import psnr_db

# diffusers triggers NumPy's deprecation of torch tensors without the new `__array__` signature.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

REQUEST = {"prompt": "a red circle", "height": 64, "width": 64, "num_inference_steps": 3}
GUIDANCE, SEED = 3.5, 5
DOUBLE, SINGLE = 2, 3
"""Numbers of blocks in the tiny checkpoint."""

_D, _S = "transformer_blocks.{}.", "single_transformer_blocks.{}."
IN_BLOCKS = {
    "double_blocks.{}.img_attn.qkv": [f"{_D}attn.to_{x}" for x in "qkv"],
    "double_blocks.{}.txt_attn.qkv": [f"{_D}attn.add_{x}_proj" for x in "qkv"],
    "double_blocks.{}.img_attn.proj": [f"{_D}attn.to_out.0"],
    "double_blocks.{}.txt_attn.proj": [f"{_D}attn.to_add_out"],
    "double_blocks.{}.img_mod.lin": [f"{_D}norm1.linear"],
    "double_blocks.{}.txt_mod.lin": [f"{_D}norm1_context.linear"],
    "double_blocks.{}.img_mlp.0": [f"{_D}ff.net.0.proj"],
    "double_blocks.{}.img_mlp.2": [f"{_D}ff.net.2"],
    "double_blocks.{}.txt_mlp.0": [f"{_D}ff_context.net.0.proj"],
    "double_blocks.{}.txt_mlp.2": [f"{_D}ff_context.net.2"],
    "single_blocks.{}.linear1": [*(f"{_S}attn.to_{x}" for x in "qkv"), f"{_S}proj_mlp"],
    "single_blocks.{}.linear2": [f"{_S}proj_out"],
    "single_blocks.{}.modulation.lin": [f"{_S}norm.linear"],
}
OUTSIDE = {
    "img_in": ["x_embedder"],
    "txt_in": ["context_embedder"],
    "time_in.in_layer": ["time_text_embed.timestep_embedder.linear_1"],
    "vector_in.out_layer": ["time_text_embed.text_embedder.linear_2"],
    "guidance_in.in_layer": ["time_text_embed.guidance_embedder.linear_1"],
    "final_layer.linear": ["proj_out"],
    "final_layer.adaLN_modulation.1": ["norm_out.linear"],
}
"""The authors' layers, with diffusers' equivalents in the order of their outputs."""
XLABS = {
    "double_blocks.{}.img_attn.qkv": "double_blocks.{}.processor.qkv_lora1",
    "double_blocks.{}.txt_attn.qkv": "double_blocks.{}.processor.qkv_lora2",
    "double_blocks.{}.img_attn.proj": "double_blocks.{}.processor.proj_lora1",
    "double_blocks.{}.txt_attn.proj": "double_blocks.{}.processor.proj_lora2",
    "single_blocks.{}.linear2": "single_blocks.{}.processor.proj_lora",
}


def numbered(table: dict[str, list[str]]) -> dict[str, list[str]]:
    """Expand a table to all blocks."""
    return {
        name.format(number): [layer.format(number) for layer in layers]
        for name, layers in table.items()
        for number in range(SINGLE if "single" in name else DOUBLE)
        if number == 0 or "{}" in name
    }


LAYERS = numbered(IN_BLOCKS | OUTSIDE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_flux(tmp_path_factory.mktemp("flux"))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    pipe = FluxPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def actual(folder: Path) -> AtelierRunner:
    return AtelierRunner(folder)


@pytest.fixture(scope="module")
def fused(reference: Any) -> Changes:
    """Adapter changes of fused layers, under the authors' names."""
    modules = dict(reference.transformer.named_modules())
    generator = torch.Generator().manual_seed(3)
    changes: Changes = {}
    for number, (name, parts) in enumerate(LAYERS.items()):
        layers = [modules[part] for part in parts]
        inputs, outputs = layers[0].in_features, sum(part.out_features for part in layers)
        rank = 3 + number % 3
        down = torch.randn(rank, inputs, generator=generator) / inputs**0.5
        up = 0.12 * torch.randn(outputs, rank, generator=generator)
        changes[name] = Change(down, up, 2.0 + number % 4)
    return changes


@pytest.fixture(scope="module")
def text(reference: Any) -> Changes:
    return random_changes(reference.text_encoder, 4, size=0.3, only=lambda name: "layers" in name)


def apart(fused: Changes, reference: Any) -> Changes:
    """The changes of fused layers under diffusers' names, each with its rows of `up`."""
    modules = dict(reference.transformer.named_modules())
    changes: Changes = {}
    for name, change in fused.items():
        up = change.up
        if name == "final_layer.adaLN_modulation.1":  # diffusers swaps shift and scale
            up = torch.cat(up.chunk(2)[::-1])
        sizes = [modules[layer].out_features for layer in LAYERS[name]]
        for layer, rows in zip(LAYERS[name], up.split(sizes), strict=True):
            changes[layer] = Change(change.down, rows, change.alpha)
    return changes


def by_diffusers(fused: Changes, text: Changes, reference: Any) -> Tensors:
    return peft({"transformer": apart(fused, reference), "text_encoder": text})


def as_kohya(fused: Changes, text: Changes) -> Tensors:
    return kohya("lora_unet", fused) | kohya("lora_te1_text_model", text)


def plain(prefix: str, fused: Changes, down: str = "lora_A", up: str = "lora_B") -> Tensors:
    """Tensors with the authors' dotted names and alpha multiplied in."""
    return {
        f"{prefix}{name}.{end}.weight": array
        for name, change in fused.items()
        for end, array in ((down, change.down), (up, change.scaled_up))
    }


def as_xlabs(fused: Changes) -> Tensors:
    names = numbered({original: [xlabs] for original, xlabs in XLABS.items()})
    return {
        f"{names[name][0]}.{end}.weight": array
        for name, change in fused.items()
        if name in names
        for end, array in (("down", change.down), ("up", change.scaled_up))
    }


def in_blocks(fused: Changes) -> Changes:
    """Changes that diffusers' converter reads at any size: those of blocks, without the MLP's
    rows.
    """
    return {n: c for n, c in fused.items() if "blocks" in n and "linear1" not in n}


def block_diagonal(fused: Changes) -> Changes:
    """Changes with separate ranks for each part of a fused layer, as kohya can train them."""
    changes: Changes = {}
    for name, change in fused.items():
        parts = len(LAYERS[name])
        rows = change.up.chunk(parts)
        changes[name] = replace(
            change,
            down=torch.cat([change.down * (n + 1) for n in range(parts)]),
            up=torch.block_diag(*rows),
        )
    return changes


Made = tuple[Tensors, Tensors | None]
"""A file's tensors, and PEFT's of the same changes if diffusers does not read the first."""


def made(form: str, fused: Changes, text: Changes, reference: Any) -> Made:
    of_blocks, complete = in_blocks(fused), by_diffusers(fused, text, reference)
    of_transformer = by_diffusers(fused, {}, reference)
    xlabs = {n: c for n, c in fused.items() if n in numbered({k: [k] for k in XLABS})}
    diagonal = block_diagonal({n: c for n, c in of_blocks.items() if "qkv" in n})
    forms: dict[str, Callable[[], Made]] = {
        "PEFT": lambda: (complete, None),
        "kohya": lambda: (as_kohya(fused, text), complete),
        "kohya, in blocks": lambda: (as_kohya(of_blocks, text), None),
        "kohya, block-diagonal": lambda: (as_kohya(diagonal, text), None),
        "ComfyUI": lambda: (plain("diffusion_model.", fused), of_transformer),
        "ComfyUI, in blocks": lambda: (
            plain("diffusion_model.", of_blocks, "lora_down", "lora_up"),
            None,
        ),
        "fal and ai-toolkit": lambda: (plain("base_model.model.", fused), of_transformer),
        "Black Forest Labs": lambda: (plain("", fused), of_transformer),
        "XLabs": lambda: (as_xlabs(xlabs), None),
        "kohya, diffusers' names": lambda: (
            kohya(
                "lora_transformer",
                {n: c for n, c in apart(xlabs, reference).items() if ".attn." in n},
            ),
            None,
        ),
    }
    return forms[form]()


FORMS = (
    *("PEFT", "kohya", "kohya, in blocks", "kohya, block-diagonal", "ComfyUI"),
    *("ComfyUI, in blocks", "fal and ai-toolkit", "Black Forest Labs", "XLabs"),
    "kohya, diffusers' names",
)


def run(pipe: Any) -> np.ndarray:
    generator = torch.Generator().manual_seed(SEED)
    image = pipe(**REQUEST, guidance_scale=GUIDANCE, generator=generator).images[0]
    return np.asarray(image)


@pytest.fixture(scope="module")
def files(
    tmp_path_factory: pytest.TempPathFactory, fused: Changes, text: Changes, reference: Any
) -> dict[str, tuple[Path, Path]]:
    """Paths by format: the file, and the file for diffusers."""
    root, paths = tmp_path_factory.mktemp("files"), {}
    for number, form in enumerate(FORMS):
        tensors, peft_tensors = made(form, fused, text, reference)
        file = write(tensors, root / f"{number}.safetensors")
        reference_file = (
            file
            if peft_tensors is None
            else write(peft_tensors, root / f"{number}-peft.safetensors")
        )
        paths[form] = (file, reference_file)
    return paths


@pytest.fixture(scope="module")
def expected(reference: Any, files: dict[str, tuple[Path, Path]]) -> Callable[[str], np.ndarray]:
    return cache(lambda form: diffusers_pixels(reference, [LoadedAdapter(files[form][1])], run))


ASKED = {**REQUEST, "guidance_scale": GUIDANCE, "seed": SEED}


@pytest.mark.parametrize("form", FORMS)
def test_every_file_format_matches_diffusers(
    form: str,
    actual: AtelierRunner,
    files: dict[str, tuple[Path, Path]],
    expected: Callable[[str], np.ndarray],
    record_property: Any,
) -> None:
    lora = LoadedAdapter(files[form][0])
    adapter = actual.read(lora)
    assert adapter.rank <= 5 and not adapter.ignored
    assert_same(actual.pixels(ASKED, [lora]), expected(form), record_property)


def test_alphas_of_metadata(
    actual: AtelierRunner, fused: Changes, reference: Any, tmp_path: Path, record_property: Any
) -> None:
    tensors, metadata = peft_with_metadata({"transformer": apart(fused, reference)})
    loras = [LoadedAdapter(write(tensors, tmp_path / "a.safetensors", metadata))]
    assert_same(
        actual.pixels(ASKED, loras), diffusers_pixels(reference, loras, run), record_property
    )


def test_missing_adapter_breaks_parity(
    reference: Any, expected: Callable[[str], np.ndarray]
) -> None:
    bare = diffusers_pixels(reference, [], run)
    for form in FORMS:
        assert psnr_db(expected(form), bare) < 40, "the adapter must change the image"


def test_banks_without_adapters_change_no_bit(folder: Path, actual: AtelierRunner) -> None:
    pipeline = registry.load("tiny", str(folder), "float32", {})
    without_banks = generate(pipeline, {**pipeline.spec.defaults, **ASKED}, {})
    np.testing.assert_array_equal(actual.pixels(ASKED, []), without_banks)


def test_two_adapters_one_of_negative_scale(
    actual: AtelierRunner,
    reference: Any,
    files: dict[str, tuple[Path, Path]],
    tmp_path: Path,
    record_property: Any,
) -> None:
    second = random_changes(reference.transformer, 9, 20, 13.0, size=0.05)
    file = write(peft({"transformer": second}), tmp_path / "second.safetensors")
    loras = [LoadedAdapter(files["kohya, in blocks"][0], 0.7), LoadedAdapter(file, -0.5)]
    assert [actual.read(lora).pages for lora in loras] == [1, 2]
    assert_same(
        actual.pixels(ASKED, loras), diffusers_pixels(reference, loras, run), record_property
    )


def reordered(
    tensors: Tensors, part: str, order: Callable[[torch.Tensor], torch.Tensor]
) -> Tensors:
    """Reorder the rows of `up` of these layers."""
    return {
        key: order(array) if part in key and "lora_up" in key else array
        for key, array in tensors.items()
    }


def mlp_first(up: torch.Tensor) -> torch.Tensor:
    """Rows of `linear1` in the order of the modules, which differs from the order of outputs."""
    width = up.shape[0] // 7
    return torch.cat([up[3 * width :], up[: 3 * width]])


WRONG: dict[str, Callable[[Changes, Changes], Tensors]] = {
    "alphas dropped": lambda fused, text: without(as_kohya(fused, text), ".alpha"),
    "keys in front of queries": lambda fused, text: reordered(
        as_kohya(fused, text),
        "attn_qkv",
        lambda up: torch.cat([up.chunk(3)[n] for n in (1, 0, 2)]),
    ),
    "the MLP in front": lambda fused, text: reordered(as_kohya(fused, text), "linear1", mlp_first),
    "shift and scale as in diffusers": lambda fused, text: reordered(
        as_kohya(fused, text), "adaLN", lambda up: torch.cat(up.chunk(2)[::-1])
    ),
    "no text encoder": lambda fused, text: as_kohya(fused, {}),
    "up and down swapped": lambda fused, text: as_kohya(turned(fused), text),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_interpretation_breaks_parity(
    wrong: str,
    actual: AtelierRunner,
    fused: Changes,
    text: Changes,
    expected: Callable[[str], np.ndarray],
    tmp_path: Path,
) -> None:
    file = write(WRONG[wrong](fused, text), tmp_path / "wrong.safetensors")
    assert_far(actual.pixels(ASKED, [LoadedAdapter(file)]), expected("kohya"))
