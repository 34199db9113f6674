"""The Animate transformer and its face encoder compared with diffusers', in float32."""

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
from diffusers import WanAnimateTransformer3DModel
from flax import nnx

from models.checkpoint.folder import read_config
from models.loading.abstract import abstract_module
from models.nn.layers.step_cache import CachedStep, blank
from models.spec.quality_presets import COEFFICIENTS, THRESHOLD
from models.wan import face_encoder
from models.wan.animate import AnimateTransformer, Guides
from models.wan.animate_config import AnimateConfig
from models.wan.face_encoder import FaceEncoder
from models.wan.key_mapping import FACE_RENAMES, RENAMES
from models.weights.loader import load
from tests.parity.distances import relative
from tests.parity.test_wan_transformer import BASE, RELATIVE
from tests.parity.tiny import randomize

FACE: Mapping[str, Any] = {
    "in_channels": 14,
    "latent_channels": 5,
    "num_layers": 4,
    "image_dim": 26,
    "added_kv_proj_dim": 60,
    "motion_encoder_channel_sizes": {"4": 12, "8": 10, "16": 7},
    "motion_encoder_size": 16,
    "motion_style_dim": 18,
    "motion_dim": 5,
    "motion_encoder_dim": 13,
    "face_encoder_hidden_dim": 16,
    "face_encoder_num_heads": 4,
    "inject_face_latents_blocks": 2,
    "motion_encoder_batch_size": 2,
}


@dataclass(frozen=True)
class Case:
    """A network, by its overrides of `BASE` and `FACE`, and the shapes of its inputs."""

    config: Mapping[str, Any] = field(default_factory=dict)
    grid: tuple[int, int, int] = (4, 6, 8)
    text_tokens: int = 512

    @property
    def frames(self) -> int:
        """Number of frames of the video."""
        return 4 * (self.grid[0] - 2) + 1


CASES = {
    "a face behind every second block": Case(),
    "a face behind every block, no image keys, other sizes": Case(
        {
            "patch_size": (1, 1, 2),
            "num_attention_heads": 5,
            "attention_head_dim": 14,
            "cross_attn_norm": False,
            "eps": 1e-2,
            "num_layers": 3,
            "added_kv_proj_dim": None,
            "motion_encoder_channel_sizes": {"4": 3, "8": 9},
            "motion_encoder_size": 8,
            "motion_dim": 3,
            "face_encoder_num_heads": 3,
            "face_encoder_hidden_dim": 11,
            "inject_face_latents_blocks": 1,
        },
        grid=(3, 5, 6),
        text_tokens=11,
    ),
    "one face, behind the first of three blocks": Case(
        {"num_layers": 3, "inject_face_latents_blocks": 3}, grid=(2, 4, 4)
    ),
}

run = nnx.jit(lambda model, *inputs, guides: model(*inputs, guides=guides))
encode = nnx.jit(lambda encoder, frames: encoder(frames, 2))


def make(folder: Path, case: Case) -> WanAnimateTransformer3DModel:
    """Write diffusers' network, with weights far from their initial values, to the folder."""
    network = WanAnimateTransformer3DModel(**{**BASE, **FACE, **case.config})
    return write(network, folder)


def write(network: WanAnimateTransformer3DModel, folder: Path) -> WanAnimateTransformer3DModel:
    randomize(network, seed=1)
    for name, parameter in network.named_parameters():
        if name.endswith(("norm_q.weight", "norm_k.weight")):
            parameter.data *= 2.0
        if name.startswith("motion_encoder") and parameter.ndim > 1:
            parameter.data /= parameter.data.std()  # kernels are scaled at their use
    network.save_pretrained(folder / "transformer")
    return network


def load_atelier(folder: Path) -> tuple[AnimateTransformer, FaceEncoder]:
    config = AnimateConfig.from_dict(read_config(folder, "transformer"))
    parts = ((AnimateTransformer, RENAMES), (FaceEncoder, FACE_RENAMES))
    networks = (
        load(abstract_module(kind, config, param_dtype=jnp.float32), folder / "transformer", names)
        for kind, names in parts
    )
    return next(networks), next(networks)


def inputs(case: Case) -> dict[str, np.ndarray]:
    """Two rows, each with a separate timestep, poses and face."""
    config, random = {**BASE, **FACE, **case.config}, np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal((2, *shape), dtype=np.float32)

    frames, *sides = case.grid
    size = config["motion_encoder_size"]
    return {
        "latents": normal(*case.grid, config["in_channels"]),
        "timestep": np.array([999, 437.5], np.float32),
        "text": normal(case.text_tokens, config["text_dim"]),
        "image": normal(7, config["image_dim"]),
        "pose": normal(frames - 1, *sides, config["latent_channels"]),
        "face": random.integers(0, 256, (2, case.frames, size, size, 3), dtype=np.uint8),
    }


def run_diffusers(network: WanAnimateTransformer3DModel, case: Case) -> np.ndarray:
    """Return the velocity of diffusers' network, channels last; the second row's face is black."""
    tensors = {name: torch.tensor(value) for name, value in inputs(case).items()}
    face = tensors["face"].float() / 255 * 2 - 1
    face[1] = -1
    with torch.no_grad():
        velocity = network(
            tensors["latents"].permute(0, 4, 1, 2, 3),
            tensors["timestep"],
            tensors["text"],
            tensors["image"],
            tensors["pose"].permute(0, 4, 1, 2, 3),
            face.permute(0, 4, 1, 2, 3),
        ).sample
    return velocity.permute(0, 2, 3, 4, 1).numpy()


def guides_of(encoder: FaceEncoder, arrays: dict[str, np.ndarray]) -> Guides:
    """Remove poses and face from the inputs and convert them to guides."""
    pose, face = arrays.pop("pose"), arrays.pop("face")
    return Guides(jnp.asarray(pose), encode(encoder, jnp.asarray(face[0])))


def run_atelier(networks: tuple[AnimateTransformer, FaceEncoder], case: Case) -> np.ndarray:
    arrays = inputs(case)
    guides = guides_of(networks[1], arrays)
    return np.asarray(run(networks[0], *arrays.values(), guides=guides))


@pytest.fixture(scope="module", params=CASES)
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """A case, Atelier's networks, and the velocity of diffusers'."""
    case, folder = CASES[request.param], tmp_path_factory.mktemp("animate")
    expected = run_diffusers(make(folder, case), case)
    return case, load_atelier(folder), expected


def test_velocity(pair: tuple[Any, ...]) -> None:
    case, networks, expected = pair
    output = run_atelier(networks, case)
    print(f"relative {relative(output, expected):.1e}")
    assert output.shape == expected.shape
    assert expected.std() > 0.3, "a flat velocity proves nothing"
    assert relative(output, expected) <= RELATIVE


@pytest.mark.parametrize("kind", ["first-block", "teacache"])
def test_whole_cached_step_is_exact(pair: tuple[Any, ...], kind: Any) -> None:
    """The residual is the step's own, and includes the face after the first block."""
    case, networks, expected = pair
    arrays, config = inputs(case), networks[0].config
    guides = guides_of(networks[1], arrays)
    tokens = np.prod(case.grid) // np.prod(config.patch_size)
    blanks = [blank(1, int(tokens), config.width, jnp.float32)] * 2
    cache = jax.tree.map(lambda *rows: jnp.stack(rows), *blanks)
    values = {THRESHOLD: jnp.asarray([0.0, 0.0]), COEFFICIENTS: np.float32([[1, 0], [1, 0]])}

    @nnx.jit
    def twice(network: AnimateTransformer, guides: Guides, *inputs: Any) -> tuple[Any, Any]:
        whole_step = CachedStep(kind, cache, values)
        first = network(*inputs, cache=whole_step, guides=guides)
        reused = CachedStep(kind, whole_step.after, {**values, THRESHOLD: jnp.asarray([9.0, 9.0])})
        return first, network(*inputs, cache=reused, guides=guides)

    for output in twice(networks[0], guides, *map(jnp.asarray, arrays.values())):
        assert relative(np.asarray(output), expected) <= RELATIVE


def assert_far(output: np.ndarray, expected: np.ndarray) -> None:
    assert relative(output, expected) > 100 * RELATIVE


@pytest.mark.parametrize("spoilt", ["pose", "face"])
def test_reordered_frames_break_parity(pair: tuple[Any, ...], spoilt: str) -> None:
    case, networks, expected = pair
    arrays = inputs(case)
    guides = guides_of(networks[1], arrays)
    guide = getattr(guides, spoilt)
    flipped = np.flip(guide, 1 if guide.shape[1] > 1 else -1)  # of a single frame, its channels
    wrong = guides._replace(**{spoilt: jnp.asarray(flipped)})
    assert_far(np.asarray(run(networks[0], *arrays.values(), guides=wrong)), expected)


@pytest.mark.parametrize("wrong", [("BLUR", (1.0, 1.0, 1.0, 1.0)), ("SLOPE", 0.1), ("GAIN", 1.0)])
def test_other_motion_formula_breaks_parity(
    pair: tuple[Any, ...], wrong: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, networks, expected = pair
    monkeypatch.setattr(face_encoder, *wrong)
    jax.clear_caches()
    output = run_atelier(networks, case)
    jax.clear_caches()
    assert_far(output, expected)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"in_channels": 15}, "2 · latent_channels"),
        ({"patch_size": (2, 1, 1)}, "patches of one frame"),
        ({"num_layers": 5}, "inject_face_latents_blocks 2"),
        ({"motion_encoder_size": 12}, "power of two"),
        ({"motion_encoder_size": 32}, r"sides \[32\]"),
        ({"motion_dim": 14}, "orthogonal"),
        ({"face_encoder_num_heads": 0}, "face_encoder_num_heads"),
    ],
)
def test_configs_that_no_network_has(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        AnimateConfig.from_dict({**BASE, **FACE, **changed})
