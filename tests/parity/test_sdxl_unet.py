"""The SDXL UNet compared with diffusers' UNet2DConditionModel in the same process, in float32.

Bounds: on these networks rounding alone leaves about 1e-6, so 1e-5 is ten times that. The mildest
wrong variant below (tanh instead of erf in the gates) has an error of 3e-4.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import UNet2DConditionModel
from diffusers.models.activations import GEGLU
from diffusers.models.attention_processor import Attention
from diffusers.models.resnet import ResnetBlock2D
from flax import nnx

from models.loading.abstract import abstract_module
from models.sdxl.config import UNetConfig
from models.sdxl.key_mapping import RENAMES
from models.sdxl.network import UNet
from models.weights.loader import load
from tests.parity.distances import relative
from tests.parity.tiny import randomize

RELATIVE = 1e-5

SDXL: dict[str, Any] = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (6, 12, 18),
    "layers_per_block": 1,
    "attention_head_dim": (1, 2, 3),
    "cross_attention_dim": 10,
    "transformer_layers_per_block": (1, 2, 3),
    "use_linear_projection": True,
    "norm_num_groups": 3,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 6 * 8 + 11,
}
"""SDXL's layout with other numbers: text of width 10, pooled text of width 11."""

LAYOUTS: dict[str, dict[str, Any]] = {
    "sdxl": SDXL,
    "sd 1.5": {
        "block_out_channels": (8, 8, 16, 16),
        "layers_per_block": 1,
        "attention_head_dim": 4,
        "cross_attention_dim": 14,
        "norm_num_groups": 4,
    },
    "inpainting": SDXL
    | {
        "in_channels": 9,
        "out_channels": 5,
        "conv_in_kernel": 5,
        "conv_out_kernel": 1,
        "center_input_sample": True,
        "flip_sin_to_cos": False,
        "freq_shift": 1,
        "block_out_channels": (9, 12, 15),
        "transformer_layers_per_block": 1,
        "norm_eps": 1e-3,
        "upcast_attention": True,
    },
    "unequal": SDXL
    | {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D", "CrossAttnUpBlock2D"),
        "block_out_channels": (12, 6, 18),
        "layers_per_block": (1, 2, 1),
        "attention_head_dim": (5, 1, 4),
        "cross_attention_dim": (10, 7, 10),
        "transformer_layers_per_block": ((2,), 1, (1,)),
        "reverse_transformer_layers_per_block": ((0, 1), 1, (2, 1)),
        "only_cross_attention": (True, False, False),
        "mid_block_type": "UNetMidBlock2D",
        "mid_block_scale_factor": 1.7,
        "downsample_padding": 0,
    },
    "guidance": SDXL
    | {
        "time_cond_proj_dim": 13,
        "resnet_time_scale_shift": "scale_shift",
        "mid_block_type": None,
        "encoder_hid_dim": 17,
        "time_embedding_dim": 20,
        "time_embedding_act_fn": "gelu",
        "timestep_post_act": "relu",
        "act_fn": "mish",
        "attention_head_dim": 3,
    },
    "two levels": SDXL
    | {
        "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        "block_out_channels": (8, 12),
        "norm_num_groups": 4,
        "attention_head_dim": (4, 2),
        "transformer_layers_per_block": 1,
        "only_cross_attention": True,
        "mid_block_scale_factor": 1.4,
        "act_fn": "gelu",
    },
}


@dataclass(frozen=True)
class Inputs:
    """NumPy arrays, channels last, for a batch of two at different times."""

    latents: np.ndarray
    timestep: np.ndarray
    prompt_embeds: np.ndarray
    pooled_embeds: np.ndarray | None
    time_ids: np.ndarray | None
    timestep_cond: np.ndarray | None

    @classmethod
    def draw(cls, config: UNetConfig, size: tuple[int, int]) -> Inputs:
        normal = np.random.default_rng(7).standard_normal
        sizes = config.addition_embed_type is not None
        guidance = config.time_cond_proj_dim

        def drawn(*shape: int) -> np.ndarray:
            return normal(shape, np.float32)

        return cls(
            latents=drawn(2, *size, config.in_channels),
            timestep=np.array([999.0, 37.5], np.float32),
            prompt_embeds=drawn(2, 7, config.text_features),
            pooled_embeds=drawn(2, 11) if sizes else None,
            time_ids=np.array([[1024, 768, 0, 13, 1152, 896], [61, 37, 5, 0, 64, 40]], np.float32)
            if sizes
            else None,
            timestep_cond=drawn(2, guidance) if guidance else None,
        )


@dataclass(frozen=True)
class Pair:
    """One UNet in diffusers, and loaded from its files by Atelier."""

    diffusers: UNet2DConditionModel
    atelier: UNet
    folder: Path


def make_pair(folder: Path, layout: Mapping[str, Any]) -> Pair:
    original = randomize(UNet2DConditionModel(**layout), 3)
    original.save_pretrained(folder)
    return Pair(original, ours_of(folder), folder)


def ours_of(folder: Path, kind: type[UNet] = UNet, **changes: Any) -> UNet:
    stored = json.loads((folder / "config.json").read_text())
    config = UNetConfig.from_dict(stored | changes)
    abstract = abstract_module(kind, config)
    return load(abstract, folder, RENAMES, dtype=jnp.float32)


def run_diffusers(network: UNet2DConditionModel, inputs: Inputs) -> np.ndarray:
    def tensor(array: np.ndarray | None) -> torch.Tensor | None:
        return None if array is None else torch.from_numpy(array)

    added = {"text_embeds": tensor(inputs.pooled_embeds), "time_ids": tensor(inputs.time_ids)}
    with torch.no_grad():
        output = network(
            torch.from_numpy(inputs.latents).permute(0, 3, 1, 2),
            tensor(inputs.timestep),
            tensor(inputs.prompt_embeds),
            timestep_cond=tensor(inputs.timestep_cond),
            added_cond_kwargs=added,
        )
    return output.sample.permute(0, 2, 3, 1).numpy()


def run_atelier(network: UNet, inputs: Inputs) -> np.ndarray:
    return np.asarray(compiled(network, inputs)(nnx.state(network), inputs))


jax.tree_util.register_dataclass(Inputs)


def compiled(network: UNet, inputs: Inputs) -> Callable[..., jax.Array]:
    """Compile without optimizations: these networks are small and run once."""
    graph = nnx.graphdef(network)

    def call(state: nnx.State, inputs: Inputs) -> jax.Array:
        return nnx.merge(graph, state)(**vars(inputs))

    lowered = jax.jit(call).lower(nnx.state(network), inputs)
    return lowered.compile(compiler_options={"xla_backend_optimization_level": 0})


Pairs = Callable[[str], Pair]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Pairs by the layout's name, each made once."""
    root = tmp_path_factory.mktemp("unet")
    return cache(lambda name: make_pair(root / name, LAYOUTS[name]))


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        ("sdxl", (8, 12)),
        ("sdxl", (7, 10)),
        ("sdxl", (3, 5)),
        ("sd 1.5", (5, 11)),
        ("inpainting", (4, 8)),
        ("unequal", (8, 4)),
        ("unequal", (9, 7)),
        ("guidance", (4, 6)),
        ("two levels", (6, 3)),
    ],
)
def test_the_same_prediction(
    pairs: Pairs,
    layout: str,
    size: tuple[int, int],
    record_property: Callable[[str, object], None],
) -> None:
    pair = pairs(layout)
    inputs = Inputs.draw(pair.atelier.config, size)
    expected = run_diffusers(pair.diffusers, inputs)
    error = relative(run_atelier(pair.atelier, inputs), expected)
    record_property("relative", error)
    print(f"{error:.1e}")
    assert error <= RELATIVE
    assert expected.std() > 0.1, "a flat prediction proves nothing"


class Bfloat16Time(UNet):
    """A wrong variant: the sinusoids of times and sizes in bfloat16."""

    def _embed_numbers(self, values: jax.Array, features: int) -> jax.Array:
        rounded = values.astype(jnp.bfloat16).astype(jnp.float32)
        return super()._embed_numbers(rounded, features)


def test_wrong_variant_breaks_parity(pairs: Pairs) -> None:
    pair = pairs("sdxl")
    inputs = Inputs.draw(pair.atelier.config, (4, 4))
    expected = run_diffusers(pair.diffusers, inputs)
    for wrong in (
        ours_of(pair.folder, kind=Bfloat16Time),
        ours_of(pair.folder, attention_head_dim=[2, 3, 6]),
    ):
        assert relative(run_atelier(wrong, inputs), expected) > 100 * RELATIVE


def approximate_gelu(module: torch.nn.Module) -> None:
    if isinstance(module, GEGLU):
        module.gelu = lambda gate: torch.nn.functional.gelu(gate, approximate="tanh")


def other_epsilon(module: torch.nn.Module) -> None:
    if isinstance(module, torch.nn.GroupNorm | torch.nn.LayerNorm):
        module.eps *= 10


def other_attention_scale(module: torch.nn.Module) -> None:
    if isinstance(module, Attention):
        module.to_q.weight.data *= module.heads**-0.5


def no_time(module: torch.nn.Module) -> None:
    if isinstance(module, ResnetBlock2D):
        module.time_emb_proj.weight.data *= 0


def test_changed_reference_breaks_parity(pairs: Pairs) -> None:
    pair = pairs("sdxl")
    inputs = Inputs.draw(pair.atelier.config, (4, 4))
    output = run_atelier(pair.atelier, inputs)
    for change in (approximate_gelu, other_epsilon, other_attention_scale, no_time):
        changed = copy.deepcopy(pair.diffusers)
        changed.apply(change)
        error = relative(output, run_diffusers(changed, inputs))
        print(f"{change.__name__} {error:.1e}")
        assert error > 10 * RELATIVE, change.__name__
