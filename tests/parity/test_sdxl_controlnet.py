"""SDXL ControlNets compared with diffusers' ControlNetModel and ControlNetUnionModel, in float32.

Bounds: on these networks rounding alone leaves about 1e-6. The mildest wrong variant below exceeds
1e-5 more than tenfold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import ControlNetModel, ControlNetUnionModel
from flax import nnx

from models.checkpoint.folder import WeightsError
from models.loading.abstract import abstract_module
from models.sdxl.control_config import ControlNetConfig
from models.sdxl.controlnet import ControlNet
from models.sdxl.key_mapping import CONTROL_RENAMES
from models.weights.loader import load
from tests.parity.tiny import randomize
from tests.parity.tiny_sdxl import control_config

RELATIVE = 1e-5
KIND = 2
TEXT, POOLED = 10, 11

SIZES = {
    "cross_attention_dim": TEXT,
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 6 * 8 + POOLED,
}
SDXL: dict[str, Any] = control_config(
    **SIZES,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    block_out_channels=(6, 12, 18),
    attention_head_dim=(1, 2, 3),
    transformer_layers_per_block=(1, 2, 1),
    norm_num_groups=3,
    conditioning_embedding_out_channels=(3, 5, 6, 4),
)
LAYOUTS: dict[str, dict[str, Any]] = {
    "sdxl": SDXL,
    "small": SDXL
    | {
        "down_block_types": ("DownBlock2D",) * 3,
        "mid_block_type": "UNetMidBlock2D",
        "layers_per_block": 2,
        "controlnet_conditioning_channel_order": "bgr",
        "norm_eps": 1e-3,
        "freq_shift": 1,
    },
    "mid": SDXL
    | {
        "transformer_layers_per_block": (0, 0, 1),
        "flip_sin_to_cos": False,
        "use_linear_projection": False,
        "mid_block_scale_factor": 1.4,
    },
    "union": SDXL | {"num_control_type": 6, "num_trans_channel": 6, "num_trans_head": 2}
    | {"num_proj_channel": 6},
    "union, odd": SDXL
    | {
        "block_out_channels": (9, 6, 12),
        "num_control_type": 8,
        "num_trans_channel": 9,
        "num_proj_channel": 9,
        "num_trans_head": 3,
        "num_trans_layer": 2,
        "layers_per_block": 2,
        "attention_head_dim": 3,
    },
}  # fmt: skip


class Inputs(NamedTuple):
    """NumPy arrays, channels last, for a batch of two at different times."""

    latents: np.ndarray
    timestep: np.ndarray
    prompt_embeds: np.ndarray
    pooled_embeds: np.ndarray
    time_ids: np.ndarray
    image: np.ndarray
    """In [0, 1]; one image for both rows, as for a prompt and its negative prompt."""

    @classmethod
    def draw(cls, size: tuple[int, int]) -> Inputs:
        random = np.random.default_rng(7)

        def drawn(*shape: int) -> np.ndarray:
            return random.standard_normal(shape, np.float32)

        return cls(
            drawn(2, *size, 4),
            np.array([999.0, 37.5], np.float32),
            drawn(2, 7, TEXT),
            drawn(2, POOLED),
            np.array([[1024, 768, 0, 13, 1152, 896], [61, 37, 5, 0, 64, 40]], np.float32),
            random.random((1, 8 * size[0], 8 * size[1], 3), np.float32).repeat(2, axis=0),
        )


class Pair(NamedTuple):
    """One ControlNet in diffusers, and loaded from its files by Atelier."""

    diffusers: Any
    atelier: ControlNet
    folder: Path


def make_pair(folder: Path, layout: Mapping[str, Any]) -> Pair:
    kind: Any = ControlNetUnionModel if "num_control_type" in layout else ControlNetModel
    original: Any = randomize(kind(**layout), 3)
    original.save_pretrained(folder)
    return Pair(original, ours_of(folder), folder)


def ours_of(folder: Path, **changes: Any) -> ControlNet:
    stored = json.loads((folder / "config.json").read_text())
    config = ControlNetConfig.from_dict(stored | changes)
    return load(abstract_module(ControlNet, config), folder, CONTROL_RENAMES, dtype=jnp.float32)


def run_diffusers(network: Any, inputs: Inputs, kind: int = KIND) -> list[np.ndarray]:
    added = {
        "text_embeds": torch.from_numpy(inputs.pooled_embeds),
        "time_ids": torch.from_numpy(inputs.time_ids),
    }
    image = torch.from_numpy(inputs.image).permute(0, 3, 1, 2)
    control: dict[str, Any] = {"controlnet_cond": image}
    if hasattr(network, "task_embedding"):
        types = torch.zeros(2, network.config.num_control_type)
        types[:, kind] = 1
        control = {
            "controlnet_cond": [image],
            "control_type": types,
            "control_type_idx": [kind],
        }
    with torch.no_grad():
        down, middle = network(
            torch.from_numpy(inputs.latents).permute(0, 3, 1, 2),
            torch.from_numpy(inputs.timestep),
            torch.from_numpy(inputs.prompt_embeds),
            added_cond_kwargs=added,
            return_dict=False,
            **control,
        )
    return [residual.permute(0, 2, 3, 1).numpy() for residual in (*down, middle)]


def run_atelier(network: ControlNet, inputs: Inputs, kind: int = KIND) -> list[np.ndarray]:
    graph, state = nnx.split(network)

    def call(state: nnx.State, inputs: Any) -> tuple[jax.Array, ...]:
        control: Any = nnx.merge(graph, state)
        *network_inputs, image = inputs
        if control.kinds is None:
            return control(*network_inputs, control.hint(image))
        kinds, ones = jnp.full(len(image), kind), jnp.ones(len(image))
        return control(*network_inputs, control.hint(image, kinds, ones), kinds[:, None])

    lowered = jax.jit(call).lower(state, inputs)
    options: dict[str, Any] = {"xla_backend_optimization_level": 0}
    return [np.asarray(x) for x in lowered.compile(compiler_options=options)(state, inputs)]


def relative(outputs: list[np.ndarray], expected: list[np.ndarray]) -> float:
    assert [x.shape for x in outputs] == [x.shape for x in expected]
    return max(
        float(np.linalg.norm(a - b) / np.linalg.norm(b))
        for a, b in zip(outputs, expected, strict=True)
    )


Pairs = Callable[[str], Pair]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Pairs by the layout's name, each made once."""
    root = tmp_path_factory.mktemp("controlnet")
    return cache(lambda name: make_pair(root / name, LAYOUTS[name]))


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        ("sdxl", (8, 12)),
        ("small", (7, 10)),
        ("mid", (4, 6)),
        ("union", (8, 4)),
        ("union, odd", (5, 7)),
    ],
)
def test_the_same_residuals(pairs: Pairs, layout: str, size: tuple[int, int]) -> None:
    pair, inputs = pairs(layout), Inputs.draw(size)
    expected = run_diffusers(pair.diffusers, inputs)
    error = relative(run_atelier(pair.atelier, inputs), expected)
    print(f"{error:.1e}")
    assert error <= RELATIVE
    assert min(residual.std() for residual in expected) > 0.01, "flat residuals prove nothing"


def test_other_control_kind_breaks_parity(pairs: Pairs) -> None:
    pair, inputs = pairs("union"), Inputs.draw((4, 4))
    expected = run_diffusers(pair.diffusers, inputs)
    assert relative(run_atelier(pair.atelier, inputs, KIND + 1), expected) > 10 * RELATIVE


@pytest.mark.parametrize(
    "change",
    [
        {"controlnet_conditioning_channel_order": "bgr"},
        {"attention_head_dim": [2, 3, 6]},
        {"flip_sin_to_cos": False},
    ],
    ids=str,
)
def test_wrong_variant_breaks_parity(pairs: Pairs, change: dict[str, Any]) -> None:
    pair, inputs = pairs("sdxl"), Inputs.draw((4, 4))
    wrong = run_atelier(ours_of(pair.folder, **change), inputs)
    assert relative(wrong, run_diffusers(pair.diffusers, inputs)) > 10 * RELATIVE


@pytest.mark.parametrize("key", ["task_embedding", "control_add_embedding.linear_1.weight"])
def test_missing_kind_weights_break_parity(pairs: Pairs, key: str) -> None:
    pair, inputs = pairs("union"), Inputs.draw((4, 4))
    outputs, original = run_atelier(pair.atelier, inputs), pair.diffusers.state_dict()[key].clone()
    pair.diffusers.state_dict()[key].zero_()
    wrong = run_diffusers(pair.diffusers, inputs)
    pair.diffusers.state_dict()[key].copy_(original)
    assert relative(outputs, wrong) > 10 * RELATIVE


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"global_pool_conditions": True}, "global_pool_conditions"),
        ({"conditioning_channels": 4}, "conditioning_channels"),
        ({"controlnet_conditioning_channel_order": "gbr"}, "channel_order"),
        ({"num_control_type": 6, "num_trans_channel": 320}, "num_trans_channel"),
        ({"resnet_time_scale_shift": "no"}, "resnet_time_scale_shift"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be_served_is_refused_by_key(
    change: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        ControlNetConfig.from_dict(SDXL | change)


def test_union_is_detected_by_its_kinds(pairs: Pairs) -> None:
    stored = json.loads((pairs("union").folder / "config.json").read_text())
    renamed = ControlNetConfig.from_dict(stored | {"_class_name": "ControlNetModel"})
    assert renamed == ControlNetConfig.from_dict(stored)


def test_arrays_of_another_network_are_named(pairs: Pairs) -> None:
    with pytest.raises(WeightsError, match=r"controlnet_cond_embedding\.conv_in\.weight"):
        ours_of(pairs("sdxl").folder, conditioning_embedding_out_channels=[4, 5, 6, 4])
