"""Buckets of token counts, and the cost of a padded step at full size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from models import published, registry
from models.interface.token_buckets import TokenBuckets
from models.loading.sources import SHAPES
from workers.jaxpr.logical_mesh import logical_layout
from workers.programs.flops import step_flops
from workers.programs.tracer import Tracer

FLUX = TokenBuckets(anchor=4096, max_extra_work=0.06, break_even_tokens=6 * 3072)
"""Parameters of FLUX.1 dev."""
USUAL = {
    (1024, 1024): 4096,
    (1152, 896): 4096,
    (1216, 832): 4096,
    (832, 1216): 4096,
    (1344, 768): 4096,
    (1536, 640): 3904,
    (768, 768): 2400,
    (512, 512): 1056,
    (1360, 768): 4096,
    (1920, 1088): 8480,
}


def tokens_of(size: tuple[int, int]) -> int:
    return size[0] * size[1] // 256


@pytest.mark.parametrize("size", USUAL, ids=str)
def test_usual_sizes_share_few_rungs(size: tuple[int, int]) -> None:
    assert FLUX.padded_tokens(tokens_of(size)) == USUAL[size]


@pytest.mark.parametrize(
    "buckets", [FLUX, TokenBuckets(4096, 0.01, 18432), TokenBuckets(60, 0.3, 384)]
)
def test_padding_stays_within_the_allowed_extra_work(buckets: TokenBuckets) -> None:
    for tokens in range(1, 12_000):
        rung = buckets.padded_tokens(tokens)
        assert rung >= tokens
        assert buckets.work(rung) <= (1 + buckets.max_extra_work) * buckets.work(tokens)
        assert buckets.padded_tokens(rung) == rung


def test_the_default_size_is_a_rung() -> None:
    assert TokenBuckets(4095, 0.06, 18432).padded_tokens(4095) == 4095


def test_small_sizes_have_their_own_bucket() -> None:
    assert [FLUX.padded_tokens(tokens) for tokens in (7, 8, 9)] == [7, 8, 9]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[float, int, int], float]:
    """Count the operations of one FLUX.1 dev step by the setting of token buckets and the image
    size.
    """
    folder = tmp_path_factory.mktemp("published") / "flux"
    published.write("flux-dev", folder)

    def count(token_buckets: float, width: int, height: int) -> float:
        logical = logical_layout()
        options: dict[str, Any] = {"reader": SHAPES, "sharding": logical.of_parameter}
        pipeline = registry.load(
            "m", str(folder), "bfloat16", {}, token_buckets=token_buckets, **options
        )
        fields = {**pipeline.spec.defaults, "prompt": "", "seed": 0}
        prepared = pipeline.prepare({**fields, "width": width, "height": height}, {})
        tracer, step = Tracer(pipeline, logical), prepared.steps[0]
        row = tracer.encode(prepared.inputs).out_info
        return step_flops(pipeline, tracer.arguments.weights, step.program, step.values, row)

    return count


def test_padded_step_stays_within_the_configured_cost(
    counted: Callable[[float, int, int], float],
) -> None:
    """The count of the traced step is at most the bound that the buckets compute."""
    for width, height in ((1216, 832), (1536, 640), (720, 480)):
        extra = counted(0.06, width, height) / counted(0.0, width, height) - 1
        tokens = tokens_of((width, height))
        bound = FLUX.work(FLUX.padded_tokens(tokens)) / FLUX.work(tokens) - 1
        assert 0 < extra <= bound <= 0.06, (width, height, extra, bound)
