"""SDXL's adapters against diffusers, from files of each form: UNet and both text encoders."""

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
    Change,
    Changes,
    Loaded,
    Ours,
    Tensors,
    assert_far,
    assert_same,
    kohya,
    peft,
    peft_with_metadata,
    psnr_db,
    random_changes,
    their_pixels,
    turned,
    without,
    write,
)
from tests.parity.sdxl_cases import BASE, PICTURE, SEED
from tests.parity.tiny_sdxl import make_sdxl

# torch and NumPy do not agree on this yet; it is the reference that meets it.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

REQUEST = {**BASE, "negative_prompt": "a green square", "num_inference_steps": 3}
Forms = dict[str, Callable[[], tuple[Tensors, dict[str, str] | None]]]

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
    """The name in the checkpoint of the authors, whose UNet kohya's scripts train."""
    block = next(one for one in AUTHORS_BLOCKS if name == one or name.startswith(f"{one}."))
    layer = name.removeprefix(block).lstrip(".")
    if ".resnets." in name:
        layer = AUTHORS_LAYERS["resnets"][layer]
    return ".".join(filter(None, (AUTHORS_BLOCKS[block], layer)))


def is_attention(name: str) -> bool:
    return ".attn" in name


def rank_of(name: str) -> int:
    return 4 if is_attention(name) else 3


def alpha_of(name: str) -> float:
    # Diffusers' converter loses alphas of attention that are not the most frequent one.
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
def ours(folder: Path) -> Ours:
    return Ours(folder)


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
    made = pipe(**arguments, generator=torch.Generator().manual_seed(SEED))
    return np.asarray(made.images[0])


def run_on_image(pipe: Any) -> np.ndarray:
    kind = diffusers.StableDiffusionXLImg2ImgPipeline(**pipe.components)
    kind.set_progress_bar_config(disable=True)
    arguments = {n: v for n, v in REQUEST.items() if n not in ("seed", "width", "height")}
    size = REQUEST["width"], REQUEST["height"]
    image = PICTURE.resize(size, resample=3).resize(size)
    made = kind(
        **arguments, image=image, strength=0.7, generator=torch.Generator().manual_seed(SEED)
    )
    return np.asarray(made.images[0])


def bare(name: str) -> str:
    """The name of a text encoder's layer, which transformers gives a prefix in the second one."""
    return name.removeprefix("text_model.")


def text_as_kohya(parts: dict[str, Changes]) -> Tensors:
    return {
        **kohya("lora_te1_text_model", parts["text_encoder"], bare),
        **kohya("lora_te2_text_model", parts["text_encoder_2"], bare),
    }


def authors(parts: dict[str, Changes]) -> Tensors:
    return kohya("lora_unet", parts["unet"], authors_name) | text_as_kohya(parts)


def older(parts: dict[str, Changes]) -> Tensors:
    """As diffusers wrote attention's layers at first."""
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
        # Diffusers' converter knows no such name for these layers.
        **without(kohya("lora_unet", parts["unet"]), "add_embedding"),
        **text_as_kohya(parts),
    },
    "processors": older,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, parts: dict[str, Changes]) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("files")
    made = {
        name: write(form(parts), root / f"{number}.safetensors")
        for number, (name, form) in enumerate(FORMS.items())
    }
    tensors, metadata = peft_with_metadata(parts)
    made["PEFT, alphas in metadata"] = write(tensors, root / "metadata.safetensors", metadata)
    return made


@pytest.fixture(scope="module")
def expected(reference: Any, files: dict[str, Path]) -> Callable[[str], np.ndarray]:
    return cache(lambda form: their_pixels(reference, [Loaded(files[form])], run))


@pytest.mark.parametrize("form", [*FORMS, "PEFT, alphas in metadata"])
def test_every_form_draws_what_diffusers_draws(
    form: str,
    ours: Ours,
    files: dict[str, Path],
    expected: Callable[[str], np.ndarray],
    record_property: Any,
) -> None:
    adapter = ours.read(Loaded(files[form]))
    assert (adapter.rank, adapter.ignored) == (4, ())
    assert_same(ours.pixels(REQUEST, [Loaded(files[form])]), expected(form), record_property)


def test_the_adapter_shows(reference: Any, expected: Callable[[str], np.ndarray]) -> None:
    plain = their_pixels(reference, [], run)
    assert psnr_db(expected("PEFT"), plain) < 40, "an adapter that does not show proves nothing"


def test_banks_without_adapters_change_no_bit(folder: Path, ours: Ours) -> None:
    plain = registry.load("tiny", str(folder), "float32", {})
    without_banks = generate(plain, {**plain.spec.defaults, **REQUEST}, {})
    np.testing.assert_array_equal(ours.pixels(REQUEST, []), without_banks)


@pytest.mark.parametrize("scale", [-0.6, 1.3])
def test_any_scale(
    scale: float, ours: Ours, reference: Any, files: dict[str, Path], record_property: Any
) -> None:
    asked = [Loaded(files["kohya, the authors' names"], scale)]
    theirs = their_pixels(reference, asked, run)
    assert_same(ours.pixels(REQUEST, asked), theirs, record_property)


def test_two_adapters_of_several_pages(
    ours: Ours, reference: Any, files: dict[str, Path], tmp_path: Path, record_property: Any
) -> None:
    second = random_changes(reference.unet, 9, 20, 13.0, size=0.05)
    file = write(peft({"unet": second}), tmp_path / "second.safetensors")
    asked = [Loaded(files["PEFT"], 0.7), Loaded(file, -0.5)]
    assert [ours.read(one).pages for one in asked] == [1, 2]
    theirs = their_pixels(reference, asked, run)
    assert_same(ours.pixels(REQUEST, asked), theirs, record_property)


def test_image_to_image(
    ours: Ours, reference: Any, files: dict[str, Path], record_property: Any
) -> None:
    asked = [Loaded(files["PEFT"])]
    size = REQUEST["width"], REQUEST["height"]
    memory = io.BytesIO()
    PICTURE.resize(size, resample=3).resize(size).save(memory, "PNG")
    request = {**REQUEST, "strength": 0.7}
    found = ours.pixels(request, asked, {"image": memory.getvalue()})
    assert_same(found, their_pixels(reference, asked, run_on_image), record_property)


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
        name: Change(one.down.transpose(-1, -2), one.up, one.alpha) if one.down.ndim == 4 else one
        for name, one in parts["unet"].items()
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
def test_a_wrong_reading_fails_by_far(
    wrong: str,
    ours: Ours,
    parts: dict[str, Changes],
    expected: Callable[[str], np.ndarray],
    tmp_path: Path,
) -> None:
    file = write(spoiled(parts, wrong), tmp_path / "wrong.safetensors")
    found = ours.pixels(REQUEST, [Loaded(file)])
    assert_far(found, expected("kohya, the authors' names"))
