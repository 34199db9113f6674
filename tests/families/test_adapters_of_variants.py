"""Adapters on the variants that `test_adapters.py` omits.

They are merged, have scales by steps, and are combined with presets. All else is tested with the
families.
"""

from __future__ import annotations

import pytest

from models.parallel.axis_rules import Layout
from tests.families import test_adapters
from tests.families.suite import EVERY
from tests.families.test_adapters import (
    DRAWN,
    Models,
    folder,
    is_left_out,
    models,
    test_lokr_loha_and_dora_equal_merged_weights,
    test_presets_and_images_combine_with_adapters,
    test_scales_by_steps_are_those_of_each_step,
)

__all__ = [
    "folder",
    "is_left_out",
    "models",
    "test_lokr_loha_and_dora_equal_merged_weights",
    "test_presets_and_images_combine_with_adapters",
    "test_scales_by_steps_are_those_of_each_step",
]


@pytest.fixture(scope="module", params=[name for name in EVERY if name not in DRAWN])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_two_adapters_match_merged_weights(models: Models, layout: Layout) -> None:
    merged = test_adapters.test_adapters_match_merged_weights
    await merged(test_adapters.OF_VARIANTS, models, layout)
