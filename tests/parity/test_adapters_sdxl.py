"""SDXL adapters compared with diffusers, from files of each format: UNet and both text encoders."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from models import registry
from models.interface.pipeline import generate
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
from tests.parity.sdxl_cases import BASE, PICTURE, SEED
from tests.parity.tiny_sdxl import make_sdxl

# diffusers triggers NumPy's deprecation of torch tensors without the new `__array__` signature.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

REQUEST = {**BASE, "negative_prompt": "a green square", "num_inference_steps": 3}

AUTHORS_BLOCKS = {
    "down_blocks.0.resnets.0": "input_blocks.1.0",
    "down_blocks.0.downsamplers.0.conv": "input_blocks.2.0.op",
    "down_blocks.1.resnets.0": "input_blocks.3.0",
    "down_blocks.1.attentions.0": "input_blocks.3.1",
    "mid_block.resnets.0": "middle_block.0",
    "mid_block.attentions.0": "middle_block.1",
    "mid_block.resnets.1": "middle_block.2",
    "up_blocks.0.resnets.0": "output_blocks.0.0",
    "up_blocks.0.attentions.0": "output_blocks.0.1",
    "up_blocks.0.resnets.1": "output_blocks.1.0",
    "up_blocks.0.attentions.1": "output_blocks.1.1",
    "up_blocks.0.upsamplers.0.conv": "output_blocks.1.2.conv",
    "up_blocks.1.resnets.0": "output_blocks.2.0",
    "up_blocks.1.resnets.1": "output_blocks.3.0",
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0",
    "conv_out": "out.2",
}
AUTHORS_LAYERS = {
    "resnets": {
        "conv1": "in_layers.2",
        "time_emb_proj": "emb_layers.1",
        "conv2": "out_layers.3",
        "conv_shortcut": "skip_connection",
    }
}


def authors_name(name: str) -> str:
    """Name in the authors' checkpoint, whose UNet kohya's scripts train."""
    block = next(
        prefix for prefix in AUTHORS_BLOCKS if name == prefix or name.startswith(f"{prefix}.")
    )
    layer = name.removeprefix(block).lstrip(".")
    if ".resnets." in name:
        layer = AUTHORS_LAYERS["resnets"][layer]
    return ".".join(filter(None, (AUTHORS_BLOCKS[block], layer)))


def is_attention(name: str) -> bool:
    return ".attn" in name


def rank_of(name: str) -> int:
    return 4 if is_attention(name) else 3


def alpha_of(name: str) -> float:
    # diffusers' converter drops attention alphas that differ from the most frequent alpha.
    return 5.0 if ".resnets." in name else 6.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sdxl(tmp_path_factory.mktemp("sdxl"))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    pipe = diffusers.StableDiffusionXLPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def actual(folder: Path) -> AtelierRunner:
    return AtelierRunner(folder)


@pytest.fixture(scope="module")
def parts(reference: Any) -> dict[str, Changes]:
    """Changes by component."""
    text = {
        name: random_changes(getattr(reference, name), seed, size=0.3, only=lambda n: "layers" in n)
        for name, seed in (("text_encoder", 2), ("text_encoder_2", 3))
    }
    return {"unet": random_changes(reference.unet, 1, rank_of, alpha_of), **text}


def run(pipe: Any) -> np.ndarray:
    arguments = {name: value for name, value in REQUEST.items() if name != "seed"}
    output = pipe(**arguments, generator=torch.Generator().manual_seed(SEED))
    return np.asarray(output.images[0])


def run_on_image(pipe: Any) -> np.ndarray:
    kind = diffusers.StableDiffusionXLImg2ImgPipeline(**pipe.components)
    kind.set_progress_bar_config(disable=True)
    arguments = {n: v for n, v in REQUEST.items() if n not in ("seed", "width", "height")}
    size = REQUEST["width"], REQUEST["height"]
    image = PICTURE.resize(size, resample=3).resize(size)
    output = kind(
        **arguments, image=image, strength=0.7, generator=torch.Generator().manual_seed(SEED)
    )
    return np.asarray(output.images[0])


def bare(name: str) -> str:
    """Name of a text encoder's layer without the prefix that transformers adds in the second
    encoder.
    """
    return name.removeprefix("text_model.")


def text_as_kohya(parts: dict[str, Changes]) -> Tensors:
    return {
        **kohya("lora_te1_text_model", parts["text_encoder"], bare),
        **kohya("lora_te2_text_model", parts["text_encoder_2"], bare),
    }


def authors(parts: dict[str, Changes]) -> Tensors:
    return kohya("lora_unet", parts["unet"], authors_name) | text_as_kohya(parts)


def older(parts: dict[str, Changes]) -> Tensors:
    """Tensors in diffusers' first format of attention layers."""
    tensors = {}
    for part, changes in parts.items():
        for name, change in changes.items():
            for end, array in (("down", change.down), ("up", change.scaled_up)):
                if part == "unet" and is_attention(name):
                    head, _, layer = name.removesuffix(".0").rpartition(".")
                    tensors[f"unet.{head}.processor.{layer}_lora.{end}.weight"] = array
                elif part != "unet":
                    key = f"{part}.text_model.{bare(name)}.lora_linear_layer.{end}.weight"
                    tensors[key] = array
    return tensors


FORMS: dict[str, Callable[[dict[str, Changes]], Tensors]] = {
    "PEFT": peft,
    "kohya, the authors' names": authors,
    "kohya, diffusers' names": lambda parts: {
        # diffusers' converter supports no name of this kind for these layers.
        **without(kohya("lora_unet", parts["unet"]), "add_embedding"),
        **text_as_kohya(parts),
    },
    "processors": older,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, parts: dict[str, Changes]) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("files")
    paths = {
        name: write(form(parts), root / f"{number}.safetensors")
        for number, (name, form) in enumerate(FORMS.items())
    }
    tensors, metadata = peft_with_metadata(parts)
    paths["PEFT, alphas in metadata"] = write(tensors, root / "metadata.safetensors", metadata)
    return paths


@pytest.fixture(scope="module")
def expected(reference: Any, files: dict[str, Path]) -> Callable[[str], np.ndarray]:
    return cache(lambda form: diffusers_pixels(reference, [LoadedAdapter(files[form])], run))


@pytest.mark.parametrize("form", [*FORMS, "PEFT, alphas in metadata"])
def test_every_file_format_matches_diffusers(
    form: str,
    actual: AtelierRunner,
    files: dict[str, Path],
    expected: Callable[[str], np.ndarray],
    record_property: Any,
) -> None:
    adapter = actual.read(LoadedAdapter(files[form]))
    assert (adapter.rank, adapter.ignored) == (4, ())
    assert_same(
        actual.pixels(REQUEST, [LoadedAdapter(files[form])]), expected(form), record_property
    )


def test_missing_adapter_breaks_parity(
    reference: Any, expected: Callable[[str], np.ndarray]
) -> None:
    plain = diffusers_pixels(reference, [], run)
    assert psnr_db(expected("PEFT"), plain) < 40, "the adapter must change the image"


def test_banks_without_adapters_change_no_bit(folder: Path, actual: AtelierRunner) -> None:
    plain = registry.load("tiny", str(folder), "float32", {})
    without_banks = generate(plain, {**plain.spec.defaults, **REQUEST}, {})
    np.testing.assert_array_equal(actual.pixels(REQUEST, []), without_banks)


@pytest.mark.parametrize("scale", [-0.6, 1.3])
def test_any_scale(
    scale: float,
    actual: AtelierRunner,
    reference: Any,
    files: dict[str, Path],
    record_property: Any,
) -> None:
    loras = [LoadedAdapter(files["kohya, the authors' names"], scale)]
    expected = diffusers_pixels(reference, loras, run)
    assert_same(actual.pixels(REQUEST, loras), expected, record_property)


def test_two_adapters_of_several_pages(
    actual: AtelierRunner,
    reference: Any,
    files: dict[str, Path],
    tmp_path: Path,
    record_property: Any,
) -> None:
    second = random_changes(reference.unet, 9, 20, 13.0, size=0.05)
    file = write(peft({"unet": second}), tmp_path / "second.safetensors")
    loras = [LoadedAdapter(files["PEFT"], 0.7), LoadedAdapter(file, -0.5)]
    assert [actual.read(lora).pages for lora in loras] == [1, 2]
    expected = diffusers_pixels(reference, loras, run)
    assert_same(actual.pixels(REQUEST, loras), expected, record_property)


def test_image_to_image(
    actual: AtelierRunner, reference: Any, files: dict[str, Path], record_property: Any
) -> None:
    loras = [LoadedAdapter(files["PEFT"])]
    size = REQUEST["width"], REQUEST["height"]
    memory = io.BytesIO()
    PICTURE.resize(size, resample=3).resize(size).save(memory, "PNG")
    request = {**REQUEST, "strength": 0.7}
    output = actual.pixels(request, loras, {"image": memory.getvalue()})
    assert_same(output, diffusers_pixels(reference, loras, run_on_image), record_property)


def spoiled(parts: dict[str, Changes], wrong: str) -> Tensors:
    tensors = authors(parts)
    if wrong == "alphas dropped":
        return without(tensors, ".alpha")
    if wrong == "no convolutions of resnets":
        return without(tensors, "in_layers_2", "out_layers_3")
    if wrong == "no strided convolution":
        return without(tensors, "_0_op")
    if wrong == "no first text encoder":
        return without(tensors, "lora_te1_")
    if wrong == "no second text encoder":
        return without(tensors, "lora_te2_")
    if wrong == "up and down swapped":
        return authors({**parts, "unet": turned(parts["unet"])})
    assert wrong == "windows turned"
    unet = {
        name: Change(change.down.transpose(-1, -2), change.up, change.alpha)
        if change.down.ndim == 4
        else change
        for name, change in parts["unet"].items()
    }
    return authors({**parts, "unet": unet})


@pytest.mark.parametrize(
    "wrong",
    [
        "alphas dropped",
        "no convolutions of resnets",
        "no strided convolution",
        "no first text encoder",
        "no second text encoder",
        "up and down swapped",
        "windows turned",
    ],
)
def test_wrong_interpretation_breaks_parity(
    wrong: str,
    actual: AtelierRunner,
    parts: dict[str, Changes],
    expected: Callable[[str], np.ndarray],
    tmp_path: Path,
) -> None:
    file = write(spoiled(parts, wrong), tmp_path / "wrong.safetensors")
    output = actual.pixels(REQUEST, [LoadedAdapter(file)])
    assert_far(output, expected("kohya, the authors' names"))
