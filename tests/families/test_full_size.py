"""Published checkpoints by their short names: sizes of the full-size networks, from shapes
alone."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import jax
import pytest

from models import published, registry
from models.interface.pipeline import Pipeline
from models.loading.sources import SHAPES
from workers.plan.model import neighboring_networks

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "models.md"
NAMES = {
    "sdxl": "SDXL base 1.0",
    "sdxl-controlnet": "SDXL base 1.0 with ControlNet",
    "sdxl-controlnet-mid": "SDXL base 1.0 with ControlNet mid",
    "sdxl-controlnet-small": "SDXL base 1.0 with ControlNet small",
    "sdxl-controlnet-union": "SDXL base 1.0 with ControlNet Union promax",
    "sdxl-ip-adapter": "SDXL base 1.0 with IP-Adapter Plus",
    "sdxl-refiner": "SDXL refiner 1.0",
    "sdxl-refined": "SDXL base 1.0 with its refiner",
    "flux-schnell": "FLUX.1 schnell",
    "flux-dev": "FLUX.1 dev",
    "flux-controlnet-union": "FLUX.1 dev with ControlNet Union",
    "flux-controlnet-union-pro-2": "FLUX.1 dev with ControlNet Union-Pro-2.0",
    "flux-redux": "FLUX.1 dev with Redux",
    "flux-fill": "FLUX.1 Fill dev",
    "flux-canny": "FLUX.1 Canny dev",
    "flux-depth": "FLUX.1 Depth dev",
    "flux-kontext": "FLUX.1 Kontext dev",
    "qwen-image": "Qwen-Image",
    "flux2-klein-4b": "FLUX.2 klein 4B",
    "flux2-klein-base-4b": "FLUX.2 klein base 4B",
    "flux2-klein-9b": "FLUX.2 klein 9B",
    "flux2-klein-base-9b": "FLUX.2 klein base 9B",
    "qwen-image-edit": "Qwen-Image-Edit",
    "qwen-image-edit-2509": "Qwen-Image-Edit-2509",
    "qwen-image-edit-2511": "Qwen-Image-Edit-2511",
    "ltx-2.3": "LTX-2.3",
    "ltx-2": "LTX-2",
    "z-image-turbo": "Z-Image-Turbo",
    "z-image": "Z-Image",
    "wan2.1-1.3b": "Wan 2.1 T2V 1.3B",
    "wan2.1-14b": "Wan 2.1 T2V 14B",
    "wan2.1-i2v-14b": "Wan 2.1 I2V 14B",
    "wan2.1-vace-1.3b": "Wan 2.1 VACE 1.3B",
    "wan2.1-vace-14b": "Wan 2.1 VACE 14B",
    "wan2.2-animate-14b": "Wan 2.2 Animate 14B",
    "wan2.2-a14b": "Wan 2.2 T2V A14B",
    "wan2.2-i2v-a14b": "Wan 2.2 I2V A14B",
    "wan2.2-5b": "Wan 2.2 TI2V 5B",
}
"""Names that the authors gave the checkpoints, by short name."""


@cache
def stated() -> dict[str, tuple[float, float]]:
    """Return billions of parameters and GiB by name, from docs/guides/models.md."""
    rows = re.findall(r"^\| ([\w. -]+) \| ([\d.]+) B \| ([\d.]+) GiB \|", PAGE.read_text(), re.M)
    return {name: (float(billions), float(size)) for name, billions, size in rows}


def shapes(name: str, folder: Path) -> Pipeline:
    published.write(name, folder)
    nets = neighboring_networks(name, folder)
    return registry.load(name, str(folder), "bfloat16", {}, reader=SHAPES, **nets)


def test_the_readme_states_the_size_of_every_checkpoint() -> None:
    assert NAMES.keys() == published.CHECKPOINTS.keys()
    assert stated().keys() == set(NAMES.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_full_size_checkpoint_takes_what_the_readme_states(name: str, tmp_path: Path) -> None:
    weights = shapes(name, tmp_path).weights._asdict()
    del weights["preview"]  # ours, fitted to any autoencoder
    leaves = jax.tree.leaves(weights)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    count = sum(leaf.size for leaf in leaves)
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    assert (round(count / 1e9, 1), round(size / 2**30, 1)) == stated()[NAMES[name]]


def test_a_request_is_prepared_without_a_vocabulary(tmp_path: Path) -> None:
    pipeline = shapes("flux-schnell", tmp_path)
    fields = {**pipeline.spec.defaults, "prompt": "words", "seed": 0, "width": 64, "height": 32}
    prepared = pipeline.prepare(fields, {})
    assert prepared.inputs["t5_ids"].shape == (1, pipeline.spec.limits.max_sequence_length)
    assert prepared.inputs["noise"].shape == (4, 8, 16)
    assert len(prepared.steps) == 4  # distilled, by the published scheduler's config
