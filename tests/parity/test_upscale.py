"""RRDBNet compared with torch's, and its files in the three published key formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.upscale.config import RrdbConfig
from models.upscale.load import LoadedUpscaler, load_upscaler
from models.upscale.tiles import Canvas, rounded
from tests.parity.torch_rrdbnet import TRUNK, TorchRrdbNet, drawn, net, old_names, write

CONFIGS = {
    "four times": RrdbConfig(blocks=3, features=16, growth=8, doublings=2, unshuffle=1),
    "twice, odd": RrdbConfig(blocks=2, features=13, growth=5, doublings=2, unshuffle=2),
    "once": RrdbConfig(blocks=1, features=9, growth=4, doublings=2, unshuffle=4),
    "twice, of one doubling": RrdbConfig(blocks=1, features=8, growth=4, doublings=1, unshuffle=1),
}
SPELLINGS: dict[str, Callable[[RrdbConfig], Mapping[str, str]]] = {
    "new": lambda config: {},
    "trunk": lambda config: TRUNK,
    "old": old_names,
}
CLOSE = 1e-5
"""Tolerance of values of 0 to 1. Rounding alone leaves at most 2e-6, here and with 6 blocks of
64.
"""


def pixels(height: int, width: int) -> np.ndarray:
    """A horizontal ramp with noise."""
    random = np.random.default_rng(0)
    ramp = np.linspace(0, 200, width)[None, :, None] + random.integers(0, 55, (height, width, 3))
    return ramp.astype(np.uint8)


def loaded(reference: TorchRrdbNet, folder: Path, tile: int = 64, **options: str) -> LoadedUpscaler:
    names = SPELLINGS[options.get("spelling", "new")](reference.config)
    file = write(reference, folder / "net.safetensors", names)
    return load_upscaler(file, options.get("dtype", "float32"), tile, jax.devices()[0])


def run_atelier(upscaler: LoadedUpscaler, image: np.ndarray) -> np.ndarray:
    network = upscaler.network
    x = jnp.asarray(image[None] / np.float32(255), network.conv_first.kernel[...].dtype)
    return np.asarray(network(x)[0], np.float32)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", CONFIGS)
def test_upscaler_matches_torch(name: str, spelling: str, tmp_path: Path) -> None:
    reference, image = net(CONFIGS[name]), pixels(20, 28)
    upscaler = loaded(reference, tmp_path, spelling=spelling)
    assert upscaler.network.config == CONFIGS[name]
    assert upscaler.spec.scale == CONFIGS[name].scale
    expected = drawn(reference, image)
    assert expected.shape[0] == 20 * CONFIGS[name].scale
    assert expected.std() > 0.05, "the expected image is flat"
    assert np.abs(run_atelier(upscaler, image) - expected).max() < CLOSE


@pytest.mark.parametrize("part", ["body.1.rdb2.conv3.weight", "conv_body.bias", "conv_up2.weight"])
def test_changed_parameter_breaks_parity(part: str, tmp_path: Path) -> None:
    """Control: one changed parameter exceeds the bound."""
    reference, image = net(CONFIGS["four times"]), pixels(16, 16)
    upscaler = loaded(reference, tmp_path)
    parameter = dict(reference.named_parameters())[part]
    parameter.data += 0.01
    assert np.abs(run_atelier(upscaler, image) - drawn(reference, image)).max() > 10 * CLOSE


def test_bfloat16_weights_are_nearly_equal(tmp_path: Path) -> None:
    reference, image = net(CONFIGS["four times"]), pixels(16, 16)
    output = run_atelier(loaded(reference, tmp_path, dtype="bfloat16"), image)
    gap = np.abs(output - drawn(reference, image)).mean()
    assert 1e-4 < gap < 0.02


@pytest.mark.parametrize("name", ["four times", "twice, odd"])
@pytest.mark.parametrize(("height", "width"), [(128, 192), (97, 161)])
def test_tiles_have_no_seams(name: str, height: int, width: int, tmp_path: Path) -> None:
    """Nearly all pixels equal the whole image by torch, and none differs much."""
    config, tile = CONFIGS[name], 64
    reference, image = net(config), pixels(height, width)
    upscaler = loaded(reference, tmp_path, tile)
    canvas = Canvas(image, tile, config.scale, config.unshuffle)
    for row, column in canvas.tiles():
        canvas.write(row, column, run_atelier(upscaler, canvas.read(row, column)))
    output = canvas.image().astype(int)
    padding = [(0, -side % config.unshuffle) for side in (height, width)]
    padded = np.pad(image, (*padding, (0, 0)), "reflect")
    expected = rounded(drawn(reference, padded)).astype(int)
    expected = expected[: height * config.scale, : width * config.scale]
    gap = np.abs(output - expected)
    assert gap.max() <= 2 and (gap > 0).mean() < 0.05
    assert 10 * np.log10(255**2 / max(np.square(gap).mean(), 1e-9)) > 60


def test_tiles_that_do_not_overlap_have_seams(tmp_path: Path) -> None:
    """Control: separate tiles exceed the bounds of the previous test."""
    config = CONFIGS["four times"]
    reference, image = net(config), pixels(128, 128)
    expected = rounded(drawn(reference, image)).astype(int)
    joined = np.concatenate(
        [rounded(drawn(reference, np.ascontiguousarray(half))) for half in np.split(image, 2, 1)], 1
    )
    gap = np.abs(joined.astype(int) - expected)
    assert gap.max() > 10
