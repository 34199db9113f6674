"""Batch sizes of a pool, from its settings and its layout alone."""

from __future__ import annotations

from typing import Any

import pytest

from service.settings.models import ModelSettings
from service.settings.pools import PoolSettings
from service.settings.section import ConfigError
from service.settings.settings import Settings
from tests.parallel.layouts import layout
from workers.loading import model as loading
from workers.programs import batch_sizes
from workers.programs.batch_sizes import BatchSizes, exact, fast


@pytest.mark.parametrize(
    ("model", "pool", "mesh", "expected"),
    [
        ({}, {}, {}, exact()),
        ({}, {}, {"data": 2, "cfg": 2}, exact(2)),
        ({"exact_rows": 4}, {}, {}, exact(4)),
        ({"batching": "fast"}, {}, {}, BatchSizes("fast", (1, 2, 3), True)),
        ({"batching": "fast"}, {"batch_sizes": [3], "elastic": False}, {}, fast(3, (3,), False)),
    ],
    ids=str,
)
def test_batch_sizes_follow_the_settings(
    model: dict[str, Any], pool: dict[str, Any], mesh: dict[str, int], expected: BatchSizes
) -> None:
    result = batch_sizes.of_settings(
        PoolSettings(model="m", **pool), ModelSettings(source="x", **model), layout(**mesh), slots=3
    )
    assert result == expected
    assert result.is_exact == (len(result.sizes) == 1)


@pytest.mark.parametrize(
    ("model", "mesh", "launches"),
    [
        ({}, {}, (1, 1)),
        ({}, {"data": 2}, (2, 2)),
        ({"exact_rows": 4}, {}, (4, 4)),
        ({"batching": "fast"}, {}, (1, 6)),
    ],
    ids=str,
)
def test_rows_of_a_launch(
    model: dict[str, Any], mesh: dict[str, int], launches: tuple[int, int]
) -> None:
    settings, place = ModelSettings(source="x", **model), layout(**mesh)
    assert (
        batch_sizes.least(settings, place),
        batch_sizes.most(settings, place, slots=6),
    ) == launches


def test_sizes_that_would_not_be_used_are_refused() -> None:
    pools = {"p": PoolSettings(model="m", batch_sizes=(1, 2))}
    settings = Settings(models={"m": ModelSettings(source="x")}, pools=pools)
    with pytest.raises(ConfigError, match=r'pools\.p\.batch_sizes: .*batching = "fast"'):
        loading.configured(settings, "p")
