"""Engine with a tiny Wan 2.2 whose experts are in host memory, compared with the plain loop."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from prometheus_client import REGISTRY

from models import registry
from models.interface.pipeline import Pipeline, generate
from models.parallel.axis_rules import Layout
from tests.families.suite import SUITE
from tests.workers.resume import disturbed_at
from workers.engine.engine import Engine

PIXEL_TOLERANCE = 2
"""Levels of 255: programs of another batch size than the plain loop's round differently."""
REQUEST = SUITE["wan"].smallest_request


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    from tests.parity.tiny_wan import make_wan  # imports torch

    folder = make_wan(
        tmp_path_factory.mktemp("wan"),
        transformer={"num_layers": 1},
        transformer_2={"num_layers": 1},
        boundary_ratio=0.875,
    )
    return registry.load("wan", str(folder), "float32", {}, swap_experts=True)


def swaps() -> float:
    return REGISTRY.get_sample_value("atelier_expert_swaps_total", {"model": "wan"}) or 0


async def test_swapped_experts_give_the_same_video(wan: Pipeline, layout: Layout) -> None:
    experts = [jax.tree.leaves(getattr(wan.weights, f"transformer{n}")) for n in ("", "_2")]
    assert all(isinstance(leaf, np.ndarray) for leaves in experts for leaf in leaves)
    phases = [step.program for step in wan.prepare(REQUEST, {}).steps]
    assert {phase.network for phase in phases} == {"transformer", "transformer_2"}
    before = swaps()
    engine = Engine(wan, layout, slots=1)
    try:
        clip = await engine.generate(REQUEST, {})
    finally:
        engine.close()
    assert swaps() - before == 2, "one to begin with, one at the boundary"
    assert clip.pixels.shape == (5, 48, 32, 3)
    expected = generate(wan, REQUEST, {}).astype(int)
    assert np.abs(clip.pixels - expected).max() <= PIXEL_TOLERANCE
    assert np.std(expected) > 10, "a video without contrast proves nothing"


@pytest.mark.parametrize(
    "scheduler",
    ["unipc", "dpmpp_2m_sde", pytest.param("flow_match_heun", marks=pytest.mark.nightly)],
)
async def test_resumed_video_is_bitwise_equal(
    wan: Pipeline, layout: Layout, scheduler: str
) -> None:
    """The multistep history is restored, and each step has the noise of its own number.

    The second engine may begin with the second expert.
    """
    steps = {**REQUEST, "num_inference_steps": 8, "scheduler": {"name": scheduler}}
    first, second = Engine(wan, layout, slots=1), Engine(wan, layout, slots=1)
    try:
        full, snapshot = await disturbed_at(3, first, steps, {})
        assert "['prompt_embeds']" not in snapshot.leaves
        assert any(name.startswith("['history']") for name in snapshot.leaves)
        resumed = await second.generate(steps, {}, begin=snapshot)
        assert (resumed.pixels == full.pixels).all()
        empty = {name: 0 * leaf for name, leaf in snapshot.leaves.items() if "history" in name}
        cleared = replace(snapshot, leaves={**snapshot.leaves, **empty})
        altered = await second.generate(steps, {}, begin=cleared)
        assert (altered.pixels != full.pixels).any(), "the history does nothing"
    finally:
        first.close()
        second.close()
