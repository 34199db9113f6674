"""Table of layouts in docs/performance/plans.md, compared with the planned models and slices."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from workers.plan.table import MODELS, TOPOLOGIES

PAGE = Path(__file__).parents[3] / "docs" / "performance" / "plans.md"


def test_each_model_has_a_row_for_each_slice_and_purpose() -> None:
    lines = PAGE.read_text().splitlines()
    rows = {tuple(cell.strip() for cell in line.split("|")[1:4]) for line in lines if "|" in line}
    sizes = {model: "x".join(map(str, size.values())) for model, size in MODELS.items()}
    expected = product(sizes.items(), TOPOLOGIES, ("latency", "throughput"))
    assert {(f"{model} {size}", *rest) for (model, size), *rest in expected} <= rows
