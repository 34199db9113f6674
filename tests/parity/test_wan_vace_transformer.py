"""The VACE transformer compared with diffusers' in float32, on random weights and odd sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from diffusers import WanVACETransformer3DModel
from flax import nnx

from models.checkpoint.folder import read_config
from models.loading.abstract import abstract_module
from models.nn.layers.step_cache import CachedStep, blank
from models.spec.quality_presets import COEFFICIENTS, THRESHOLD
from models.wan.key_mapping import RENAMES
from models.wan.vace import Control, VaceTransformer
from models.wan.vace_config import VaceConfig
from models.weights.loader import load
from tests.parity.distances import relative
from tests.parity.test_wan_transformer import BASE, RELATIVE
from tests.parity.tiny import randomize


@dataclass(frozen=True)
class Case:
    """A network, by its overrides of `BASE`, and the shapes of its inputs."""

    config: Mapping[str, Any] = field(default_factory=dict)
    grid: tuple[int, int, int] = (3, 6, 8)
    scales: tuple[float, ...] = (1.0, 0.4)


CASES = {
    "a hint behind every second block": Case({"vace_layers": (0, 2), "vace_in_channels": 14}),
    "patches of 2 x 1 x 3, hints behind blocks of any number": Case(
        {
            "patch_size": (2, 1, 3),
            "num_attention_heads": 5,
            "attention_head_dim": 14,
            "cross_attn_norm": False,
            "eps": 1e-2,
            "num_layers": 5,
            "vace_layers": (0, 1, 3),
            "vace_in_channels": 11,
        },
        grid=(4, 5, 9),
        scales=(0.3, 1.0, -0.7),
    ),
}

run = nnx.jit(lambda model, *inputs, control: model(*inputs, control=control))


def make(folder: Path, case: Case) -> WanVACETransformer3DModel:
    """Write diffusers' network, with weights far from their initial values, to the folder."""
    network = randomize(WanVACETransformer3DModel(**{**BASE, **case.config}), seed=1)
    for name, parameter in network.named_parameters():
        if name.endswith(("norm_q.weight", "norm_k.weight")):
            parameter.data *= 2.0
    network.save_pretrained(folder / "transformer")
    return network


def load_atelier(folder: Path) -> VaceTransformer:
    config = VaceConfig.from_dict(read_config(folder, "transformer"))
    abstract = abstract_module(VaceTransformer, config, param_dtype=jnp.float32)
    return load(abstract, folder / "transformer", RENAMES)


def inputs(case: Case) -> dict[str, np.ndarray]:
    """Two rows, each with a separate timestep and control video."""
    config, random = {**BASE, **case.config}, np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal((2, *shape), dtype=np.float32)

    return {
        "latents": normal(*case.grid, config["in_channels"]),
        "timestep": np.array([999, 437.5], np.float32),
        "text": normal(11, config["text_dim"]),
        "video": normal(*case.grid, config["vace_in_channels"]),
    }


def run_diffusers(network: WanVACETransformer3DModel, case: Case) -> np.ndarray:
    """Return the velocity of diffusers' VACE network, channels last."""
    tensors = {name: torch.tensor(value) for name, value in inputs(case).items()}
    with torch.no_grad():
        velocity = network(
            tensors["latents"].permute(0, 4, 1, 2, 3),
            tensors["timestep"],
            tensors["text"],
            control_hidden_states=tensors["video"].permute(0, 4, 1, 2, 3),
            control_hidden_states_scale=torch.tensor(case.scales),
        ).sample
    return velocity.permute(0, 2, 3, 4, 1).numpy()


def run_atelier(network: VaceTransformer, case: Case, scales: tuple[float, ...] = ()) -> np.ndarray:
    arrays = inputs(case)
    factors = np.tile(np.asarray(scales or case.scales, np.float32), (2, 1))
    control = Control(jnp.asarray(arrays.pop("video")), jnp.asarray(factors))
    return np.asarray(run(network, *arrays.values(), control=control))


@pytest.fixture(scope="module", params=CASES)
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """A case, Atelier's network, and the velocity of diffusers'."""
    case, folder = CASES[request.param], tmp_path_factory.mktemp("vace")
    expected = run_diffusers(make(folder, case), case)
    return case, load_atelier(folder), expected


def test_velocity(pair: tuple[Any, ...]) -> None:
    case, network, expected = pair
    output = run_atelier(network, case)
    print(f"relative {relative(output, expected):.1e}")
    assert output.shape == expected.shape
    assert expected.std() > 0.3, "a flat velocity proves nothing"
    assert relative(output, expected) <= RELATIVE


@pytest.mark.parametrize("kind", ["first-block", "teacache"])
def test_whole_cached_step_is_exact(pair: tuple[Any, ...], kind: Any) -> None:
    """The residual is the step's own, and includes the hint of the first block."""
    case, network, expected = pair
    arrays, config = inputs(case), network.config
    tokens = np.prod(case.grid) // np.prod(config.patch_size)
    blanks = [blank(1, int(tokens), config.width, jnp.float32)] * 2
    cache = jax.tree.map(lambda *rows: jnp.stack(rows), *blanks)
    values = {THRESHOLD: jnp.asarray([0.0, 0.0]), COEFFICIENTS: np.float32([[1, 0], [1, 0]])}

    @nnx.jit
    def twice(network: VaceTransformer, video: Any, *inputs: Any) -> tuple[Any, Any]:
        control = Control(video, jnp.tile(jnp.float32(case.scales), (2, 1)))
        whole_step = CachedStep(kind, cache, values)
        first = network(*inputs, cache=whole_step, control=control)
        reused = CachedStep(kind, whole_step.after, {**values, THRESHOLD: jnp.asarray([9.0, 9.0])})
        return first, network(*inputs, cache=reused, control=control)

    video = jnp.asarray(arrays.pop("video"))
    for output in twice(network, video, *map(jnp.asarray, arrays.values())):
        assert relative(np.asarray(output), expected) <= RELATIVE


def test_reversed_hint_scales_break_parity(pair: tuple[Any, ...]) -> None:
    case, network, expected = pair
    swapped = run_atelier(network, case, case.scales[::-1])
    assert relative(swapped, expected) > 100 * RELATIVE


def test_missing_noisy_video_breaks_parity(
    pair: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, network, expected = pair
    hints = VaceTransformer._hints

    def blind(self: Any, given: Any, *others: Any) -> Any:
        return hints(self, given._replace(first=jnp.zeros_like(given.first)), *others)

    monkeypatch.setattr(VaceTransformer, "_hints", blind)
    jax.clear_caches()
    output = run_atelier(network, case)
    jax.clear_caches()
    assert relative(output, expected) > 100 * RELATIVE


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"vace_layers": (1, 2)}, "begin with 0"),
        ({"vace_layers": (0, 3)}, "num_layers 3"),
        ({"vace_layers": (0, 2, 1)}, "rising order"),
        ({"vace_in_channels": 0}, "vace_in_channels"),
    ],
)
def test_configs_that_no_network_has(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        VaceConfig.from_dict({**BASE, "vace_layers": (0, 2), **changed})
