"""The Wan transformer compared with diffusers' in float32, on random weights and odd sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import WanTransformer3DModel
from flax import nnx

from models.checkpoint.folder import read_config
from models.checkpoint.key_mapping import target
from models.loading.abstract import abstract_module
from models.wan.config import WanConfig
from models.wan.key_mapping import RENAMES
from models.wan.network import WanTransformer
from models.weights.loader import flat_parameters, load
from tests.parity.distances import relative
from tests.parity.tiny import randomize

RELATIVE = 1e-5
"""Relative tolerance of the velocity. The largest measured error is 3e-6, mostly of the timestep's
sinusoids (an angle of 1000 rounds at 6e-5).
"""

BASE: Mapping[str, Any] = {
    "patch_size": (1, 2, 2),
    "num_attention_heads": 3,
    "attention_head_dim": 20,
    "in_channels": 5,
    "out_channels": 5,
    "text_dim": 23,
    "freq_dim": 34,
    "ffn_dim": 71,
    "num_layers": 3,
    "rope_max_seq_len": 32,
}
FROM_IMAGE = {"in_channels": 9, "image_dim": 26, "added_kv_proj_dim": 60}


@dataclass(frozen=True)
class Case:
    """A network, by its overrides of `BASE`, and the shapes of its inputs."""

    config: Mapping[str, Any] = field(default_factory=dict)
    grid: tuple[int, int, int] = (3, 6, 8)
    text_tokens: int = 11
    image_tokens: int = 0
    per_token: bool = False


CASES = {
    "text to video": Case(),
    "image to video 2.1": Case(FROM_IMAGE, text_tokens=512, image_tokens=7),
    "text cut by its length": Case(FROM_IMAGE, text_tokens=509, image_tokens=7),
    "text short of its length": Case(FROM_IMAGE, text_tokens=498, image_tokens=7),
    "text much too short": Case(FROM_IMAGE, text_tokens=20, image_tokens=7),
    "own keys and no image": Case({"added_kv_proj_dim": 60}, text_tokens=515),
    "image among the text": Case({"image_dim": 26}, image_tokens=7),
    "first and last frame": Case(
        {**FROM_IMAGE, "pos_embed_seq_len": 14}, text_tokens=512, image_tokens=14
    ),
    "image to video 2.2": Case({"in_channels": 11, "num_layers": 1}),
    "a timestep a token": Case({"in_channels": 7, "out_channels": 7}, per_token=True),
    "another shape": Case(
        {
            "patch_size": (2, 1, 3),
            "num_attention_heads": 5,
            "attention_head_dim": 14,
            "cross_attn_norm": False,
            "out_channels": 7,
            "eps": 1e-2,
            "freq_dim": 33,
            "text_dim": 12,
        },
        grid=(4, 5, 9),
    ),
    "single latents as tokens": Case(
        {
            "patch_size": (1, 1, 1),
            "num_attention_heads": 1,
            "attention_head_dim": 46,
            "out_channels": None,
            "qk_norm": None,
            "num_layers": 2,
        },
        grid=(3, 4, 5),
    ),
}

run = nnx.jit(lambda model, *inputs: model(*inputs))


def make(folder: Path, case: Case) -> WanTransformer3DModel:
    """Write diffusers' network, with weights far from their initial values, to the folder."""
    network = randomize(WanTransformer3DModel(**{**BASE, **case.config}), seed=1)
    for name, parameter in network.named_parameters():
        # Sharpen attention: nearly uniform attention would hide single words and positions.
        if name.endswith(("norm_q.weight", "norm_k.weight", "norm_added_k.weight")):
            parameter.data *= 2.0
    network.save_pretrained(folder / "transformer")
    return network


def load_atelier(folder: Path, dtype: Any = jnp.float32) -> WanTransformer:
    config = WanConfig.from_dict(read_config(folder, "transformer"))
    abstract = abstract_module(WanTransformer, config, param_dtype=dtype)
    return load(abstract, folder / "transformer", RENAMES)


@dataclass(frozen=True)
class Inputs:
    latents: np.ndarray
    timestep: np.ndarray
    prompt_embeds: np.ndarray
    image_embeds: np.ndarray | None


def inputs(case: Case) -> Inputs:
    """Two rows, each with a separate timestep and text length."""
    config, random = {**BASE, **case.config}, np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal((2, *shape), dtype=np.float32)

    text = normal(case.text_tokens, config["text_dim"])
    text[0, case.text_tokens // 2 :] = 0
    tokens = np.prod(case.grid) // np.prod(config["patch_size"])
    times = random.uniform(0, 1000, (2, tokens)) if case.per_token else np.array([999, 437.5])
    image = normal(case.image_tokens, config["image_dim"]) if case.image_tokens else None
    latents = normal(*case.grid, config["in_channels"])
    return Inputs(latents, times.astype(np.float32), text, image)


def run_diffusers(network: WanTransformer3DModel, given: Inputs) -> np.ndarray:
    """Return the velocity of diffusers' network, channels last. diffusers takes first and last
    frame as two rows of images."""
    image = None if given.image_embeds is None else torch.tensor(given.image_embeds)
    if network.config.pos_embed_seq_len is not None:
        image = image.reshape(4, -1, image.shape[-1])
    with torch.no_grad():
        latents = torch.tensor(given.latents).permute(0, 4, 1, 2, 3)
        velocity = network(
            latents, torch.tensor(given.timestep), torch.tensor(given.prompt_embeds), image
        ).sample
    return velocity.permute(0, 2, 3, 4, 1).numpy()


def run_atelier(network: WanTransformer, given: Inputs) -> np.ndarray:
    velocity = run(network, given.latents, given.timestep, given.prompt_embeds, given.image_embeds)
    return np.asarray(velocity)


@pytest.mark.parametrize("name", CASES)
def test_velocity(tmp_path: Path, name: str, record_property: Any) -> None:
    case = CASES[name]
    expected = run_diffusers(make(tmp_path, case), inputs(case))
    output = run_atelier(load_atelier(tmp_path), inputs(case))
    assert output.shape == expected.shape
    assert expected.std() > 0.3, "a flat velocity proves nothing"
    record_property("relative", relative(output, expected))
    print(f"relative {relative(output, expected):.1e}")
    assert relative(output, expected) <= RELATIVE


class TestTheCheckBites:
    """Plausible wrong variants exceed the bounds by far."""

    def test_time_embedding_in_bfloat16(self, tmp_path: Path) -> None:
        case = CASES["text to video"]
        expected = run_diffusers(make(tmp_path, case), inputs(case))
        network = load_atelier(tmp_path)
        for layer in (network.time_in.first, network.time_in.second):
            for parameter in (layer.kernel, layer.bias):
                parameter.set_value(parameter[...].astype(jnp.bfloat16))
        assert relative(run_atelier(network, inputs(case)), expected) > 100 * RELATIVE

    @pytest.mark.parametrize("axes", [(1, 2), (2, 3)], ids=["frames, rows", "rows, columns"])
    def test_rope_of_swapped_axes(self, tmp_path: Path, axes: tuple[int, int]) -> None:
        """Single latents as tokens have the same size in each axis, so only RoPE distinguishes the
        axes.
        """
        case = CASES["single latents as tokens"]
        arrays = inputs(case)
        expected = run_diffusers(make(tmp_path, case), arrays)
        transposed = Inputs(
            arrays.latents.swapaxes(*axes),
            arrays.timestep,
            arrays.prompt_embeds,
            arrays.image_embeds,
        )
        output = run_atelier(load_atelier(tmp_path), transposed).swapaxes(*axes)
        assert relative(output, expected) > 1000 * RELATIVE

    @pytest.mark.parametrize(
        "key",
        [
            "blocks.1.scale_shift_table",
            "blocks.2.attn1.norm_k.weight",
            "blocks.0.attn2.add_k_proj.bias",
            "blocks.0.attn2.norm_added_k.weight",
            "blocks.1.norm2.bias",
            "condition_embedder.time_proj.bias",
            "condition_embedder.image_embedder.norm1.weight",
            "condition_embedder.image_embedder.pos_embed",
        ],
    )
    def test_one_array_changed_by_a_tenth(self, tmp_path: Path, key: str) -> None:
        case = CASES["first and last frame"]
        network = make(tmp_path, case)
        with torch.no_grad():
            network.get_parameter(key).mul_(1.1)
        expected = run_diffusers(network, inputs(case))
        assert relative(run_atelier(load_atelier(tmp_path), inputs(case)), expected) > 20 * RELATIVE


def test_bfloat16_is_as_close_as_theirs(tmp_path: Path) -> None:
    """Atelier's bfloat16 error from float32 is comparable to diffusers'."""
    case = CASES["first and last frame"]
    exact = run_diffusers(make(tmp_path, case), inputs(case))
    half = WanTransformer3DModel.from_pretrained(
        tmp_path, subfolder="transformer", torch_dtype=torch.bfloat16
    )
    arrays = inputs(case)
    rounded = [
        torch.tensor(part).bfloat16() for part in (arrays.prompt_embeds, arrays.image_embeds)
    ]
    with torch.no_grad():
        latents = torch.tensor(arrays.latents).permute(0, 4, 1, 2, 3).bfloat16()
        image = rounded[1].reshape(4, -1, rounded[1].shape[-1])
        velocity = half(latents, torch.tensor(arrays.timestep), rounded[0], image).sample
    reference_error = relative(velocity.permute(0, 2, 3, 4, 1).float().numpy(), exact)
    error = relative(
        run_atelier(load_atelier(tmp_path, jnp.bfloat16), arrays).astype(np.float32), exact
    )
    print(f"bfloat16: Atelier {error:.1e}, diffusers {reference_error:.1e} from float32")
    assert error < 1.5 * reference_error  # roundings differ, and so do the errors


def test_every_array_has_the_dtype_of_theirs(tmp_path: Path) -> None:
    """Loaded in bfloat16, exactly the arrays that diffusers keeps in float32 stay float32."""
    make(tmp_path, CASES["first and last frame"])
    half = WanTransformer3DModel.from_pretrained(
        tmp_path, subfolder="transformer", torch_dtype=torch.bfloat16
    )
    leaves = flat_parameters(load_atelier(tmp_path, jnp.bfloat16))
    in_float32 = set()
    for key, parameter in half.named_parameters():
        goal = target(key, RENAMES)
        assert goal is not None
        assert str(leaves[goal.path].dtype) == str(parameter.dtype).removeprefix("torch."), key
        in_float32 |= {goal.path} if parameter.dtype == torch.float32 else set()
    assert {
        "time_in.first.kernel",
        "blocks.cross_norm.bias",
        "image_in.norm_in.scale",
    } <= in_float32
