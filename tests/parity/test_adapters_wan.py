"""Wan adapters compared with diffusers, from files of each format, with experts and image
inputs.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from PIL import Image

from models import registry
from models.interface.pipeline import generate
from tests.parity.adapter_files import (
    AtelierRunner,
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
from tests.parity.tiny import Config
from tests.parity.tiny_wan import make_wan

# diffusers' schedulers pass tensors to NumPy in a deprecated way.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

CHECKPOINTS: dict[str, Config] = {
    "2.1": {},
    "2.2": {
        "transformer": {"num_layers": 2},
        "transformer_2": {"num_attention_heads": 5, "attention_head_dim": 14, "ffn_dim": 33},
        "boundary_ratio": 0.875,
        "scheduler": {"flow_shift": 5.0},
    },
    "image to video": {"from_image": True, "vision": {}},
    "vace": {"vace": {}},
}
REQUEST: dict[str, Any] = {
    "prompt": "a red circle on a blue background",
    "negative_prompt": "a green square",
    "width": 64,
    "height": 48,
    "num_frames": 5,
    "num_inference_steps": 3,
    "guidance_scale": 4.5,
    "max_sequence_length": 24,
}
SEED = 1234
FIRST = Image.fromarray(
    np.random.default_rng(5).integers(0, 256, (37, 61, 3), dtype=np.uint8)
).resize((97, 61))

AUTHORS: tuple[tuple[str, str], ...] = (
    (r"\.attn1\.", ".self_attn."),
    (r"\.attn2\.add_(k|v)_proj", r".cross_attn.\1_img"),
    (r"\.attn2\.", ".cross_attn."),
    (r"\.to_(q|k|v)$", r".\1"),
    (r"\.to_out\.0$", ".o"),
    (r"\.ffn\.net\.0\.proj$", ".ffn.0"),
    (r"\.ffn\.net\.2$", ".ffn.2"),
    (r"^condition_embedder\.(time|text)_embedder\.linear_1$", r"\1_embedding.0"),
    (r"^condition_embedder\.(time|text)_embedder\.linear_2$", r"\1_embedding.2"),
    (r"^condition_embedder\.time_proj$", "time_projection.1"),
    (r"^proj_out$", "head.head"),
)
"""Expressions in diffusers' names, and the authors' names."""


def authors_name(name: str) -> str:
    for expression, original in AUTHORS:
        name = re.sub(expression, original, name)
    return name


def in_blocks(name: str) -> bool:
    return name.startswith("blocks.")


def dotted(changes: Changes, seed: int = 7) -> Tensors:
    """Tensors in ComfyUI's format, with differences of biases, norms and the last layer."""
    generator = torch.Generator().manual_seed(seed)
    tensors: Tensors = {}
    for name, change in changes.items():
        key = f"diffusion_model.{authors_name(name)}"
        if name == "proj_out":
            tensors[f"{key}.diff"] = (change.scaled_up @ change.down).contiguous()
        else:
            tensors[f"{key}.lora_A.weight"] = change.down
            tensors[f"{key}.lora_B.weight"] = change.scaled_up
        tensors[f"{key}.diff_b"] = 0.2 * torch.randn(len(change.up), generator=generator)
    for part in ("blocks.0.norm3.diff", "blocks.0.norm3.diff_b", "blocks.1.self_attn.norm_q.diff"):
        tensors[f"diffusion_model.{part}"] = torch.ones(60)
    return tensors


def dotted_with_alphas(changes: Changes) -> Tensors:
    with_underscores = kohya("", changes, authors_name)
    tensors: Tensors = {}
    for name in changes:
        key = authors_name(name)
        for end in ("lora_down.weight", "lora_up.weight", "alpha"):
            tensors[f"diffusion_model.{key}.{end}"] = with_underscores[
                f"_{key.replace('.', '_')}.{end}"
            ]
    return tensors


class Pair:
    """One checkpoint, loaded by diffusers and by Atelier with banks."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder = make_wan(folder, **config)
        self.reference = DiffusionPipeline.from_pretrained(self.folder)
        self.reference.set_progress_bar_config(disable=True)
        self.atelier = AtelierRunner(self.folder)
        self.is_pictured = config.get("from_image", False)
        # Shorter text would make diffusers read image tokens as text: see tests/parity/test_wan.py.
        self.request = REQUEST | ({"max_sequence_length": 512} if self.is_pictured else {})

    def changes(self, seed: int = 1, part: str = "transformer", **options: Any) -> Changes:
        return random_changes(getattr(self.reference, part), seed, **({"size": 0.1} | options))

    def run_diffusers(self, *adapters: LoadedAdapter) -> np.ndarray:
        return diffusers_pixels(self.reference, adapters, self._run)

    def found(self, *adapters: LoadedAdapter) -> np.ndarray:
        images: Mapping[str, bytes] = {}
        if self.is_pictured:
            memory = io.BytesIO()
            FIRST.save(memory, "PNG")
            images = {"image": memory.getvalue()}
        return self.atelier.pixels({**self.request, "seed": SEED}, adapters, images)

    def _run(self, pipe: Any) -> np.ndarray:
        image = {"image": FIRST} if self.is_pictured else {}
        generator = torch.Generator("cpu").manual_seed(SEED)
        frames = pipe(**self.request, **image, generator=generator).frames[0]
        return np.asarray((frames * 255).astype(np.uint8))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    root = tmp_path_factory.mktemp("wan")
    return cache(lambda name: Pair(root / name.replace(" ", "-"), CHECKPOINTS[name]))


def rank_of(name: str) -> int:
    return 3 if ".ffn." in name else 5


def alpha_of(name: str) -> float:
    return 2.0 if ".attn2." in name else 7.0


FORMS: dict[str, Callable[[Pair], Tensors]] = {
    "PEFT": lambda pair: peft({"transformer": pair.changes(rank=rank_of, alpha=alpha_of)}),
    "the authors' names, differences": lambda pair: dotted(
        pair.changes(only=lambda name: name != "patch_embedding")
    ),
    "the authors' names, alphas": lambda pair: dotted_with_alphas(
        pair.changes(rank=rank_of, alpha=alpha_of, only=in_blocks)
    ),
    "musubi-tuner": lambda pair: kohya(
        "lora_unet", pair.changes(rank=rank_of, alpha=alpha_of, only=in_blocks), authors_name
    ),
}


@pytest.fixture(scope="module")
def files(
    tmp_path_factory: pytest.TempPathFactory, pairs: Callable[[str], Pair]
) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("files")
    return {
        name: write(form(pairs("2.1")), root / f"{number}.safetensors")
        for number, (name, form) in enumerate(FORMS.items())
    }


@pytest.mark.parametrize("form", FORMS)
def test_every_file_format_matches_diffusers(
    form: str, pairs: Callable[[str], Pair], files: dict[str, Path], record_property: Any
) -> None:
    pair, lora = pairs("2.1"), LoadedAdapter(files[form])
    expected = pair.run_diffusers(lora)
    assert psnr_db(expected, pair.run_diffusers()) < 40, "the adapter must change the image"
    ignored = pair.atelier.read(lora).ignored
    assert all("norm" in key for key in ignored), ignored
    assert bool(ignored) == ("differences" in form)
    assert_same(pair.found(lora), expected, record_property)


def test_alphas_of_metadata(
    pairs: Callable[[str], Pair], tmp_path: Path, record_property: Any
) -> None:
    pair = pairs("2.1")
    tensors, metadata = peft_with_metadata(
        {"transformer": pair.changes(rank=rank_of, alpha=alpha_of)}
    )
    lora = LoadedAdapter(write(tensors, tmp_path / "a.safetensors", metadata), -0.7)
    assert_same(pair.found(lora), pair.run_diffusers(lora), record_property)


def test_bias_without_matrices_is_applied(
    pairs: Callable[[str], Pair], tmp_path: Path, record_property: Any
) -> None:
    """diffusers' converter drops the time projection's bias if the file has no matrices for it."""
    pair = pairs("2.1")
    tensors = dotted(pair.changes(only=in_blocks))
    key = "diffusion_model.time_projection.1.diff_b"
    lora = LoadedAdapter(write({**tensors, key: torch.ones(360)}, tmp_path / "a.safetensors"))
    assert key in pair.atelier.read(lora).ignored
    assert_same(pair.found(lora), pair.run_diffusers(lora), record_property)


def test_banks_without_adapters_change_no_bit(pairs: Callable[[str], Pair]) -> None:
    pair = pairs("2.1")
    pipeline = registry.load("tiny", str(pair.folder), "float32", {})
    fields = {**pipeline.spec.defaults, **pair.request, "seed": SEED}
    np.testing.assert_array_equal(pair.found(), generate(pipeline, fields, {}))


def test_two_adapters_of_several_pages(
    pairs: Callable[[str], Pair], files: dict[str, Path], tmp_path: Path, record_property: Any
) -> None:
    pair = pairs("2.1")
    second = peft({"transformer": pair.changes(9, rank=20, alpha=13.0, size=0.03)})
    file = write(second, tmp_path / "second.safetensors")
    loras = LoadedAdapter(files["musubi-tuner"], 0.7), LoadedAdapter(file, -0.5)
    assert_same(pair.found(*loras), pair.run_diffusers(*loras), record_property)


def test_a_file_for_each_expert(
    pairs: Callable[[str], Pair], tmp_path: Path, record_property: Any
) -> None:
    pair = pairs("2.2")
    high = peft({"transformer": pair.changes(1)})
    low = peft({"transformer": pair.changes(2, part="transformer_2")})
    loras = (
        LoadedAdapter(write(high, tmp_path / "high.safetensors"), 0.9),
        LoadedAdapter(write(low, tmp_path / "low.safetensors"), 0.6, expert="low"),
    )
    assert [list(pair.atelier.read(lora).networks) for lora in loras] == [
        ["transformer"],
        ["transformer_2"],
    ]
    expected = pair.run_diffusers(*loras)
    assert_same(pair.found(*loras), expected, record_property)
    for lora in loras:
        assert_far(pair.found(lora), expected)


@pytest.mark.parametrize("kind", ["without the image's keys", "with them"])
def test_image_to_video(
    kind: str, pairs: Callable[[str], Pair], tmp_path: Path, record_property: Any
) -> None:
    pair = pairs("image to video")

    def is_included(name: str) -> bool:
        return in_blocks(name) and (kind == "with them" or "add_" not in name)

    changes = pair.changes(only=is_included)
    assert any("add_k_proj" in name for name in changes) == (kind == "with them")
    lora = LoadedAdapter(
        write(kohya("lora_unet", changes, authors_name), tmp_path / "a.safetensors")
    )
    assert_same(pair.found(lora), pair.run_diffusers(lora), record_property)


def test_control_blocks_of_vace(
    pairs: Callable[[str], Pair], tmp_path: Path, record_property: Any
) -> None:
    pair = pairs("vace")
    changes = pair.changes(rank=rank_of, alpha=alpha_of)
    assert any(name.startswith("vace_blocks.1.") for name in changes)
    assert {"vace_blocks.0.proj_in", "vace_blocks.0.proj_out"} <= changes.keys()
    lora = LoadedAdapter(write(peft({"transformer": changes}), tmp_path / "a.safetensors"))
    assert not pair.atelier.read(lora).ignored
    expected = pair.run_diffusers(lora)
    assert_same(pair.found(lora), expected, record_property)
    main = {name: change for name, change in changes.items() if "vace" not in name}
    without_vace = LoadedAdapter(write(peft({"transformer": main}), tmp_path / "b.safetensors"))
    assert_far(pair.found(without_vace), expected)


WRONG: dict[str, Callable[[Changes], Tensors]] = {
    "alphas dropped": lambda changes: without(kohya("lora_unet", changes, authors_name), ".alpha"),
    "up and down swapped": lambda changes: kohya("lora_unet", turned(changes), authors_name),
    "no cross attention": lambda changes: without(
        kohya("lora_unet", changes, authors_name), "cross_attn"
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_interpretation_breaks_parity(
    wrong: str, pairs: Callable[[str], Pair], files: dict[str, Path], tmp_path: Path
) -> None:
    pair = pairs("2.1")
    changes = pair.changes(rank=rank_of, alpha=alpha_of, only=in_blocks)
    file = write(WRONG[wrong](changes), tmp_path / "wrong.safetensors")
    assert_far(
        pair.found(LoadedAdapter(file)), pair.run_diffusers(LoadedAdapter(files["musubi-tuner"]))
    )


@pytest.mark.parametrize("part", ["diff_b", "head.head"])
def test_missing_difference_breaks_parity(
    part: str, pairs: Callable[[str], Pair], files: dict[str, Path], tmp_path: Path
) -> None:
    pair, form = pairs("2.1"), "the authors' names, differences"
    tensors = without(FORMS[form](pair), part)
    file = write(tensors, tmp_path / "wrong.safetensors")
    assert_far(pair.found(LoadedAdapter(file)), pair.run_diffusers(LoadedAdapter(files[form])))
