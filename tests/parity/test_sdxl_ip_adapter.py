"""SDXL IP-Adapters compared with diffusers' in the same process, on small ones of odd shapes.

Bounds as for SDXL: latents of each step to a relative 1e-4, images to 60 dB and two grey levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import diffusers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from models import registry
from models.checkpoint.folder import CheckpointError
from models.interface.pipeline import PyTree
from models.loading.sources import ImagePromptSource
from models.sdxl.image_prompts import SCALES
from models.spec.request import RequestError
from tests import coarse
from tests.parity.distances import png, psnr_db, relative
from tests.parity.programs import Programs
from tests.parity.sdxl_cases import (
    BASE,
    CHECKPOINTS,
    EXACT,
    MASK,
    PICTURE,
    SEED,
    Checkpoint,
    noise_picture,
)
from tests.parity.step_latents import StepLatents
from tests.parity.tiny_ip_adapter import PLAIN_TOKENS, make_encoder, make_plain, make_plus

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

PROMPTED = [noise_picture(71, 97, 21), noise_picture(40, 33, 22), noise_picture(64, 64, 23)]
DEEP = CHECKPOINTS["deep"].arguments
MADE = {
    "base": CHECKPOINTS["base"],
    # diffusers' adapter scales require equally many residual blocks in all levels
    "deep": Checkpoint({**DEEP, "unet": {**DEEP["unet"], "layers_per_block": 2}}),
}
VARIANTS = {"base": {}, "deep": {"num_hidden_layers": 2, "patch_size": 7, "projection_dim": 17}}
"""Overrides of the image encoder by checkpoint."""
FILES = {"plain": "adapters/plain.safetensors", "plus": "adapters/plus.safetensors"}
ENCODER = "adapters/image_encoder"

Asked = list[tuple[str, Image.Image, float]]
"""Image prompts: adapter, image, scale."""


class Pair(NamedTuple):
    folder: Path
    reference: Any
    programs: Programs
    """Programs of Atelier's pipeline with both adapters."""

    def run_atelier(
        self,
        asked: Asked,
        image: Image.Image | None = None,
        mask: Image.Image | None = None,
        spoil: Callable[[PyTree], PyTree] = lambda row: row,
        **fields: Any,
    ) -> tuple[list[np.ndarray], np.ndarray]:
        entries = [{"name": name, "scale": scale} for name, _, scale in asked]
        files = {
            f"image_prompts.{number}.image": png(prompt_image)
            for number, (_, prompt_image, _) in enumerate(asked)
        }
        files |= {"image": png(image)} if image else {}
        files |= {"mask_image": png(mask)} if mask else {}
        request = {**BASE, **fields, "image_prompts": entries}
        prepared = self.programs.pipeline.prepare(request, files)
        return self.programs.drawn(prepared, spoil=spoil)

    def run_diffusers(
        self,
        asked: Asked,
        image: Image.Image | None = None,
        mask: Image.Image | None = None,
        **fields: Any,
    ) -> tuple[list[np.ndarray], np.ndarray]:
        names = sorted({name for name, _, _ in asked})
        kind = {
            (False, False): diffusers.StableDiffusionXLPipeline,
            (True, False): diffusers.StableDiffusionXLImg2ImgPipeline,
            (True, True): diffusers.StableDiffusionXLInpaintPipeline,
        }[image is not None, mask is not None]
        pipeline = kind.from_pretrained(self.folder)
        pipeline.set_progress_bar_config(disable=True)
        pipeline.load_ip_adapter(
            str(self.folder.parent / self.folder.name),
            subfolder="adapters",
            weight_name=[Path(FILES[name]).name for name in names],
            image_encoder_folder="image_encoder",
        )
        pipeline.set_ip_adapter_scale(
            [next(scale for adapter, _, scale in asked if adapter == name) for name in names]
        )
        arguments = {name: value for name, value in (BASE | fields).items() if name != "seed"}
        if image is not None and mask is None:
            size = arguments.pop("width"), arguments.pop("height")
            arguments["image"] = image.resize(size, Image.Resampling.LANCZOS)
        elif image is not None:
            arguments |= {"image": image, "mask_image": mask}
        latents = StepLatents()

        output = pipeline(
            **arguments,
            ip_adapter_image=[
                [prompt_image for adapter, prompt_image, _ in asked if adapter == name]
                for name in names
            ],
            generator=torch.Generator("cpu").manual_seed(SEED),
            callback_on_step_end=latents.keep,
        )
        return latents, np.asarray(output.images[0])


def sources(folder: Path, *names: str) -> dict[str, ImagePromptSource]:
    return {name: ImagePromptSource(str(folder), FILES[name]) for name in names}


def loaded(folder: Path, adapters: Mapping[str, ImagePromptSource]) -> Any:
    with coarse.compiled():
        return registry.load("tiny", str(folder), "float32", {}, image_prompts=adapters)


class Pairs(dict[str, Pair]):
    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def __missing__(self, name: str) -> Pair:
        folder = MADE[name].make(self.root / name)
        reference = diffusers.StableDiffusionXLPipeline.from_pretrained(folder)
        encoder = make_encoder(folder / ENCODER, **VARIANTS[name]).config
        make_plain(folder / FILES["plain"], reference.unet, encoder.projection_dim)
        make_plus(folder / FILES["plus"], reference.unet, encoder.hidden_size)
        pipeline = loaded(folder, sources(folder, "plain", "plus"))
        self[name] = Pair(folder, reference, Programs(pipeline, coarse.OPTIONS))
        return self[name]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    return Pairs(tmp_path_factory.mktemp("ip-adapter"))


@pytest.mark.parametrize(
    ("checkpoint", "asked", "fields"),
    [
        ("base", [("plain", PROMPTED[0], 0.6)], {}),
        ("base", [("plus", PROMPTED[0], 1.0)], {}),
        ("base", [("plus", PROMPTED[0], 0.7), ("plus", PROMPTED[1], 0.7)], {"guidance_scale": 1.0}),
        (
            "deep",
            [("plus", PROMPTED[0], 0.5), ("plain", PROMPTED[1], 0.8), ("plain", PROMPTED[2], 0.8)],
            {},
        ),
    ],
    ids=["plain", "plus", "two images, unguided", "two adapters"],
)
def test_image_prompts(
    pairs: Pairs, checkpoint: str, asked: Asked, fields: Any, record_property: Any
) -> None:
    pair = pairs[checkpoint]
    assert_same(
        pair.run_atelier(asked, **fields), pair.run_diffusers(asked, **fields), record_property
    )


@pytest.mark.parametrize("mask", [None, MASK], ids=["image to image", "inpainting"])
def test_image_prompt_with_an_input_image(
    pairs: Pairs, mask: Image.Image | None, record_property: Any
) -> None:
    pair, prompts = pairs["base"], [("plus", PROMPTED[0], 0.6)]
    arguments: Any = {"image": PICTURE, "mask": mask, "strength": 0.8}
    assert_same(
        pair.run_atelier(prompts, **arguments),
        pair.run_diffusers(prompts, **arguments),
        record_property,
    )


def assert_same(actual: Any, reference: Any, record: Any) -> None:
    steps = [relative(a, b) for a, b in zip(actual[0], reference[0], strict=True)]
    levels, decibels = (
        np.abs(actual[1].astype(int) - reference[1]).max(),
        psnr_db(actual[1], reference[1]),
    )
    record("latents_relative", max(steps))
    record("psnr_db", decibels)
    print(f"latents {max(steps):.1e}, {decibels:.1f} dB, {levels}")
    assert max(steps) <= EXACT.relative, steps
    assert decibels >= EXACT.psnr_db
    assert levels <= EXACT.grey_levels
    assert reference[1].std() > 10, "a flat image proves nothing"


def assert_far(actual: Any, reference: Any) -> None:
    """Assert that both bounds are exceeded tenfold, beyond any plausible tolerance."""
    assert max(map(relative, actual[0], reference[0])) > 10 * EXACT.relative
    assert psnr_db(actual[1], reference[1]) < EXACT.psnr_db - 10


def test_half_the_scale_breaks_parity(pairs: Pairs) -> None:
    pair = pairs["base"]
    weaker = pair.run_atelier([("plus", PROMPTED[0], 0.5)])
    assert_far(weaker, pair.run_diffusers([("plus", PROMPTED[0], 1.0)]))


def test_positive_image_for_both_prompts_breaks_parity(pairs: Pairs) -> None:
    def spoil(row: PyTree) -> PyTree:
        repeated = jax.tree.map(lambda leaf: leaf[jnp.array([0, 0])], row["image_prompts"])
        return {**row, "image_prompts": repeated}

    pair, prompts = pairs["base"], [("plus", PROMPTED[0], 1.0)]
    assert_far(pair.run_atelier(prompts, spoil=spoil), pair.run_diffusers(prompts))


def test_model_without_image_prompts_is_unchanged(pairs: Pairs) -> None:
    pair = pairs["base"]
    plain = Programs(loaded(pair.folder, {}), coarse.OPTIONS)
    expected = plain.drawn(plain.pipeline.prepare(dict(BASE), {}))
    prepared = pair.programs.pipeline.prepare(dict(BASE), {})
    assert prepared.bucket == plain.pipeline.prepare(dict(BASE), {}).bucket
    np.testing.assert_array_equal(pair.programs.drawn(prepared)[1], expected[1])


def test_each_image_has_its_scale(pairs: Pairs) -> None:
    """The two scales of one adapter may differ, unlike in diffusers."""
    pair = pairs["base"]
    prompts = [("plus", PROMPTED[0], 0.7), ("plus", PROMPTED[1], 0.2)]
    prepared = pair.programs.pipeline.prepare(
        {**BASE, "image_prompts": [{"name": name, "scale": scale} for name, _, scale in prompts]},
        {f"image_prompts.{n}.image": png(image) for n, (_, image, _) in enumerate(prompts)},
    )
    np.testing.assert_array_equal(prepared.inputs[f"{SCALES}plus"], np.float32([0.7, 0.2]))
    assert prepared.bucket.endswith(",plus=2")


@pytest.mark.parametrize(
    ("name", "spoiled", "said"),
    [
        ("plus", lambda arrays: arrays.pop("image_proj.layers.1.0.to_kv.weight"), "to_kv"),
        ("plain", lambda arrays: arrays.pop("ip_adapter.3.to_v_ip.weight"), "to_v_ip"),
        ("plain", lambda arrays: arrays.update({"more.weight": torch.ones(2)}), "more.weight"),
    ],
)
def test_a_damaged_file_is_refused_by_its_arrays(
    pairs: Pairs, tmp_path: Path, name: str, spoiled: Any, said: str
) -> None:
    folder = pairs["base"].folder
    arrays = load_file(folder / FILES[name])
    spoiled(arrays)
    save_file(arrays, tmp_path / "spoiled.safetensors")
    source = ImagePromptSource(str(tmp_path), "spoiled.safetensors", encoder=str(folder / ENCODER))
    with pytest.raises(CheckpointError, match=said):
        loaded(folder, {"any": source})


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"image_proj.norm.weight": (8,), "image_proj.proj.0.weight": (8, 8)}, "FaceID"),
        ({"image_proj.perceiver_resampler.proj_in.weight": (8, 8)}, "FaceID Plus"),
        ({"lora.up.weight": (8, 8)}, "no IP-Adapter"),
        ({"image_proj.proj.weight": (PLAIN_TOKENS * 768 + 1, 8)}, "not of this model"),
    ],
)
def test_other_kinds_are_refused_by_name(
    pairs: Pairs, tmp_path: Path, arrays: dict[str, tuple[int, ...]], said: str
) -> None:
    folder = pairs["base"].folder
    save_file(
        {name: torch.ones(shape) for name, shape in arrays.items()}, tmp_path / "a.safetensors"
    )
    source = ImagePromptSource(str(tmp_path), "a.safetensors", encoder=str(folder / ENCODER))
    with pytest.raises(CheckpointError, match=said):
        loaded(folder, {"any": source})


def test_an_encoder_of_another_width_is_refused(pairs: Pairs, tmp_path: Path) -> None:
    folder = pairs["base"].folder
    make_encoder(tmp_path / "other", projection_dim=9)
    source = ImagePromptSource(str(folder), FILES["plain"], encoder=str(tmp_path / "other"))
    with pytest.raises(CheckpointError, match=r"reads 21 features .* gives 9"):
        loaded(folder, {"any": source})


def test_missing_image_encoder_is_named(pairs: Pairs, tmp_path: Path) -> None:
    folder = pairs["base"].folder
    file = tmp_path / "alone.safetensors"
    file.write_bytes((folder / FILES["plain"]).read_bytes())
    with pytest.raises(CheckpointError, match=r"no image encoder .* name its folder"):
        loaded(folder, {"any": ImagePromptSource(str(file))})


def test_shared_image_encoder_is_loaded_once(pairs: Pairs) -> None:
    pipeline: Any = pairs["base"].programs.pipeline
    networks = pipeline.network(pipeline.weights, "image_prompts")
    assert (len(networks.adapters), len(networks.encoders)) == (2, 1)


def test_a_broken_image_is_named(pairs: Pairs) -> None:
    request = {**BASE, "image_prompts": [{"name": "plus"}]}
    with pytest.raises(RequestError) as error:
        pairs["base"].programs.pipeline.prepare(request, {"image_prompts.0.image": b"none"})
    assert error.value.field == "image_prompts.0.image"
